// Package meta is metamanager: what the device knows of the cluster, and what it still has to tell it.
//
// It owns the view (the objects held, with the writes that wait laid over them), the interests that say what is held, the outbox, the ring of
// events, the kubelet's Lease and the kept tokens. It alone knows whether there is a cloud. It refuses to answer from a set that was never wholly
// delivered: a wrong empty list makes a kubelet kill every pod.
//
// One goroutine, the core, decides every change, a batch at a time: worked out against the view, written to the store in one transaction, then
// shown. So nothing is seen, acknowledged or sent before it is on the disk. Readers share a lock with the core and never wait for the disk. Every
// exported method may be called by many goroutines at once; before Run is ready and after it has ended they answer 503.
package meta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// Name is metamanager's address on the bus.
const Name message.Name = "metamanager"

// Config says what the Manager works with.
type Config struct {
	NodeName string
	Store    *store.Store
	// ReportEvents sends events to the cloud too; without it they stay in the ring.
	ReportEvents bool
	// Hub is the module that has the link; default "edgehub".
	Hub    message.Name
	Limits Limits
	// At, when it is not nil, is told when a Point is reached, by whoever reaches it. For tests.
	At func(Point)
}

// Limits bound what a device spends. A zero value is the default.
type Limits struct {
	Interests      int           // sets that can be held; default 4,096. At the bound a new one is refused with 429
	InterestIdle   time.Duration // linked time after which a set that nobody watches is dropped; default 10 min
	SyncWait       time.Duration // how long a list or watch waits for its set; default 30 s, then 503
	RingEvents     int           // events kept for the edge API; default 1,000, the oldest go first
	RingBytes      int           // default 1 MiB
	OutboxEvents   int           // events that wait for the cloud; default 10,000, the oldest go first and are counted
	OutboxBytes    int           // of those; default 16 MiB
	ObjectEntries  int           // writes that can wait for one object and can't be merged; default 16, then 429
	Window         int           // writes under way to the cloud; default 64
	EventWindow    int           // of those, at most this many events; default 48
	HistoryChanges int           // changes of a resource that a watch can start from; default 256
	HistoryBytes   int           // of those; default 256 KiB
	WatchQueue     int           // events that wait for a slow watcher; default 1,024, then it gets 410
	Answers        int           // kept tokens; default 1,024, the oldest go first
	SettleWait     time.Duration // how long a write that passed through waits until it is seen here; default 1 s, then it is answered all the same
	RequestTimeout time.Duration // for what passes through and has no deadline; default 60 s
}

func or[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c *Config) setDefaults() {
	or(&c.Hub, "edgehub")
	l := &c.Limits
	or(&l.Interests, 4096)
	or(&l.InterestIdle, 10*time.Minute)
	or(&l.SyncWait, 30*time.Second)
	or(&l.RingEvents, 1000)
	or(&l.RingBytes, 1<<20)
	or(&l.OutboxEvents, 10_000)
	or(&l.OutboxBytes, 16<<20)
	or(&l.ObjectEntries, 16)
	or(&l.Window, 64)
	or(&l.EventWindow, 48)
	or(&l.HistoryChanges, 256)
	or(&l.HistoryBytes, 256<<10)
	or(&l.WatchQueue, 1024)
	or(&l.Answers, 1024)
	or(&l.SettleWait, time.Second)
	or(&l.RequestTimeout, time.Minute)
}

// Caller is who asks the edge API. The zero value is the device's root, which acts as the node.
type Caller struct {
	Kubelet     bool
	BearerToken string // of a ServiceAccount: what passes through is judged as that account
}

// port is what the Manager uses of its *beehive.Port.
type port interface {
	Send(ctx context.Context, to message.Name, m message.Message) error
	SendSync(ctx context.Context, to message.Name, m message.Message) (message.Message, error)
	Receive(ctx context.Context) (message.Message, error)
	Ready()
}

// Manager is metamanager.
type Manager struct {
	// Set by New, never changed.
	config   Config
	requests chan *request
	renewed  chan struct{} // one slot: a link has come up
	inbox    *inbox
	sender   *sender
	lease    *lease
	counters counters
	next     atomic.Uint64 // the newest version that was given out, shown or not

	mu        sync.RWMutex // guards what follows; only the core changes it, watchers apart
	running   bool
	port      port
	version   uint64 // the newest that was shown
	base      uint64 // the first of this run: no watch can start before it
	tables    map[schema.GroupVersionResource]*table
	interests map[uint64]*interest
	uses      map[dependency]int // what the pods held refer to
	link      linkstate.Link
	linked    bool
	answers   map[string]answerInfo

	retained map[key]struct{} // pods that stay although the cloud took them back; owned by the core
	outbox   *outbox          // owned by the core, which changes it under mu
	ring     *ring            // owned by the core
}

// New returns a Manager that holds nothing yet.
func New(config Config) *Manager {
	config.setDefaults()
	m := &Manager{config: config, requests: make(chan *request, 256), renewed: make(chan struct{}, 1), lease: &lease{}}
	m.inbox = &inbox{m: m, wake: make(chan struct{}, 1)}
	m.sender = &sender{m: m, wake: make(chan struct{}, 1)}
	m.reset()
	return m
}

// reset forgets all but the Lease: what is known is on the disk.
func (m *Manager) reset() {
	m.tables = map[schema.GroupVersionResource]*table{}
	m.interests = map[uint64]*interest{}
	m.uses = map[dependency]int{}
	m.answers = map[string]answerInfo{}
	m.outbox, m.ring, m.retained = newOutbox(), newRing(), map[key]struct{}{}
	m.link, m.linked = linkstate.Link{}, false
	m.inbox.reset()
	m.sender.reset()
}

// Name is the module's address on the bus.
func (m *Manager) Name() message.Name { return Name }

// Topics lists what the module handles.
func (m *Manager) Topics() []message.Key { return m.mux().Keys() }

// Run serves until ctx ends.
func (m *Manager) Run(ctx context.Context, p *beehive.Port) error { return m.run(ctx, p) }

func (m *Manager) run(ctx context.Context, p port) error {
	if err := m.load(ctx); err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	m.mu.Lock()
	m.port, m.running = p, true
	m.mu.Unlock()
	defer m.stop()

	// What an open session told an earlier run is lost with that run: a new session tells it again.
	if err := p.Send(ctx, m.config.Hub, linkstate.Renew.New(message.Resource{}, struct{}{})); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("The hub can't be asked for a new session", "err", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.core(ctx) })
	g.Go(func() error { return m.inbox.run(ctx) })
	g.Go(func() error { return m.sender.run(ctx, p) })
	g.Go(func() error { return m.upkeep(ctx) })
	g.Go(func() error { return m.refresh(ctx) })
	g.Go(func() error { return m.receive(ctx, p) })
	return g.Wait()
}

// stop ends every watch and wait.
func (m *Manager) stop() {
	m.mu.Lock()
	m.running, m.linked = false, false
	var watchers []*watcher
	for _, t := range m.tables {
		watchers = append(watchers, t.allWatchers()...)
	}
	for _, i := range m.interests {
		i.wakeAll()
	}
	m.mu.Unlock()
	for _, w := range watchers {
		w.end(reply.Unavailable("edgecore stops", 1))
	}
}

// receive leads each message from the bus to its handler. No handler waits for the disk or for the link.
func (m *Manager) receive(ctx context.Context, p port) error {
	mux := m.mux()
	p.Ready()
	for {
		msg, err := p.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := mux.Dispatch(ctx, msg); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A message was not understood", "topic", msg.Key(), "source", msg.Route.Source)
		}
	}
}

func (m *Manager) mux() *message.Mux {
	mux := message.NewMux()
	message.Handle(mux, linkstate.Up, m.handleUp)
	message.Handle(mux, linkstate.Down, m.handleDown)
	message.Handle(mux, topic.State, func(_ context.Context, msg message.Message, s *topicpb.State) error {
		m.inbox.putState(msg, s)
		return nil
	})
	message.Handle(mux, topic.InventoryRequest, func(_ context.Context, msg message.Message, r *topicpb.InventoryRequest) error {
		m.inbox.putInventory(msg, r)
		return nil
	})
	for _, t := range []message.Topic[*topicpb.WriteResult]{
		topic.EventResult, topic.PodStatusResult, topic.NodeStatusResult, topic.PodResult, topic.ReportResult,
	} {
		event := t.Kind == topic.EventResult.Kind
		message.Handle(mux, t, func(_ context.Context, _ message.Message, r *topicpb.WriteResult) error {
			m.inbox.putResult(r, event)
			return nil
		})
	}
	return mux
}

// handleUp opens a session: what was under way on an older link goes again, and the cloud is told what this device wants and has.
func (m *Manager) handleUp(ctx context.Context, _ message.Message, up linkstate.Link) error {
	m.inbox.reset()
	m.sender.reset()
	if err := m.do(ctx, func(b *batch) error { // nothing for the disk: a full one must not keep the link from being used
		b.after(func() {
			if m.linked && up.Epoch < m.link.Epoch {
				return
			}
			m.link, m.linked = up, true
			m.outbox.restart()
			m.sender.wantInterests()
			select {
			case m.renewed <- struct{}{}:
			default:
			}
		})
		return nil
	}); err != nil {
		return err
	}
	return m.do(ctx, m.tellDropped)
}

func (m *Manager) handleDown(ctx context.Context, _ message.Message, down linkstate.Loss) error {
	m.mu.RLock()
	old := down.Epoch < m.link.Epoch
	m.mu.RUnlock()
	if old {
		return nil
	}
	m.inbox.reset()
	m.sender.reset()
	return m.do(ctx, func(b *batch) error {
		b.after(func() {
			m.linked = false
			m.sender.reset()
			m.outbox.restart()
		})
		return nil
	})
}

// upkeep does what time asks for: it drops interests that nobody uses and writes the ring down. An idle device has nothing to write.
func (m *Manager) upkeep(ctx context.Context) error {
	const period = time.Minute
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// The ring's last events: ctx has ended, the store has not.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := m.ring.flush(last, m.config.Store); err != nil && !errors.Is(err, store.ErrClosed) {
				klog.FromContext(ctx).Error(err, "The newest events were not kept")
			}
			return nil
		case <-tick.C:
			if err := m.ring.flush(ctx, m.config.Store); err != nil {
				klog.FromContext(ctx).Error(err, "Events were not kept; they are tried again")
			}
			m.dropIdle(ctx, period)
		}
	}
}

// Linked reports whether there is a session with the cloud.
func (m *Manager) Linked() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.linked
}

// KubeletAlive reports whether the kubelet has renewed its Lease within the Lease's duration.
func (m *Manager) KubeletAlive() bool { return m.lease.alive(time.Now()) }

// Version is the newest version that can be seen.
func (m *Manager) Version() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.version
}
