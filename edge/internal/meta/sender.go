package meta

import (
	"sync"

	"github.com/skerry-io/skerry/beehive/message"
)

// sender says to the hub what goes up. What waits here is bounded: one acknowledgement, one set of interests, as many inventories as the cloud has
// asked for, and the window of writes. What is lost with a link is sent again on the next.
type sender struct {
	wake chan struct{}

	mu          sync.Mutex // guards what follows
	ack         *message.Message
	interests   bool
	inventories []message.Message
	writes      []outgoing
}

type outgoing struct {
	target target
	entry  *entry
}

func (s *sender) put(do func()) {
	s.mu.Lock()
	do()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sender) putAck(m message.Message) { s.put(func() { s.ack = &m }) }

func (s *sender) wantInterests() { s.put(func() { s.interests = true }) }

func (s *sender) putInventory(m message.Message) {
	s.put(func() { s.inventories = append(s.inventories, m) })
}

func (s *sender) putWrite(t target, e *entry) {
	s.put(func() { s.writes = append(s.writes, outgoing{t, e}) })
}

// reset forgets what was for a link that has ended.
func (s *sender) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ack, s.interests, s.inventories, s.writes = nil, false, nil, nil
}
