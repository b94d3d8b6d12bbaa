package beehive

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/skerry-io/skerry/beehive/message"
)

// A mailbox holds what waits for one module. It outlives the module's runs: what waits while a module backs off is there when it runs again.
//
// Its bound counts messages. At the bound a sender waits its turn, first come, first served. A message of Delivery Latest takes the place of an
// older one of the same sender, topic and resource, and needs no room then. Two rules keep that honest:
//   - What a module receives of one sender is always in the order sent, with some left out. So an older message that other messages of its sender
//     have followed is not overwritten where it lies: that would let the newer one overtake them ("up, down, up" would end in "down").
//   - A stream of newer messages can't starve the receiver. So the oldest one stays where it is, and only the newest moves to the end. At most two
//     of a kind wait; with them a mailbox may exceed its bound, but never reach twice that.
type mailbox struct {
	name  message.Name
	bound int

	mu      sync.Mutex
	front   *letter
	back    *letter
	depth   int
	latest  map[latestKey]latestPair
	lastOf  map[message.Name]*letter // the last waiting letter of each sender
	waiters []*waiter                // senders held back, in order of arrival
	gone    bool                     // nothing is received any more

	arrived chan struct{} // one slot: something waits

	// Counters since the start of the process.
	sent, received, heldBack, replaced uint64
}

type letter struct {
	message    message.Message
	prev, next *letter
}

type latestKey struct {
	source   message.Name
	topic    message.Key
	resource message.Resource
}

// latestPair is what waits of one key; both are the same letter where only one does.
type latestPair struct{ oldest, newest *letter }

type waiter struct {
	message message.Message
	done    chan error // one slot; nil means that the message is in the mailbox
}

func newMailbox(name message.Name, bound int) *mailbox {
	return &mailbox{
		name: name, bound: bound,
		latest: map[latestKey]latestPair{}, lastOf: map[message.Name]*letter{},
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
	// Whoever is held back came first, but a replacement takes nobody's room.
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

// replace puts m where an older message of its key makes that possible without room. The caller holds mu.
func (b *mailbox) replace(m message.Message) bool {
	if m.Header.Delivery != message.Latest {
		return false
	}
	key := keyOf(m)
	pair, ok := b.latest[key]
	if !ok {
		return false
	}
	b.sent++
	if b.lastOf[key.source] == pair.newest { // its sender said nothing since
		pair.newest.message = m
		b.replaced++
		return true
	}
	if pair.newest != pair.oldest {
		b.unlink(pair.newest)
		b.replaced++
	}
	pair.newest = b.link(m)
	b.latest[key] = pair
	return true
}

// append puts m at the end if there is room. The caller holds mu.
func (b *mailbox) append(m message.Message) bool {
	if b.depth >= b.bound {
		return false
	}
	b.sent++
	l := b.link(m)
	if m.Header.Delivery == message.Latest {
		b.latest[keyOf(m)] = latestPair{l, l}
	}
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

// close ends the mailbox for good: what waits is dropped, and whoever is held back is told.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	b.front, b.back, b.depth = nil, nil, 0
	clear(b.latest)
	clear(b.lastOf)
	for _, w := range b.waiters {
		w.done <- ErrNotRunning
	}
	b.waiters = nil
}

// dropRequests removes what somebody waits for in this process; the bus has told them that nobody will answer.
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
		// It stays out of the index of replacements: it is older than all that is there, and few.
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

// link puts a letter at the end; unlink takes one out of the list; remove takes one out of the index too. The caller holds mu.
func (b *mailbox) link(m message.Message) *letter {
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
	return l
}

func (b *mailbox) unlink(l *letter) {
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
}

func (b *mailbox) remove(l *letter) {
	b.unlink(l)
	if source := l.message.Route.Source; b.lastOf[source] == l {
		delete(b.lastOf, source)
	}
	if l.message.Header.Delivery != message.Latest {
		return
	}
	key := keyOf(l.message)
	switch pair := b.latest[key]; {
	case pair.oldest != l:
	case pair.newest == l:
		delete(b.latest, key)
	default:
		b.latest[key] = latestPair{pair.newest, pair.newest}
	}
}

func (b *mailbox) signal() {
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

func (b *mailbox) metrics() ModuleMetrics {
	b.mu.Lock()
	defer b.mu.Unlock()
	return ModuleMetrics{
		Name: b.name, Depth: b.depth, Bound: b.bound, Waiting: len(b.waiters),
		Sent: b.sent, Received: b.received, HeldBack: b.heldBack, Replaced: b.replaced,
	}
}

func keyOf(m message.Message) latestKey { return latestKey{m.Route.Source, m.Key(), m.Route.Resource} }
