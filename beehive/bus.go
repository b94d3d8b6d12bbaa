package beehive

import (
	"errors"
	"fmt"
	"sync"

	"github.com/skerry-io/skerry/beehive/message"
)

// bus has the members, the pending requests, and the state of each group. Members never change once
// a module runs.
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
	run chan struct{} // of the run in progress, closed when it ends; nil without one
}

// group retains one message for modules that start (again): the newest whose Delivery is Latest,
// which is the state that the group follows.
type group struct {
	members []*member

	mu    sync.Mutex
	state *message.Message
}

// request is that of one caller of SendSync.
type request struct {
	to     message.Name
	answer chan message.Message // one slot, so that an answer never blocks its sender
}

func newBus() *bus {
	return &bus{
		members: map[message.Name]*member{}, groups: map[message.Group]*group{},
		pending: map[message.ID]*request{},
	}
}

// join makes a module a member.
func (b *bus) join(name message.Name, groups []message.Group, bound int) {
	m := &member{name: name, groups: groups, mailbox: newMailbox(name, bound)}
	b.members[name] = m
	b.order = append(b.order, m)
	for _, g := range groups {
		if b.groups[g] == nil {
			b.groups[g] = &group{}
		}
		b.groups[g].members = append(b.groups[g].members, m)
	}
}

// close is Port.end for a module that has no run.
func (b *bus) close(name message.Name) {
	b.members[name].mailbox.close()
	b.fail(name)
}

// fail answers, in the place of a module that can't any more, every caller that waits for it.
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

// await registers the caller of a request. A request that is passed on has an ID that a caller
// waits for already; it gets a new one.
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

// answer hands m to the caller that waits for it. Only the module that was asked may answer: a
// number that came over a link is no proof.
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

// retain keeps m for modules of the group that start later.
func (g *group) retain(m message.Message) {
	if m.Header.Delivery != message.Latest {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = &m
}

// retained is the state that another module sent to the group last, if any.
func (g *group) retained(self message.Name) []message.Message {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == nil || g.state.Route.Source == self {
		return nil
	}
	return []message.Message{*g.state}
}

var errNoRequest = errors.New("message asks for no answer")
