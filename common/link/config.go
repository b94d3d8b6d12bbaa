package link

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/skerry-io/skerry/common/topic"
)

// Bound is how much may wait in one queue. A message that alone is above Bytes waits alone.
type Bound struct {
	Messages int
	Bytes    int
}

// Config bounds a link. Both ends should agree on MaxMessage.
type Config struct {
	// MaxMessage is the longest content that is sent, in bytes, before compression. It must be
	// within the peer's MaxReceive.
	MaxMessage int
	// MaxReceive is the longest content that is taken, in bytes, after decompression; 0:
	// MaxMessage.
	MaxReceive int
	// MaxAssembly is how many bytes of messages longer than a frame, as they are on the wire, this
	// end holds over all classes but Urgent: of those that a peer has begun and not ended, and of
	// those that wait to be received. A peer that has begun more is refused; while the latter use
	// up the quota, reading waits.
	MaxAssembly int
	// PeerAssembly is MaxAssembly of the peer; 0: that of this end.
	PeerAssembly int
	// CompressAbove is the length of content in bytes from which compression is tried;
	// negative: never.
	CompressAbove int

	// SendQueue bounds the messages that wait to be sent, for each class. A full queue holds Send
	// back. Class Stream's queue is a sixteenth of it: streams take turns to enter it, so the
	// shorter it is, the sooner a stream's turn comes.
	SendQueue Bound
	// ReceiveQueue bounds the messages that were read and not received yet, for each class. A full
	// queue stops reading: the peer is held back, and ends the link when that lasts for its
	// IdleTimeout.
	ReceiveQueue Bound

	// Keepalive is the longest silence of the end that dialled, but for a sixteenth. The other end
	// answers only as often as this end's IdleTimeout needs.
	Keepalive time.Duration
	// IdleTimeout ends the link when no byte was received, or no byte could be written, for so
	// long.
	IdleTimeout time.Duration
	// HandshakeTimeout bounds all that comes before the first message.
	HandshakeTimeout time.Duration
	// CloseTimeout bounds how long Close waits for the peer.
	CloseTimeout time.Duration
}

// envelopeRoom bounds header and route of a message.
const envelopeRoom = 4 << 10

// maxUrgent is the longest message of class Urgent: those are not counted in MaxAssembly, and so
// are never held back.
const maxUrgent = 64 << 10

// The longest content of an edge: an object at kube-apiserver is bounded by 1.5 MiB of etcd, a
// request by 3 MiB, plus its path. The memory that an edge can make cloudcore hold is bounded
// far below that of cloudcore's messages: edges are many, and believed less.
const (
	maxUp         = 3<<20 + 128<<10
	maxUpAssembly = 4 << 20
)

// OfCloud is c as the end of the cloud: it takes less than it sends.
func (c Config) OfCloud() Config {
	c.MaxReceive, c.MaxAssembly, c.PeerAssembly = maxUp, maxUpAssembly, c.MaxAssembly
	c.ReceiveQueue.Bytes /= 2
	return c
}

// OfEdge is c as the end of an edge, whose peer has a Config of OfCloud.
func (c Config) OfEdge() Config {
	c.MaxReceive, c.MaxMessage, c.PeerAssembly = c.maxReceive(), maxUp, maxUpAssembly
	return c
}

func (c Config) maxReceive() int   { return cmp.Or(c.MaxReceive, c.MaxMessage) }
func (c Config) peerAssembly() int { return cmp.Or(c.PeerAssembly, c.MaxAssembly) }

// Default is the Config of a link that works well from 100 kbit/s upwards.
func Default() Config {
	return Config{
		MaxMessage:       8 << 20,
		MaxAssembly:      16 << 20,
		CompressAbove:    256,
		SendQueue:        Bound{Messages: 128, Bytes: 1 << 20},
		ReceiveQueue:     Bound{Messages: 64, Bytes: 256 << 10},
		Keepalive:        10 * time.Second,
		IdleTimeout:      30 * time.Second,
		HandshakeTimeout: 15 * time.Second,
		CloseTimeout:     time.Second,
	}
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.MaxMessage >= 64<<10, "maxMessage: %d is below 64 KiB", c.MaxMessage)
	check(c.MaxMessage <= 1<<30, "maxMessage: %d is above 1 GiB", c.MaxMessage)
	check(c.MaxAssembly >= c.maxReceive()+envelopeRoom, "maxAssembly: %d is below maxReceive and %d for its envelope", c.MaxAssembly, envelopeRoom)
	check(c.peerAssembly() >= c.MaxMessage+envelopeRoom, "peerAssembly: %d is below maxMessage and %d for its envelope", c.peerAssembly(), envelopeRoom)
	for name, b := range map[string]Bound{"sendQueue": c.SendQueue, "receiveQueue": c.ReceiveQueue} {
		check(b.Messages > 0, "%s.messages: %d is not above 0", name, b.Messages)
		check(b.Bytes >= b.Messages, "%s.bytes: %d is below one for each message", name, b.Bytes)
	}
	check(c.Keepalive > 0, "keepalive: %v is not above 0", c.Keepalive)
	check(c.IdleTimeout >= 2*c.Keepalive, "idleTimeout: %v is below twice the keepalive of %v", c.IdleTimeout, c.Keepalive)
	check(c.HandshakeTimeout > 0, "handshakeTimeout: %v is not above 0", c.HandshakeTimeout)
	check(c.CloseTimeout > 0, "closeTimeout: %v is not above 0", c.CloseTimeout)
	return errors.Join(errs...)
}

func (c Config) sendQueue(class topic.Class) Bound {
	b := c.SendQueue
	if class == topic.Stream {
		b = Bound{Messages: max(b.Messages/16, 1), Bytes: max(b.Bytes/16, b.Messages)}
	}
	return b
}

// maxWire is the longest message of a class on the wire, with a content of at most so many bytes.
func maxWire(content int, urgent bool) int {
	if urgent {
		return maxUrgent
	}
	return content + envelopeRoom
}
