package sdnotify_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/notifytest"
	"github.com/skerry-io/skerry/common/watchdog"
	"github.com/skerry-io/skerry/edge/internal/setup/sdnotify"
)

// late is a module whose readiness the test controls.
type late struct{ ready <-chan struct{} }

func (late) Name() message.Name { return "late" }

func (l late) Run(ctx context.Context, port *beehive.Port) error {
	select {
	case <-l.ready:
		port.Ready()
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// systemd receives READY=1 once, not before the modules above are ready; and then the watchdog's
// notifications, from no other process.
func TestReady(t *testing.T) {
	systemd := notifytest.New(t)
	systemd.Watch(time.Hour)
	dog, err := watchdog.New()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{{Module: late{ready}}, {Module: sdnotify.New(dog)}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	// Our mark comes first: no message was sent before the module above is ready.
	systemd.Mark("the module above is ready")
	close(ready)
	if got := systemd.Hear(); got != "the module above is ready" {
		t.Errorf("%q before the module above was ready", got)
	}
	if got := systemd.Hear(); got != "READY=1" {
		t.Errorf("%q, want READY=1", got)
	}
	if got := systemd.Hear(); got != "WATCHDOG=1" {
		t.Errorf("%q, want WATCHDOG=1", got)
	}
	if left := os.Getenv("WATCHDOG_USEC"); left != "" {
		t.Errorf("the kubelet would find WATCHDOG_USEC=%s", left)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
