package route_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// After a reboot the kernel has no routes, and there is no link; the objects are in the store.
func TestRoutes_19_RebootWithoutTheCloudRestores(t *testing.T) {
	l := newSystem(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.api.route(t, "plant", spec("172.21.0.0/16", "10.0.0.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("plant", v1alpha1.RouteApplied, 1)
	l.stop()
	l.delRoute("172.20.0.0/16")
	l.delRoute("172.21.0.0/16")
	l.boot = "second boot"
	before := len(l.all("office"))
	l.start(false)
	l.have("172.20.0.0/16", "172.21.0.0/16")
	l.reach("172.20.0.1")
	// The link is restored: one route was changed in the cloud, the other deleted.
	l.hub.set(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.0.1"))
	l.api.remove(t, "staticroutes", "plant")
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.0.1 dev eth0")
	if n := len(l.all("office")) - before; n != 1 {
		t.Errorf("%d reports, want 1: the reboot changed nothing that the cloud does not know", n)
	}
	if e := l.last("office"); e.Repairs != 0 {
		t.Errorf("the reboot counts as %d repairs", e.Repairs)
	}
}

// After a reboot with a full disk the routes come back too, although the detected paths to the
// cloud can't be stored; they are stored when there is space.
func TestRoutes_19_RebootWithAFullDiskRestores(t *testing.T) {
	l := newSystem(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.stop()
	l.delRoute("172.20.0.0/16")
	l.boot = "second boot"
	disk := &filling{Memory: agent.NewMemory(l.store, string(route.Name))}
	disk.full.Store(true)
	l.tune = func(c *route.Config) {
		c.State = disk
		c.Surroundings = func() route.Surroundings {
			return route.Surroundings{Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.53")}}
		}
	}
	l.start(false)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	l.until("the agent to say what is wrong", func() error {
		if p := l.agent.State().Problem; !strings.Contains(p, store.ErrFull.Error()) {
			return fmt.Errorf("it says %q", p)
		}
		return nil
	})
	disk.full.Store(false)
	l.until("what was found out to be kept", func() error {
		kept, err := disk.Load()
		if err == nil && !strings.Contains(string(kept["."]), "10.0.0.53") {
			err = fmt.Errorf("kept: %s", kept["."])
		}
		return err
	})
}

// filling is a memory on a disk that can be full.
type filling struct {
	agent.Memory
	full atomic.Bool
}

func (f *filling) Save(ctx context.Context, changes map[string][]byte) error {
	if f.full.Load() {
		return store.ErrFull
	}
	return f.Memory.Save(ctx, changes)
}

// A starting process finds routes of ours without a StaticRoute, and removes them: but not before
// it knows the desired state.
func TestRoutes_09_OrphansGoOnceTheWishIsKnown(t *testing.T) {
	l := newSystem(t)
	orphan := netroute.Route{Key: netroute.NewKey(30, netip.MustParsePrefix("172.29.0.0/16"), 0), Type: netroute.Unicast, Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("10.0.1.1")}}}
	if err := l.kernel.Add(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	l.api.remove(t, "nodes", nodeName) // this node's object is unknown
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.until("the agent to say what it waits for", func() error {
		if w := l.agent.Summary().Waiting; !strings.Contains(w, "the cloud has not sent this Node") {
			return fmt.Errorf("it says %q", w)
		}
		return nil
	})
	if got := l.routes(); len(got) != 1 {
		t.Fatalf("touched before anything was known: %q", got)
	}
	l.api.node(t, "node 1", map[string]string{})
	l.have("172.20.0.0/16")
}

// The link to the cloud uses a tunnel whose other end is not the cloud's address: no calculation
// can show that a route for that end cuts it.
func TestRoutes_20_CutsTheLinkAndIsRolledBack(t *testing.T) {
	for name, more := range map[string]int{"alone": 0, "among others": 5} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			l.tune = func(c *route.Config) { c.ProbeTimeout = time.Second }
			l.start(true)
			l.hub.cloud = "172.21.0.1" // an address that the link really needs
			l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
			l.reported("fine", v1alpha1.RouteApplied, 1)
			for i := range more {
				l.api.route(t, fmt.Sprint("other", i), spec(fmt.Sprintf("172.28.%d.0/24", i), "10.0.1.1"))
			}
			l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99")) // there is no such router
			e := l.reported("evil", v1alpha1.RouteRolledBack, 1)
			if !strings.Contains(e.Message, "the cloud does not answer any more") {
				t.Errorf("message: %s", e.Message)
			}
			for i := range more {
				l.reported(fmt.Sprint("other", i), v1alpha1.RouteApplied, 1)
			}
			l.reach("172.21.0.1")
			for _, r := range l.routes() {
				if strings.HasPrefix(r, "172.21") {
					t.Errorf("still there: %s", r)
				}
			}
			// Corrected by the administrator, it is retried.
			l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.1"))
			l.reported("evil", v1alpha1.RouteApplied, 2)
			l.reach("172.21.0.1")
		})
	}
}

// The link that a route cut is closed, and has to be dialled again once the route is removed: until
// then every request fails at once. That does not clear the route.
func TestRoutes_20_RolledBackThoughTheLinkHasToBeDialledAgain(t *testing.T) {
	for name, back := range map[string]bool{"it comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			l.tune = func(c *route.Config) { c.ProbeTimeout = time.Second }
			l.start(true)
			l.hub.cloud = "172.21.0.1"
			l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
			l.reported("fine", v1alpha1.RouteApplied, 1)
			l.hub.fragile.Store(true)
			l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99"))
			l.until("the link to be given up", func() error {
				if !l.hub.dead.Load() {
					return errors.New("it is up")
				}
				return nil
			})
			if back {
				l.until("the route to be taken back", func() error { return l.count(1) })
				asked := l.hub.asked.Load() // every half second, for longer than it may be silent after a change: a back-off
				l.until("more questions", func() error {
					if n := l.hub.asked.Load() - asked; n < 3 {
						return fmt.Errorf("%d came", n)
					}
					return nil
				})
				l.hub.dead.Store(false)
			}
			e := l.reported("evil", v1alpha1.RouteRolledBack, 1)
			if !strings.Contains(e.Message, "the cloud does not answer any more") {
				t.Errorf("message: %s", e.Message)
			}
			l.have("172.20.0.0/16")
			// A device that restarts without a link, and so can't watch the effect, does not try
			// it.
			l.stop()
			l.hub.fragile.Store(false)
			l.start(false)
			l.api.route(t, "fine", spec("172.20.0.0/17", "10.0.1.1"))
			l.reported("fine", v1alpha1.RouteApplied, 2)
			l.have("172.20.0.0/17")
		})
	}
}

// failing is a kernel whose watch fails when asked to.
type failing struct {
	*netroute.Driver
	fail chan struct{}
}

func (k failing) Watch(ctx context.Context, started func(), handle func(netroute.Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-k.fail:
			cancel(errors.New("the watch failed"))
		case <-ctx.Done():
		}
	}()
	if err := k.Driver.Watch(ctx, started, handle); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// A module that failed and was started again in the middle of a session knows that the link is up:
// its routes are watched by the safety net as before.
func TestRoutes_20_RestartedInMidSessionStillWatches(t *testing.T) {
	l := newSystem(t)
	kernel := failing{l.kernel, make(chan struct{})}
	var opened atomic.Int32
	l.tune = func(c *route.Config) {
		c.ProbeTimeout = time.Second
		c.Open = func(context.Context) (route.Kernel, func(), error) {
			opened.Add(1)
			return kernel, func() {}, nil
		}
	}
	l.start(true)
	l.hub.cloud = "172.21.0.1"
	l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("fine", v1alpha1.RouteApplied, 1)
	kernel.fail <- struct{}{}
	l.until("the module to be started again", func() error {
		if n := opened.Load(); n != 2 {
			return fmt.Errorf("%d runs", n)
		}
		return nil
	})
	l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99")) // there is no such router
	l.reported("evil", v1alpha1.RouteRolledBack, 1)
	l.reach("172.21.0.1")
}
