package beehive

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/skerry-io/skerry/beehive/message"
)

// A mailbox holds the messages of one module. It outlives the module's runs: a message that waits
// while a module backs off is there when it runs again.
//
// Its bound counts messages. At the bound a sender waits its turn, first come, first served. A
// message of Delivery Latest takes the place of an older one of the same topic and resource, and
// needs no room then, where that is the last that its sender sent. So the messages that a module
// receives of one sender is always in the order sent, with some left out ("up, down, up" does not
// end in "down"), and a stream of newer messages can't starve the receiver: they stay where the
// oldest was.
type mailbox struct {
	name  message.Name
	bound int

	mu      sync.Mutex
	front   *letter
	back    *letter
	depth   int
	lastOf  map[message.Name]*letter // the last waiting letter of each sender
	waiters []*waiter                // senders held back, in order of arrival
	gone    bool                     // no message is received any more

	arrived chan struct{} // one slot: something waits

	// Counters since the start of the process.
	sent, received, heldBack, replaced uint64
}

type letter struct {
	message    message.Message
	prev, next *letter
}

type waiter struct {
	message message.Message
	done    chan error // one slot; nil means that the message is in the mailbox
}

func newMailbox(name message.Name, bound int) *mailbox {
	return &mailbox{
		name: name, bound: bound,
		lastOf:  map[message.Name]*letter{},
		arrived: make(chan struct{}, 1),
	}
}

// put waits until the mailbox has taken m, ctx ends or the mailbox is closed for good.
func (b *mailbox) put(ctx context.Context, m message.Message) error {
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return ErrNotRunning
	}
	// A held-back sender came first, but a replacement takes no room.
	if b.replace(m) || len(b.waiters) == 0 && b.append(m) {
		b.mu.Unlock()
		return nil
	}
	if err := ctx.Err(); err != nil {
		b.mu.Unlock()
		return fmt.Errorf("mailbox is full: %w", context.Cause(ctx))
	}
	w := &waiter{message: m, done: make(chan error, 1)}
	b.waiters = append(b.waiters, w)
	b.heldBack++
	b.mu.Unlock()

	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiters, w); i >= 0 {
		b.waiters = slices.Delete(b.waiters, i, i+1)
		return fmt.Errorf("mailbox is full: %w", context.Cause(ctx))
	}
	return <-w.done // decided in the same moment
}

// replace puts m in the place of the last message of its sender, if that is an older one of its
// topic and resource. The caller holds mu.
func (b *mailbox) replace(m message.Message) bool {
	if m.Header.Delivery != message.Latest {
		return false
	}
	last := b.lastOf[m.Route.Source]
	if last == nil || last.message.Header.Delivery != message.Latest || last.message.Key() != m.Key() || last.message.Route.Resource != m.Route.Resource {
		return false
	}
	last.message = m
	b.sent++
	b.replaced++
	return true
}

// append puts m at the end if there is room. The caller holds mu.
func (b *mailbox) append(m message.Message) bool {
	if b.depth >= b.bound {
		return false
	}
	b.sent++
	b.link(m)
	return true
}

// take waits for the first message, for the end of ctx or for the end of run.
func (b *mailbox) take(ctx context.Context, run <-chan struct{}) (message.Message, error) {
	for {
		select {
		case <-run:
			return message.Message{}, ErrNotRunning
		default:
		}
		if m, ok := b.tryTake(); ok {
			return m, nil
		}
		select {
		case <-b.arrived:
		case <-run:
			return message.Message{}, ErrNotRunning
		case <-ctx.Done():
			return message.Message{}, context.Cause(ctx)
		}
	}
}

func (b *mailbox) tryTake() (message.Message, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.front
	if l == nil {
		return message.Message{}, false
	}
	b.remove(l)
	b.received++
	b.admit()
	if b.front != nil {
		b.signal() // for another goroutine of the module that receives
	}
	return l.message, true
}

// admit lets those in that were held back, as far as there is room. The caller holds mu.
func (b *mailbox) admit() {
	for len(b.waiters) > 0 {
		w := b.waiters[0]
		if !b.replace(w.message) && !b.append(w.message) {
			return
		}
		b.waiters = slices.Delete(b.waiters, 0, 1)
		w.done <- nil
	}
}

// close ends the mailbox for good: waiting messages are dropped, and blocked senders get an error.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	b.front, b.back, b.depth = nil, nil, 0
	clear(b.lastOf)
	for _, w := range b.waiters {
		w.done <- ErrNotRunning
	}
	b.waiters = nil
}

// dropRequests removes requests of callers in this process; the bus has ended their waiting.
func (b *mailbox) dropRequests() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := b.front; l != nil; {
		next := l.next
		if l.message.Header.Awaited {
			b.remove(l)
		}
		l = next
	}
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		if !w.message.Header.Awaited {
			return false
		}
		w.done <- ErrNotRunning
		return true
	})
	b.admit()
}

// prepend puts those messages in front that don't wait already. It needs no room.
func (b *mailbox) prepend(messages []message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := map[message.ID]bool{}
	for l := b.front; l != nil; l = l.next {
		waiting[l.message.Header.ID] = true
	}
	for _, m := range slices.Backward(messages) {
		if waiting[m.Header.ID] {
			continue
		}
		// It is not the last of its sender: it is older than all that is there.
		l := &letter{message: m, next: b.front}
		if b.front != nil {
			b.front.prev = l
		} else {
			b.back = l
		}
		b.front = l
		b.depth++
	}
	if b.front != nil {
		b.signal()
	}
}

// link puts a letter at the end, remove takes one out. The caller holds mu.
func (b *mailbox) link(m message.Message) {
	l := &letter{message: m, prev: b.back}
	if b.back != nil {
		b.back.next = l
	} else {
		b.front = l
	}
	b.back = l
	b.depth++
	b.lastOf[m.Route.Source] = l
	b.signal()
}

func (b *mailbox) remove(l *letter) {
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		b.front = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		b.back = l.prev
	}
	l.prev, l.next = nil, nil
	b.depth--
	if source := l.message.Route.Source; b.lastOf[source] == l {
		delete(b.lastOf, source)
	}
}

func (b *mailbox) signal() {
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// ModuleMetrics is a snapshot of one module's mailbox.
type ModuleMetrics struct {
	Name     message.Name
	Depth    int    // messages that wait
	Bound    int    // of Depth
	Waiting  int    // senders held back at this moment
	Sent     uint64 // messages taken into the mailbox
	Received uint64 // messages handed to the module
	HeldBack uint64 // messages whose sender had to wait for room
	Replaced uint64 // messages that a newer one replaced
}

func (b *mailbox) metrics() ModuleMetrics {
	b.mu.Lock()
	defer b.mu.Unlock()
	return ModuleMetrics{
		Name: b.name, Depth: b.depth, Bound: b.bound, Waiting: len(b.waiters),
		Sent: b.sent, Received: b.received, HeldBack: b.heldBack, Replaced: b.replaced,
	}
}
