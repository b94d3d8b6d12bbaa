package services_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/site/services"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// disk is a memory on a disk that can be full.
type disk struct {
	mu    sync.Mutex
	kept  map[string][]byte
	full  bool
	saves int
}

func (d *disk) Load() (map[string][]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.kept), nil
}

func (d *disk) Save(_ context.Context, changes map[string][]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return store.ErrFull
	}
	d.saves++
	for key, value := range changes {
		if d.kept[key] = value; value == nil {
			delete(d.kept, key)
		}
	}
	return nil
}

func (d *disk) written() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saves
}

func (d *disk) set(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// proxy is a driver of one proxy that writes no rules.
type proxy struct {
	kubeproxy.Proxy // methods that the test does not call
	disk            *disk
	fails           atomic.Bool // the first time it is opened
	opened          atomic.Int32
	unowned         atomic.Int32 // how often it was opened while the store did not have that rules may be ours
	services        atomic.Int32
	looping         atomic.Bool
}

func (p *proxy) Open(context.Context) (kubeproxy.Proxy, string, error) {
	p.opened.Add(1)
	if ours, err := services.Owns(p.disk); err != nil || !ours {
		p.unowned.Add(1)
	}
	if p.fails.Swap(false) {
		return nil, "", errors.New("no nftables")
	}
	return p, kubeproxy.NFTables, nil
}

func (p *proxy) Clear(context.Context) error            { return nil }
func (p *proxy) ResetTCP(context.Context) (bool, error) { return true, nil }
func (p *proxy) OnServiceAdd(*corev1.Service)           { p.services.Add(1) }
func (p *proxy) OnServiceSynced()                       {}
func (p *proxy) OnEndpointSlicesSynced()                {}
func (p *proxy) OnTopologyChange(map[string]string)     {}
func (p *proxy) SyncLoop()                              { p.looping.Store(true) }

// The ownership of rules is stored before there are any. It is not written twice, and a full disk
// does not disable Services: the proxy is opened once, and the ownership is stored when there is
// space.
func TestBegin(t *testing.T) {
	owned := map[string][]byte{"rules": []byte("nftables")}
	for name, test := range map[string]struct {
		kept          map[string][]byte
		full          bool
		fails         bool // at first, to open
		unowned       int32
		saves, opened int
	}{
		"the first run":             {opened: 1, saves: 1},
		"a restart":                 {kept: owned, opened: 1},
		"a restart on a full disk":  {kept: owned, full: true, opened: 1},
		"a full disk":               {full: true, opened: 1, saves: 1, unowned: 1},
		"the kernel refuses it":     {fails: true, opened: 2, saves: 1},
		"it refuses on a full disk": {full: true, fails: true, opened: 2, saves: 1, unowned: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := agenttest.NewAPI()
				api.Put(t, "nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "edge1"}})
				api.Put(t, "services", &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
				corrected := make(chan struct{})
				close(corrected)
				view, err := serviceview.New(api.Config(), corrected)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { view.Follow(ctx) })
				defer func() { cancel(); running.Wait() }()

				d := &disk{kept: map[string][]byte{}, full: test.full}
				maps.Copy(d.kept, test.kept)
				p := &proxy{disk: d}
				p.fails.Store(test.fails)
				m := services.New(services.Config{
					NodeName: "edge1", Enable: true, API: api.Config(), View: view, Driver: p, Memory: d, Site: func() string { return "" },
				})
				beehivetest.Run(t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{Module: m, Groups: []message.Group{linkstate.Agents}, Restart: beehive.Never()})
				time.Sleep(10 * time.Minute)
				if !p.looping.Load() || p.services.Load() != 1 || m.State().Problem != "" {
					t.Errorf("the proxy runs: %t, with %d Services; the agent says %q", p.looping.Load(), p.services.Load(), m.State().Problem)
				}
				d.set(false)
				time.Sleep(10 * time.Minute)
				if ours, err := services.Owns(d); err != nil || !ours {
					t.Errorf("the store does not say that rules are ours: %v", err)
				}
				if p.opened.Load() != int32(test.opened) || p.unowned.Load() != test.unowned || d.written() != test.saves {
					t.Errorf("opened %d times, of which the store did not know of %d, and written %d times; want %d, %d and %d",
						p.opened.Load(), p.unowned.Load(), d.written(), test.opened, test.unowned, test.saves)
				}
			})
		})
	}
}
