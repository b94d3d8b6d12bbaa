package beehive

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/skerry-io/skerry/beehive/message"
)

// maxRetained is how many messages the bus remembers for a group. Beyond it the oldest is forgotten.
const maxRetained = 64

// bus knows the members, who waits for which answer, and what each group heard last. Members never change after newBus.
type bus struct {
	members map[message.Name]*member
	order   []*member // as wired
	groups  map[message.Group]*group

	mu      sync.Mutex
	pending map[message.ID]*request
	late    uint64
}

// member is a module as the bus sees it.
type member struct {
	name    message.Name
	groups  []message.Group
	mailbox *mailbox

	mu  sync.Mutex
	run chan struct{} // of the run in progress, closed when it ends; nil while there is none
}

// group remembers, for modules that start (again), the newest message of each sender, topic and resource whose Delivery is Latest.
type group struct {
	members []*member

	mu       sync.Mutex
	retained []message.Message // in the order sent
}

// request is what one caller of SendSync waits for.
type request struct {
	to     message.Name
	answer chan message.Message // one slot, so that an answer never blocks its sender
}

func newBus(entries []Entry) *bus {
	b := &bus{
		members: map[message.Name]*member{}, groups: map[message.Group]*group{},
		pending: map[message.ID]*request{},
	}
	for _, e := range entries {
		name := e.Module.Name()
		m := &member{name: name, groups: e.Groups, mailbox: newMailbox(name, e.mailbox())}
		b.members[name] = m
		b.order = append(b.order, m)
		for _, g := range e.Groups {
			if b.groups[g] == nil {
				b.groups[g] = &group{}
			}
			b.groups[g].members = append(b.groups[g].members, m)
		}
	}
	return b
}

// begin opens a run of a module and returns its port. What its groups heard last, and it did not or not in this run, waits first in its mailbox.
func (b *bus) begin(name message.Name, ready func()) *Port {
	m := b.members[name]
	run := make(chan struct{})
	for _, g := range m.groups {
		m.mailbox.prepend(b.groups[g].remembered(name))
	}
	m.mu.Lock()
	m.run = run
	m.mu.Unlock()
	return &Port{bus: b, self: m, run: run, ready: ready}
}

// end closes a run. Whoever waits for an answer of it is told at once. gone says that no run will follow.
func (b *bus) end(p *Port, gone bool) {
	p.self.mu.Lock()
	p.self.run = nil
	p.self.mu.Unlock()
	close(p.run)
	if gone {
		p.self.mailbox.close()
	} else {
		p.self.mailbox.dropRequests()
	}
	b.fail(p.self.name)
}

// close is end for a module that has no run.
func (b *bus) close(name message.Name) {
	b.members[name].mailbox.close()
	b.fail(name)
}

// fail answers, in the place of a module that can't any more, everybody who waits for it.
func (b *bus) fail(to message.Name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, r := range b.pending {
		if r.to != to {
			continue
		}
		delete(b.pending, id)
		r.answer <- message.Message{
			Header:  message.Header{ID: message.NextID(), ParentID: id},
			Route:   message.Route{Source: to, Operation: message.Response},
			Content: fmt.Errorf("%s: %w", to, ErrNotRunning),
		}
	}
}

func (m *member) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.run != nil
}

func (b *bus) member(name message.Name) (*member, error) {
	m, ok := b.members[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, ErrNoModule)
	}
	return m, nil
}

// await registers the caller of a request. A request that is passed on bears an ID that somebody waits for already; it gets a new one.
func (b *bus) await(m *message.Message, to message.Name) *request {
	r := &request{to: to, answer: make(chan message.Message, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken := b.pending[m.Header.ID]; taken || m.Header.ID == 0 {
		m.Header.ID = message.NextID()
	}
	b.pending[m.Header.ID] = r
	return r
}

func (b *bus) forget(id message.ID, r *request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending[id] == r {
		delete(b.pending, id)
	}
}

// answer hands m to whoever waits for it. Only the module that was asked may answer: a number that came over a link proves nothing.
func (b *bus) answer(from message.Name, m message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.pending[m.Header.ParentID]
	if !ok || r.to != from {
		b.late++
		return fmt.Errorf("answer %s to %d: %w", m.Key(), m.Header.ParentID, ErrLate)
	}
	delete(b.pending, m.Header.ParentID)
	r.answer <- m
	return nil
}

// remember keeps m for modules of the group that start later.
func (g *group) remember(m message.Message) {
	if m.Header.Delivery != message.Latest {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := keyOf(m)
	g.retained = slices.DeleteFunc(g.retained, func(o message.Message) bool { return keyOf(o) == key })
	if len(g.retained) >= maxRetained {
		g.retained = slices.Delete(g.retained, 0, 1)
	}
	g.retained = append(g.retained, m)
}

// remembered is what others said to the group last.
func (g *group) remembered(self message.Name) []message.Message {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.retained), func(m message.Message) bool { return m.Route.Source == self })
}

var errNoRequest = errors.New("message asks for no answer")
