package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/logging"
)

// The verbosity of a module changes while cloudcore runs; an unknown module is refused with the
// names of the others, and another user has no answer. A second cloudcore with the same listeners
// runs all the same.
func TestVerbosity(t *testing.T) {
	log, logger := logging.New(logging.Config{Output: io.Discard})
	cfg := config.Default()
	cfg.Health.Listen = fmt.Sprint("test-", os.Getpid())
	newApp := func() *App {
		a := &App{config: cfg, log: log}
		var err error
		if a.runner, err = beehive.NewRunner(beehive.Config{}, []beehive.Entry{a.verbosity(), restarted("cloudhub", func(ctx context.Context) error { <-ctx.Done(); return nil })}); err != nil {
			t.Fatal(err)
		}
		return a
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	a := newApp()
	go func() { ended <- a.runner.Run(ctx) }()
	until := time.Now().Add(time.Minute)
	for SetVerbosity(ctx, cfg, "cloudhub", "4") != nil && time.Now().Before(until) { // until it listens
		time.Sleep(time.Millisecond)
	}
	if !logger.WithValues("module", "cloudhub").V(4).Enabled() || logger.V(1).Enabled() {
		t.Error("the verbosity of cloudhub, and of it alone, is not 4")
	}
	if err := SetVerbosity(ctx, cfg, "cloudhup", "4"); err == nil || err.Error() != `module: unknown module "cloudhup"; the modules are cloudhub, verbosity` {
		t.Errorf("an unknown module: %v", err)
	}
	second := newApp()
	go func() { ended <- second.runner.Run(ctx) }()
	if os.Getuid() == 0 {
		c := exec.CommandContext(ctx, "curl", "-sS", "--max-time", "10", "--abstract-unix-socket", strings.TrimPrefix(verbositySocket(cfg), "@"), "-X", "PUT", "http://cloudcore"+logging.Path+"?v=9")
		own, err := c.CombinedOutput()
		if err != nil || !logger.V(9).Enabled() {
			t.Errorf("root: %s, %v", own, err)
		}
		other := exec.CommandContext(ctx, c.Path, append(c.Args[1:len(c.Args)-1], "http://cloudcore"+logging.Path+"?v=0")...)
		other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := other.CombinedOutput(); err == nil || !logger.V(9).Enabled() {
			t.Errorf("another user: %s, %v", out, err)
		}
	}
	if err := second.runner.Failure(); err != nil {
		t.Errorf("the second: %v", err)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
