package link

import (
	"time"

	"github.com/skerry-io/skerry/common/topic"
)

// Count counts messages and their bytes on the wire, without the transport's overhead.
type Count struct{ Messages, Bytes uint64 }

// Stats count the messages of a link.
type Stats struct {
	Sent, Received [topic.Classes]Count
	Waiting        [topic.Classes]int // messages that wait to be sent
	LastHeard      time.Time          // when the peer sent, or with Info.Acks acknowledged, anything last
}

// Wire is the bytes that a link took on its way, with the headers of Ethernet, IP and the layers
// above, acknowledgements and packets that were sent again.
type Wire struct{ Sent, Received uint64 }

// Wired is a Conn, and a Carrier, that may count its bytes on the wire; ok is false where it does
// not.
type Wired interface {
	Wire() (w Wire, ok bool)
}

// Meter is a Conn that counts. Those of this package are.
type Meter interface{ Stats() Stats }

func (s *Stats) sent(done [topic.Classes]written) {
	for class, w := range done {
		s.Sent[class].Messages += uint64(w.messages)
		s.Sent[class].Bytes += uint64(w.bytes)
	}
}

func (s *Stats) received(class topic.Class, bytes int) {
	s.Received[class].Messages++
	s.Received[class].Bytes += uint64(bytes)
}

// Wire implements Wired.
func (c *conn) Wire() (Wire, bool) {
	if w, ok := c.carrier.(Wired); ok {
		return w.Wire()
	}
	return Wire{}, false
}

// Stats returns the counts as they are now.
func (c *conn) Stats() Stats {
	heard := c.carrier.LastHeard()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	if s.LastHeard = c.lastHeard; heard.After(s.LastHeard) {
		s.LastHeard = heard
	}
	for class, q := range c.out {
		s.Waiting[class] = len(q.waiting)
	}
	return s
}
