package link

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/skerry-io/skerry/common/topic"
)

// Framing is the version of the encoding of messages on a link. It does not change with the version
// of the protocol (package protocol), so ends without a common protocol version can still connect.
const Framing = 2

// A message travels as one frame or, if it is long, as several, between which frames of other
// classes may pass:
//
//	byte 0      bits 0-2: class; bits 3-4: kind; bits 5-7: zero
//	bytes 1-2   length of the frame's data, big endian, 1 to MaxFrame
//	bytes 3-6   of kind first only: length of the whole message, big endian
//	data
//
// Frames of one class stay in order, so a message needs no number.
const (
	frameWhole = 0 << 3 // a message in one frame
	frameFirst = 1 << 3 // the first frame of several
	frameMore  = 2 << 3 // each other frame of several

	classMask = 7
	kindMask  = 3 << 3

	headSize      = 3
	firstHeadSize = headSize + 4

	// MaxFrame is the longest data of a frame.
	MaxFrame = 16 << 10
	// MaxBatch is the most that one Write of a Carrier carries.
	MaxBatch = firstHeadSize + MaxFrame
)

// appendFrame appends the next frame of a message of which sent bytes have gone already, no longer
// than room, and returns how many have gone then.
func appendFrame(b []byte, class topic.Class, data []byte, sent, room int) ([]byte, int) {
	kind, head := frameMore, headSize
	switch {
	case sent == 0 && headSize+len(data) <= min(room, headSize+MaxFrame):
		kind = frameWhole
	case sent == 0:
		kind, head = frameFirst, firstHeadSize
	}
	n := min(room-head, MaxFrame, len(data)-sent)
	b = append(b, byte(kind)|byte(class))
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if kind == frameFirst {
		b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	}
	return append(b, data[sent:sent+n]...), sent + n
}

// assembly is the room for messages longer than a frame, from their begin until they are received.
// It is shared by all streams of a link.
type assembly struct {
	room  *semaphore.Weighted
	bound int
	wait  bool // for messages that others have begun, instead of refusing: streams that don't wait for each other make progress without it

	mu    sync.Mutex
	begun int                 // bytes of those that have not ended
	taken [topic.Classes]bool // the classes that have a stream of their own
}

func newAssembly(bound int, wait bool) *assembly {
	return &assembly{room: semaphore.NewWeighted(int64(bound)), bound: bound, wait: wait}
}

// claim gives a class to the stream that asks first.
func (a *assembly) claim(class topic.Class) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken[class] {
		return refuse(CloseProtocol, "a second stream of class %s", class)
	}
	a.taken[class] = true
	return nil
}

// begin takes the room of a message.
func (a *assembly) begin(ctx context.Context, n int) error {
	a.mu.Lock()
	a.begun += n
	over := a.begun > a.bound && !a.wait
	a.mu.Unlock()
	if over {
		a.end(n)
		return refuse(CloseTooLarge, "too many messages have begun and not ended")
	}
	// Messages under way fit, so those that it waits for are complete and will be received.
	if err := a.room.Acquire(ctx, int64(n)); err != nil {
		a.end(n)
		return err
	}
	return nil
}

// end reports that a message is no longer on its way. It has its room until release.
func (a *assembly) end(n int) {
	a.mu.Lock()
	a.begun -= n
	a.mu.Unlock()
}

func (a *assembly) release(n int) { a.room.Release(int64(n)) }

// assembler puts the frames of one stream together. It takes memory only for lengths within the
// bounds, and for a long message only as its bytes come.
type assembler struct {
	config   *Config
	assembly *assembly
	lanes    bool // all frames of the stream are of one class

	partial [topic.Classes]partial
	lane    topic.Class // valid once begun
	begun   bool
}

type partial struct {
	data  []byte
	total int // 0: no message has begun
}

// next reads frames up to the end of the next message. held is its share of the assembly's room,
// the caller's to release.
func (a *assembler) next(ctx context.Context, r io.Reader) (class topic.Class, data []byte, held int, err error) {
	var head [firstHeadSize]byte
	for {
		if _, err := io.ReadFull(r, head[:headSize]); err != nil {
			return 0, nil, 0, err
		}
		kind, length := head[0]&kindMask, int(binary.BigEndian.Uint16(head[1:]))
		class = topic.Class(head[0] & classMask)
		if head[0]&^(classMask|kindMask) != 0 || kind == kindMask || class >= topic.Classes {
			return 0, nil, 0, refuse(CloseProtocol, "byte %#02x begins no frame", head[0])
		}
		if length == 0 {
			return 0, nil, 0, refuse(CloseProtocol, "empty frame")
		}
		if length > MaxFrame {
			return 0, nil, 0, refuse(CloseTooLarge, "frame of %d bytes, the bound is %d", length, MaxFrame)
		}
		switch {
		case !a.lanes:
		case !a.begun:
			if err := a.assembly.claim(class); err != nil {
				return 0, nil, 0, err
			}
			a.lane, a.begun = class, true
		case class != a.lane:
			return 0, nil, 0, refuse(CloseProtocol, "frame of class %s in the stream of class %s", class, a.lane)
		}

		p := &a.partial[class]
		if (kind == frameMore) != (p.total != 0) {
			return 0, nil, 0, refuse(CloseProtocol, "frame of class %s is out of turn", class)
		}
		bound := maxWire(a.config.maxReceive(), class == topic.Urgent)
		switch kind {
		case frameWhole:
			if length > bound {
				return 0, nil, 0, refuse(CloseTooLarge, "message of %d bytes, the bound is %d", length, bound)
			}
			data := make([]byte, length)
			_, err := io.ReadFull(r, data)
			return class, data, 0, err
		case frameFirst:
			if _, err := io.ReadFull(r, head[headSize:]); err != nil {
				return 0, nil, 0, err
			}
			total := int(binary.BigEndian.Uint32(head[headSize:]))
			if total > bound {
				return 0, nil, 0, refuse(CloseTooLarge, "message of %d bytes, the bound is %d", total, bound)
			}
			if total <= length {
				return 0, nil, 0, refuse(CloseProtocol, "message of %d bytes begins with a frame of %d", total, length)
			}
			if class != topic.Urgent {
				if err := a.assembly.begin(ctx, total); err != nil {
					return 0, nil, 0, err
				}
			}
			p.total = total
		}
		if err := p.read(r, length); err != nil {
			return 0, nil, 0, err
		}
		if len(p.data) == p.total {
			data := p.data
			*p = partial{}
			if class == topic.Urgent {
				return class, data, 0, nil
			}
			a.assembly.end(len(data))
			return class, data, len(data), nil
		}
	}
}

// read appends n bytes, in a buffer that grows as the message does.
func (p *partial) read(r io.Reader, n int) error {
	have := len(p.data)
	if have+n > p.total {
		return refuse(CloseProtocol, "frames of %d bytes for a message of %d", have+n, p.total)
	}
	if have+n > cap(p.data) {
		p.data = append(make([]byte, 0, min(p.total, max(have+n, 2*cap(p.data)))), p.data...)
	}
	p.data = p.data[:have+n]
	_, err := io.ReadFull(r, p.data[have:])
	return err
}

// drop forgets the received part of a message.
func (a *assembler) drop(class topic.Class) {
	p := &a.partial[class]
	if p.total != 0 && class != topic.Urgent {
		a.assembly.end(p.total)
		a.assembly.release(p.total)
	}
	*p = partial{}
}

// close forgets everything. A stream that ends within a message leaves no room taken.
func (a *assembler) close() {
	for class := range a.partial {
		a.drop(topic.Class(class))
	}
}
