package site

import (
	"bytes"
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// settle is how long further changes are waited for before sessions are notified: devices join and
// leave in waves.
const settle = 300 * time.Millisecond

// Sites sends each session its device's site. It is a cloudhub.Part.
type Sites struct {
	revoked func() Revocations
	devices *kube.Mirror[Device]
	pools   *kube.Mirror[v1alpha1.NodePool]
	// onChange is set before Run; nil: no callback.
	onChange func()
	changed  chan struct{} // one waiting look covers all changes before it

	mu       sync.Mutex
	index    *Index // nil until all is known that a Site is made of
	sessions map[*session]struct{}
}

// New makes a Sites. revoked is called at each run.
func New(revoked func() Revocations) *Sites {
	return &Sites{
		revoked: revoked, devices: kube.NewMirror(readDevice, sameDevice), pools: kube.NewMirror(readPool, samePool), changed: make(chan struct{}, 1),
		sessions: map[*session]struct{}{},
	}
}

// Changed asks for another look, as when revocations have changed.
func (s *Sites) Changed() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run follows the nodes and pools until ctx ends.
func (s *Sites) Run(ctx context.Context, nodes, pools *kube.Store) error {
	defer s.devices.Follow(nodes, s.Changed)()
	defer s.pools.Follow(pools, s.Changed)()
	for _, store := range []*kube.Store{nodes, pools} {
		select {
		case <-store.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	s.Changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
		if err := s.look(); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to read an object, not notifying devices of changes of their sites")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

// look has every session compare its device's digest with the current one.
func (s *Sites) look() error {
	devices, err := s.devices.List()
	if err != nil {
		return err
	}
	pools, err := s.pools.List()
	if err != nil {
		return err
	}
	index := NewIndex(devices, pools)
	s.mu.Lock()
	moved := !index.sameSites(s.index)
	s.index = index
	for one := range s.sessions {
		one.loop.Signal()
	}
	s.mu.Unlock()
	if moved && s.onChange != nil {
		s.onChange()
	}
	return nil
}

// session is one device's. It never sends before the device has asked: one of an earlier version
// does not have the topic.
type session struct {
	sites *Sites
	link  cloudhub.Session
	loop  *cloudhub.Loop

	mu    sync.Mutex
	asked bool
	has   []byte // digest of the device's copy
}

// Attach implements cloudhub.Part.
func (s *Sites) Attach(l cloudhub.Session, mux *message.Mux) cloudhub.Service {
	one := &session{sites: s, link: l}
	one.loop = cloudhub.NewLoop(one.tell)
	message.Handle(mux, topic.SiteRequest, func(_ context.Context, _ message.Message, r *topicpb.SiteRequest) error {
		one.mu.Lock()
		one.asked, one.has = true, bytes.Clone(r.GetDigest())
		one.mu.Unlock()
		one.loop.Signal()
		return nil
	})
	return one
}

// Start implements cloudhub.Service.
func (one *session) Start(ctx context.Context, fail func(error)) {
	one.sites.mu.Lock()
	one.sites.sessions[one] = struct{}{}
	one.sites.mu.Unlock()
	one.loop.Start(ctx, fail)
}

// Stop implements cloudhub.Service.
func (one *session) Stop() {
	one.sites.mu.Lock()
	delete(one.sites.sessions, one)
	one.sites.mu.Unlock()
	one.loop.Stop()
}

// tell sends the device its site if its copy differs.
func (one *session) tell(ctx context.Context) error {
	one.sites.mu.Lock()
	index := one.sites.index
	one.sites.mu.Unlock()
	one.mu.Lock()
	asked, has := one.asked, one.has
	one.mu.Unlock()
	if index == nil || !asked {
		return nil
	}
	now := index.Site(string(one.link.Node()), one.sites.revoked())
	if bytes.Equal(now.GetDigest(), has) {
		return nil
	}
	if err := one.link.Send(ctx, topic.Site.New(message.Resource{Name: string(one.link.Node())}, now)); err != nil {
		return err
	}
	one.mu.Lock()
	one.has = now.GetDigest()
	one.mu.Unlock()
	return nil
}
