package link

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
)

// Start makes a Conn of a carrier whose handshake is complete, and owns the carrier from then on.
// config must be valid and codec made with it.
//
// An idle Conn has one goroutine of its own, which reads, or no goroutine where the carrier is an
// Attacher: at 10,000 links the stack of a writer that waits would count. A writer lives while
// there is something to write.
func Start(carrier Carrier, codec *Codec, config Config, info Info) Conn {
	c := &conn{
		carrier: carrier, traits: carrier.Traits(), codec: codec, config: &codec.config, info: info,
		ready: make(chan struct{}, 1), done: make(chan struct{}), lastSent: time.Now(),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.assembly = newAssembly(config.MaxAssembly, c.traits.Lanes)
	for class := range c.out {
		c.out[class] = &sendQueue{room: newRoom(config.sendQueue(topic.Class(class)))}
		c.in[class].room = newRoom(config.ReceiveQueue)
	}
	if every := c.keepaliveEvery(); every > 0 {
		c.mu.Lock() // the timer may fire at once
		c.keepalive = time.AfterFunc(every, c.tick)
		c.mu.Unlock()
	}
	if a, ok := carrier.(Attacher); ok {
		a.Attach(sink{c}, c.finish)
	} else {
		go func() { c.finish(carrier.Serve(sink{c})) }()
	}
	return c
}

type conn struct {
	// Set by Start, never changed.
	carrier  Carrier
	traits   Traits
	codec    *Codec
	config   *Config // shared by all links of the codec
	info     Info
	ctx      context.Context // ends when the link is ending
	cancel   context.CancelFunc
	assembly *assembly
	ready    chan struct{} // has an element when something has come
	done     chan struct{}
	writers  sync.WaitGroup // Add only with mu held and before ended is set

	introduced atomic.Bool   // this end has announced its dictionaries
	peerReads  atomic.Uint32 // the best dictionary that the peer has announced; 0 without one

	mu         sync.Mutex
	ended      *CloseError // set once
	out        [topic.Classes]*sendQueue
	in         [topic.Classes]receiveQueue
	assembling int  // of a shared stream: the sum of the messages under way
	beat       bool // a keepalive is due
	keepalive  *time.Timer
	lastSent   time.Time
	lastHeard  time.Time
	stats      Stats
	came       func() // of Notify
	over       func() // likewise
}

func (c *conn) Info() Info            { return c.info }
func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		return nil
	}
	return c.ended
}

func (c *conn) Send(ctx context.Context, m message.Message) error {
	if err := c.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	introduce := !c.introduced.Load()
	entry, data, err := c.codec.encode(m, c.peerReads.Load(), introduce)
	if err != nil {
		return fmt.Errorf("sending on the link: %w", err)
	}
	q := c.out[entry.Class]
	o := &outgoing{data: data, weight: q.room.weight(len(data))}
	if entry.Delivery == message.Latest && !m.Header.Sync && m.Header.ParentID == 0 { // no caller waits for this one message
		o.latest = &latestKey{m.Key(), m.Route.Resource}
	}
	if err := c.acquire(ctx, q.room, o.weight); err != nil {
		return fmt.Errorf("waiting for room on the link: %w", err)
	}
	c.mu.Lock()
	if c.ended != nil {
		err := c.ended
		c.mu.Unlock()
		q.room.Release(o.weight)
		return err
	}
	free := q.put(o)
	if introduce && o.latest == nil { // a later message does not take its place
		c.introduced.Store(true)
	}
	c.wake(entry.Class)
	c.mu.Unlock()
	if free > 0 {
		q.room.Release(free)
	}
	return nil
}

// wake starts the writer of a class unless it runs. mu is held.
func (c *conn) wake(class topic.Class) {
	if !c.traits.Lanes {
		class = 0
	}
	if c.out[class].writing || c.ended != nil {
		return
	}
	c.out[class].writing = true
	c.writers.Add(1)
	go c.drain(class)
}

// drain writes the messages of a class, or of all on a shared stream, until the queue is empty.
func (c *conn) drain(class topic.Class) {
	defer c.writers.Done()
	buffer := c.codec.batches.Get().(*[]byte)
	defer c.codec.batches.Put(buffer)
	queues, bound := c.out[class:class+1], 0
	if !c.traits.Lanes {
		queues, bound = c.out[:], c.config.peerAssembly()
	}
	for {
		c.mu.Lock()
		batch, done := fill((*buffer)[:0], min(c.traits.Batch, MaxBatch), queues, class, &c.assembling, bound)
		beat := c.beat
		c.beat = false
		if c.ended != nil || len(batch) == 0 && !beat {
			c.out[class].writing = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()

		var err error
		if len(batch) > 0 {
			err = c.carrier.Write(class, batch)
		} else {
			err = c.carrier.Keepalive()
		}
		if err != nil {
			why := closeError(err)
			if why.Code == CloseTimeout && !why.Remote {
				why.Reason = "writes were blocked for too long"
			}
			c.end(why)
			return
		}
		c.mu.Lock()
		c.lastSent = time.Now()
		c.stats.sent(done)
		c.mu.Unlock()
		for class, w := range done {
			if w.weight > 0 {
				c.out[class].room.Release(w.weight)
			}
		}
	}
}

// Receive prefers the lowest class among the messages that have come.
func (c *conn) Receive(ctx context.Context) (message.Message, error) {
	for {
		if ctx.Err() != nil {
			return message.Message{}, context.Cause(ctx)
		}
		if m, ok := c.Poll(); ok {
			return m, nil
		}
		if err := c.Err(); err != nil {
			return message.Message{}, err
		}
		select {
		case <-c.ready:
		case <-c.ctx.Done():
		case <-ctx.Done():
		}
	}
}

// Poll prefers the lowest class too. Messages are decoded here and not before, one at a time: no
// message of an unadmitted peer is decoded.
func (c *conn) Poll() (message.Message, bool) {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return message.Message{}, false
	}
	for class := range c.in {
		q := &c.in[class]
		if len(q.waiting) == 0 {
			continue
		}
		r := q.waiting[0]
		q.waiting[0] = received{}
		if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
			q.waiting = nil
		}
		c.mu.Unlock()
		q.room.Release(r.weight)
		m, err := c.codec.content(r.sealed)
		c.assembly.release(r.held)
		if err != nil {
			c.end(closeError(err))
			return message.Message{}, false
		}
		return m, true
	}
	c.mu.Unlock()
	return message.Message{}, false
}

func (c *conn) Notify(came, ended func()) {
	c.mu.Lock()
	c.came, c.over = came, ended
	over := c.ended != nil
	c.mu.Unlock()
	if over {
		go ended()
		return
	}
	came() // perhaps something has
}

// finish ends everything else after the last read.
func (c *conn) finish(err error) {
	c.end(closeError(err))
	c.writers.Wait()
	c.mu.Lock()
	why := c.ended
	c.mu.Unlock()
	c.carrier.Close(why)
	close(c.done)
}

// sink is the conn as its carrier sees it.
type sink struct{ *conn }

func (s sink) Read(r io.Reader) error {
	err := s.read(r)
	s.End(err)
	return err
}

func (s sink) Alive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard(time.Now())
}

func (s sink) End(err error) { s.end(closeError(err)) }

func (s sink) Begin(r io.Reader) (next func() error, end func(error)) {
	a := s.assembler()
	return func() error { return s.next(a, r) }, func(err error) {
		a.close()
		s.End(err)
	}
}

func (c *conn) assembler() *assembler {
	return &assembler{config: c.config, assembly: c.assembly, lanes: c.traits.Lanes}
}

// read serves one stream.
func (c *conn) read(r io.Reader) error {
	a := c.assembler()
	defer a.close()
	for {
		if err := c.next(a, r); err != nil {
			return err
		}
	}
}

// next reads one message.
func (c *conn) next(a *assembler, r io.Reader) error {
	class, data, held, err := a.next(c.ctx, r)
	if err != nil {
		return err
	}
	s, err := c.codec.open(data)
	if err != nil {
		return err
	}
	if s.reads != 0 {
		c.peerReads.Store(s.reads)
	}
	q := &c.in[class]
	weight := q.room.weight(len(data))
	if err := c.acquire(c.ctx, q.room, weight); err != nil {
		return err
	}
	c.mu.Lock()
	q.waiting = append(q.waiting, received{s, weight, held})
	c.lastHeard = time.Now()
	c.stats.received(class, len(data))
	c.heard(c.lastHeard)
	came := c.came
	c.mu.Unlock()
	if came != nil {
		came()
		return nil
	}
	select {
	case c.ready <- struct{}{}:
	default:
	}
	return nil
}

// keepaliveEvery is this end's longest silence. It is a little more than Keepalive: a message sent
// at that interval anyway replaces keepalives.
func (c *conn) keepaliveEvery() time.Duration {
	switch {
	case c.traits.PeerIdle == 0:
		return 0
	case c.traits.Dialed:
		return min(c.config.Keepalive+c.config.Keepalive/16, c.traits.PeerIdle*2/5)
	}
	return c.traits.PeerIdle * 3 / 4
}

// tick keeps the peer from taking this end for dead.
func (c *conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	every := c.keepaliveEvery()
	if silent := time.Since(c.lastSent); silent < every {
		c.keepalive.Reset(every - silent)
		return
	}
	c.beat = true
	c.wake(topic.Urgent)
	c.keepalive.Reset(every)
}

// heard answers the end that dialled as soon as something of it comes and this end was silent
// for half of the peer's idle timeout: so the answer travels with the acknowledgement that TCP
// sends anyway, and an idle link costs little more than one keepalive and its
// acknowledgement. mu is held.
func (c *conn) heard(now time.Time) {
	if c.traits.PeerIdle == 0 || c.traits.Dialed || now.Sub(c.lastSent) < c.traits.PeerIdle/2 || c.ended != nil {
		return
	}
	c.beat = true
	c.wake(topic.Urgent)
}

func (c *conn) Close(code CloseCode, reason string) error {
	c.end(&CloseError{Code: code, Reason: reason})
	<-c.done
	return nil
}

// end begins the end of the link. Only the first reason counts.
func (c *conn) end(why *CloseError) {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return
	}
	if !why.Remote {
		why.Reason = shorten(why.Reason)
	}
	c.ended = why
	if c.keepalive != nil {
		c.keepalive.Stop()
	}
	over := c.over
	c.mu.Unlock()
	c.cancel()
	c.carrier.Stop(why)
	if over != nil {
		go over()
	}
}
