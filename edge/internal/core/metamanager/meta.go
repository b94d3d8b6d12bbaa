// Package metamanager holds the device's copy of cluster state, and the writes and reports for the
// cloud.
//
// It owns the order of all changes; the packages below it own the parts: view (objects, interests,
// watches), outbox (the writes that wait), event (the newest events), token (kept tokens) and lease
// (the kubelet's Lease). Only it knows whether the cloud is reachable. It refuses to answer from a
// set that was never completely delivered: a wrong empty list makes a kubelet kill every pod.
//
// One goroutine, the core, decides every change, a batch at a time: worked out against the view and
// the outbox, written to the store in one transaction, then shown. So no change is visible,
// acknowledged or sent before it is on the disk. Readers share a lock with the core and never wait
// for the disk. Every exported method may be called by many goroutines at once; before Run is ready
// and after it has ended they answer 503. It is above 2,500 lines because each of its files is a
// part of that one transaction, or reads the view of it.
//
// How to read it, from the bottom: batch.go and core.go are the transaction, manager.go the shared
// state, inbox.go the messages received over the link. These are used by delivery from the cloud
// (deliver.go, apply.go), writes to the cloud (write.go, event.go, report.go, send.go), requests
// that only the cloud can answer (proxy.go), and the pods that run again on an island (restart.go).
// meta.go runs it all.
package metamanager

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/event"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/lease"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/putoff"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/token"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// New returns an empty Manager.
func New(config Config) *Manager {
	config.setDefaults()
	m := &Manager{
		config: config, requests: make(chan *proposal, 256), renewed: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		inbox:  &inbox{wake: make(chan struct{}, 1), most: min(gatherMost, config.Limits.EventWindow/2)},
		outbox: outbox.New(config.Limits.outbox()), sender: outbox.NewSender(), putOff: putoff.New(),
		lease: lease.New(config.NodeName), events: event.New(event.Limits{Events: config.Limits.RingEvents, Bytes: config.Limits.RingBytes}),
	}
	m.inbox.reset()
	m.view = view.New(view.Config{
		Node: config.NodeName, Limits: config.Limits.view(), InterestsChanged: m.sender.WantInterests,
		Want: func(ctx context.Context, s object.Selection, pinned bool) error {
			return m.do(ctx, func(b *batch) error { return b.view.Want(s, pinned) })
		},
	})
	m.tokens = token.New(token.Config{
		Store: config.Store, Limit: config.Limits.Answers, Ask: m.passThrough, Linked: m.Linked,
		Commit: func(ctx context.Context, do func(token.Batch) error) error {
			return m.do(ctx, func(b *batch) error { return do(b) })
		},
	})
	return m
}

// Topics lists the messages that the module handles.
func (m *Manager) Topics() []message.Key { return m.mux().Keys() }

// Run serves until ctx ends.
func (m *Manager) Run(ctx context.Context, p *beehive.Port) error { return m.run(ctx, p) }

func (m *Manager) run(ctx context.Context, p port) error {
	if err := m.load(ctx); err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	m.mu.Lock()
	m.port = p
	m.mu.Unlock()
	m.view.Open()
	defer m.view.Close()

	// Messages of an open session to an earlier run are lost with that run: a new session sends
	// them again.
	if err := p.Send(ctx, m.config.Hub, linkstate.Renew.New(message.Resource{}, struct{}{})); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Failed to request a new session from the hub", "err", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.core(ctx) })
	g.Go(func() error { return m.takeIn(ctx) })
	g.Go(func() error { return m.send(ctx, p) })
	g.Go(func() error { return m.upkeep(ctx) })
	g.Go(func() error { return m.restartPods(ctx) })
	g.Go(func() error { return m.tokens.Refresh(ctx, m.renewed) })
	g.Go(func() error { return m.receive(ctx, p) })
	return g.Wait()
}

// receive dispatches each message from the bus to its handler. No handler waits for the disk or for
// the link.
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
			klog.FromContext(ctx).Error(err, "Failed to handle a message", "topic", msg.Key(), "source", msg.Route.Source)
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
		message.Handle(mux, t, func(ctx context.Context, _ message.Message, r *topicpb.WriteResult) error {
			if !m.putOff.Put(ctx, r) {
				m.inbox.putResult(r, event)
			}
			return nil
		})
	}
	return mux
}

// handleUp opens a session: writes in flight on an older link are sent again, and the cloud
// receives this device's interests and digests.
func (m *Manager) handleUp(ctx context.Context, _ message.Message, up linkstate.Link) error {
	m.inbox.reset()
	m.putOff.Forget()
	m.sender.Reset()
	if err := m.do(ctx, func(b *batch) error { // no write to the disk: a full one must not block the link
		if link, linked := b.view.Link(); linked && up.Epoch < link.Epoch {
			return nil
		}
		b.view.SetLink(up, true)
		b.After(func() {
			m.outbox.Restart()
			m.sender.WantInterests()
			m.wakeRestarts()
			select {
			case m.renewed <- struct{}{}:
			default:
			}
		})
		return nil
	}); err != nil {
		return err
	}
	return m.do(ctx, m.reportDropped)
}

func (m *Manager) handleDown(ctx context.Context, _ message.Message, down linkstate.Loss) error {
	if down.Epoch < m.view.Link().Epoch {
		return nil
	}
	m.inbox.reset()
	m.putOff.Forget()
	m.sender.Reset()
	return m.do(ctx, func(b *batch) error {
		link, _ := b.view.Link()
		b.view.SetLink(link, false)
		b.After(func() {
			m.sender.Reset()
			m.outbox.Restart()
		})
		return nil
	})
}

// StatusOf returns the status of a store that no Manager uses.
func StatusOf(s *store.Store) (Status, error) {
	m := New(Config{Store: s})
	if err := m.load(context.Background()); err != nil {
		return Status{}, err
	}
	return m.Status(), nil
}

// HoldsToken reports whether the answer to such a request of the kubelet for a token is kept.
func (m *Manager) HoldsToken(namespace, serviceAccount string, spec authenticationv1.TokenRequestSpec) bool {
	return m.tokens.Holds(namespace, serviceAccount, spec)
}

// EventsOf returns the Events that a store holds that no Manager runs on, the oldest first.
func EventsOf(s *store.Store) (all []*corev1.Event, err error) {
	err = s.View(func(tx *store.Tx) error {
		stored, err := event.Read(tx)
		if err != nil {
			return err
		}
		for _, kept := range stored {
			o, err := object.DecodeRaw(kept.Raw)
			if e, ok := o.(*corev1.Event); err == nil && ok {
				all = append(all, e)
			}
		}
		return nil
	})
	return all, err
}

// All returns the objects of a resource that the device holds, whether or not their set is whole.
func (m *Manager) All(resource schema.GroupVersionResource) []object.Object {
	return m.view.All(resource)
}

// HeldIn returns the objects of a resource that a store holds that no Manager runs on.
func HeldIn(s *store.Store, resource schema.GroupVersionResource) ([]object.Object, error) {
	m := New(Config{Store: s})
	if err := m.load(context.Background()); err != nil {
		return nil, err
	}
	return m.view.All(resource), nil
}
