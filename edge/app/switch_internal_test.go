package app

import (
	"context"
	"errors"
	"testing"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// kept is a memory of its own.
type kept map[string][]byte

func (k kept) Load() (map[string][]byte, error) { return k, nil }
func (k kept) Save(_ context.Context, changes map[string][]byte) error {
	for key, v := range changes {
		k[key] = v
	}
	return nil
}

// said makes the cloud describe the device's site, and returns once that is known.
func said(t *testing.T, h *peers.Holder, podSubnets bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := h.Changed()
	handle, run := h.Attach(linkstate.Link{}, func(context.Context, message.Message) error { return nil })
	go run(ctx)
	p := &topicpb.Site{Name: "plant", PodNetwork: "Auto", PodSubnets: podSubnets, Members: []*topicpb.SiteMember{{Node: "edge1"}}}
	if err := handle(ctx, topic.Site.New(message.Resource{Name: "edge1"}, p)); err != nil {
		t.Fatal(err)
	}
	<-changed
}

// auto in the file follows the NodePool; true and false override it.
func TestApp_switches(t *testing.T) {
	c := edgeconfig.Default()
	site := peers.New("edge1", kept{})
	expect := func(when string, want switched) {
		t.Helper()
		if got := switches(c, site); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	expect("a site that is not known", switched{})
	said(t, site, false)
	expect("a pool without podSubnets", switched{})
	said(t, site, true)
	expect("a pool with podSubnets", switched{true, true, true})
	c.Modules.Services.Enable = edgeconfig.Off
	expect("services off in the file", switched{true, false, true})
	said(t, site, false)
	c.Modules.Names.Enable = edgeconfig.On
	expect("names on in the file", switched{false, false, true})
	if !followsPool(c) {
		t.Error("site is auto, and the pool is not followed")
	}
	c.Modules.Site.Enable = edgeconfig.Off
	if followsPool(c) {
		t.Error("nothing is auto, and the pool is followed")
	}
	c.Modules.Site.Enable, c.Modules.EdgeAPI.Enable = edgeconfig.Auto, false
	said(t, site, true)
	expect("without the API that the modules read", switched{false, false, true})
}

// edgecore ends only when the pool requires other modules.
func TestSwitchModule(t *testing.T) {
	site := peers.New("edge1", kept{})
	m := newSwitch(site)
	ended := make(chan error, 1)
	beehivetest.Run(t, nil, beehive.Entry{Module: &watched{m, ended}, Restart: beehive.Never()})
	said(t, site, false) // no change
	select {
	case err := <-ended:
		t.Fatalf("it ended although nothing is to be switched: %v", err)
	default:
	}
	said(t, site, true)
	if err := <-ended; !errors.Is(err, errSwitched) {
		t.Fatalf("it ended with %v", err)
	}
}

// A change that a full disk does not take does not end edgecore: the next one would begin with the
// previous state, receive the change and end again.
func TestSwitchModule_fullDisk(t *testing.T) {
	memory := &filling{kept: kept{}}
	site := peers.New("edge1", memory)
	said(t, site, false)
	m := newSwitch(site)
	ended := make(chan error, 1)
	beehivetest.Run(t, nil, beehive.Entry{Module: &watched{m, ended}, Restart: beehive.Never()})
	memory.full = true
	said(t, site, true)
	if !site.Current().PodSubnets {
		t.Error("what the cloud said last does not count")
	}
	next := peers.New("edge1", memory)
	if err := next.Load(); err != nil {
		t.Fatal(err)
	}
	if ours, its := switches(m.config, site), switches(m.config, next); its != ours {
		t.Errorf("this edgecore goes by %+v, the next one by %+v", ours, its)
	}
	memory.full = false
	said(t, site, true)
	if err := <-ended; !errors.Is(err, errSwitched) {
		t.Fatalf("it ended with %v", err)
	}
}

// newSwitch is the module of an edgecore that starts now.
func newSwitch(site *peers.Holder) *switchModule {
	c := edgeconfig.Default()
	return &switchModule{c, site, switches(c, site)}
}

// filling is a memory that can be full.
type filling struct {
	kept
	full bool
}

func (f *filling) Save(ctx context.Context, changes map[string][]byte) error {
	if f.full {
		return store.ErrFull
	}
	return f.kept.Save(ctx, changes)
}

// watched records how the module ended.
type watched struct {
	*switchModule
	ended chan<- error
}

func (w *watched) Run(ctx context.Context, port *beehive.Port) error {
	err := w.switchModule.Run(ctx, port)
	w.ended <- err
	<-ctx.Done() // the bus of the test keeps running
	return nil
}
