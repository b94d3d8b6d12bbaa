// Package hubtest has fake sessions of nodes for the tests of cloudhub's parts: a part sees a
// cloudhub.Session, and there is no link.
//
// A test embeds Session in its own type for the other end, and answers by a Send of its own; the
// default Send keeps the results of writes. It owns those and the charges, and never refuses. Every
// method may be called by any goroutine; the fields are set before the session is attached.
package hubtest

import (
	"cmp"
	"context"
	"crypto/x509"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

var _ cloudhub.Session = (*Session)(nil)

// Session is a node's session. Its zero value is one of a node without a name.
type Session struct {
	Name     types.NodeName
	Number   uint64        // the epoch; 0: 1
	Every    time.Duration // the keepalive; 0: 10 s
	Features []string      // that the node lists
	Hardware string        // the machine
	Peer     *x509.Certificate

	mu      sync.Mutex
	charged time.Duration
	results map[uint64]*topicpb.WriteResult // as many as the test writes
}

// Node is Name.
func (s *Session) Node() types.NodeName { return s.Name }

// Epoch is Number.
func (s *Session) Epoch() uint64 { return cmp.Or(s.Number, 1) }

// Supports looks a feature up in Features.
func (s *Session) Supports(feature string) bool { return slices.Contains(s.Features, feature) }

// Keepalive is Every.
func (s *Session) Keepalive() time.Duration { return cmp.Or(s.Every, 10*time.Second) }

// Info has Peer alone: there is no link.
func (s *Session) Info() link.Info { return link.Info{Peer: s.Peer} }

// Version is empty: unknown.
func (*Session) Version() string { return "" }

// Machine is Hardware.
func (s *Session) Machine() string { return s.Hardware }

// Close has no effect: a test ends a session by the context that its parts are served with.
func (*Session) Close(link.CloseCode, string) {}

// Done is never closed, for the same reason.
func (*Session) Done() <-chan struct{} { return nil }

// Charge keeps the sum.
func (s *Session) Charge(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charged += d
}

// Charged is the sum of the charges.
func (s *Session) Charged() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.charged
}

// Send keeps the result of a write.
func (s *Session) Send(_ context.Context, m message.Message) error {
	r, ok := m.Content.(*topicpb.WriteResult)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results == nil {
		s.results = map[uint64]*topicpb.WriteResult{}
	}
	s.results[r.Id] = r
	return nil
}

// Result returns that of a write; nil until it is there.
func (s *Session) Result(id uint64) *topicpb.WriteResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results[id]
}

// Answered counts the writes that have a result.
func (s *Session) Answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.results)
}
