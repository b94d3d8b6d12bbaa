package vip_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// filling is a memory on a disk that can be full.
type filling struct {
	agent.Memory
	full  atomic.Bool
	saves atomic.Int32
}

func (f *filling) Save(ctx context.Context, changes map[string][]byte) error {
	if f.full.Load() {
		return store.ErrFull
	}
	f.saves.Add(1)
	return f.Memory.Save(ctx, changes)
}

// After a boot with a full disk virtual IPs are looked after although the boot can't be kept; it is
// kept, once, when there is room.
func TestABootWithAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{version: 1, objects: map[string]map[string]metav1.Object{"pods": {}, "virtualips": {}}, watches: map[chan watchEvent]string{}}
		connections := make(pipes)
		server := &http.Server{Handler: a}
		go func() { _ = server.Serve(connections) }()
		plane := &counting{}
		dir := t.TempDir()
		disk := &filling{Memory: files{dir}}
		disk.full.Store(true)
		module := vip.New(vip.Config{
			NodeName: "a", Plane: plane, Elector: noElections{}, Reporter: files{dir}, Memory: disk, BootTime: time.Now, BootID: "this boot",
			Interfaces: func() ([]netif.Interface, error) { return nil, nil },
			Watch:      func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil },
			API: &rest.Config{Host: "http://edge.invalid", QPS: -1, Dial: func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				connections <- theirs
				return ours, nil
			}},
		})
		runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{{Module: module}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runner.Run(ctx) }()
		time.Sleep(10 * time.Second)
		if plane.applied.Load() == 0 || !strings.Contains(module.State().Problem, store.ErrFull.Error()) {
			t.Errorf("with a full disk: applied %d times; it says %q", plane.applied.Load(), module.State().Problem)
		}
		disk.full.Store(false)
		time.Sleep(5 * time.Minute)
		kept, err := disk.Load()
		if err != nil || !strings.Contains(string(kept["state"]), "this boot") || disk.saves.Load() != 1 || module.State().Problem != "" {
			t.Errorf("with room: kept %q in %d saves (%v); it says %q", kept["state"], disk.saves.Load(), err, module.State().Problem)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(connections)
		_ = server.Close()
	})
}
