package link

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
)

// room bounds the messages of one queue: each takes its weight, and at least its share of
// Messages, so that one number keeps both bounds.
type room struct {
	*semaphore.Weighted
	bound Bound
}

func newRoom(b Bound) room { return room{semaphore.NewWeighted(int64(b.Bytes)), b} }

func (r room) weight(bytes int) int64 {
	return int64(min(max(bytes, r.bound.Bytes/r.bound.Messages, 1), r.bound.Bytes))
}

// outgoing is a message that waits to be sent.
type outgoing struct {
	data   []byte
	sent   int
	weight int64
	latest *latestKey // set where a newer message replaces this one before its first frame is sent
}

type latestKey struct {
	key      message.Key
	resource message.Resource
}

// sendQueue has the waiting messages of one class. Guarded by conn.mu, but for room.
type sendQueue struct {
	room    room
	waiting []*outgoing
	latest  map[latestKey]*outgoing // those of waiting that may be replaced
	writing bool                    // a drain runs (of this class, or of all on a shared stream)
}

// put adds m, or puts it in the place of an older one; it returns the weight that this made free.
func (q *sendQueue) put(m *outgoing) (free int64) {
	if m.latest != nil {
		if old := q.latest[*m.latest]; old != nil {
			old.data, old.weight, m.weight = m.data, m.weight, old.weight
			return m.weight
		}
		if q.latest == nil {
			q.latest = map[latestKey]*outgoing{}
		}
		q.latest[*m.latest] = m
	}
	q.waiting = append(q.waiting, m)
	return 0
}

// begin marks that a part of the first message has been taken: it can't be replaced any more.
func (q *sendQueue) begin() {
	if m := q.waiting[0]; m.latest != nil {
		delete(q.latest, *m.latest)
		m.latest = nil
	}
}

// pop removes the first message.
func (q *sendQueue) pop() *outgoing {
	m := q.waiting[0]
	q.waiting[0] = nil
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting, q.latest = nil, nil // an idle link keeps no memory
	}
	return m
}

// fill appends frames of waiting messages, the lowest first, to batch, of at most
// size bytes. It returns how many bytes and messages of each class they complete, and how much
// room there is in the queues once they are written. On a shared stream the messages that are
// under way together must fit the peer's MaxAssembly: *assembling counts them, and bound is 0
// without one.
func fill(batch []byte, size int, queues []*sendQueue, first topic.Class, assembling *int, bound int) (_ []byte, done [topic.Classes]written) {
	const least = firstHeadSize + 512 // shorter pieces of a message aren't worth their head
	for i, q := range queues {
		class := first + topic.Class(i)
		for len(q.waiting) > 0 {
			m, left := q.waiting[0], size-len(batch)
			whole := m.sent == 0 && headSize+len(m.data) <= min(size, headSize+MaxFrame)
			if len(batch) > 0 && (whole && headSize+len(m.data) > left || !whole && left < min(least, firstHeadSize+len(m.data)-m.sent)) {
				return batch, done
			}
			if counted := !whole && class != topic.Urgent && bound > 0; counted && m.sent == 0 {
				if *assembling > 0 && *assembling+len(m.data) > bound {
					break // a class above has begun a message, and ends it first
				}
				*assembling += len(m.data)
			}
			q.begin()
			before := len(batch)
			batch, m.sent = appendFrame(batch, class, m.data, m.sent, left)
			done[class].bytes += len(batch) - before
			if m.sent < len(m.data) {
				return batch, done // the batch is full
			}
			if !whole && class != topic.Urgent && bound > 0 {
				*assembling -= len(m.data)
			}
			q.pop()
			done[class].messages++
			done[class].weight += m.weight
		}
	}
	return batch, done
}

// written is a batch's part of one class.
type written struct {
	bytes    int
	messages int
	weight   int64
}

// received is a message that waits for Receive.
type received struct {
	sealed sealed
	weight int64 // of the queue's room
	held   int   // of the assembly's room
}

// receiveQueue has the received messages of one class. Guarded by conn.mu, but for room.
type receiveQueue struct {
	room    room
	waiting []received
}

// acquire waits for room until ctx or the link ends.
func (c *conn) acquire(ctx context.Context, r room, weight int64) error {
	if r.TryAcquire(weight) {
		return nil
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	if r.Acquire(both, weight) == nil {
		return nil
	}
	if err := c.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
