package beehive

import (
	"context"
	"errors"
	"fmt"

	"github.com/skerry-io/skerry/beehive/message"
)

// A Port is a module's access to the bus for one run. After the run has ended every call
// returns ErrNotRunning.
type Port struct {
	// Set by begin, never changed.
	bus   *bus
	self  *member
	run   chan struct{} // closed when the run has ended
	ready func()
}

// begin opens a run of a module and returns its port. The states of its groups wait first
// in its mailbox.
func (b *bus) begin(name message.Name, ready func()) *Port {
	m := b.members[name]
	run := make(chan struct{})
	for _, g := range m.groups {
		m.mailbox.prepend(b.groups[g].retained(name))
	}
	m.mu.Lock()
	m.run = run
	m.mu.Unlock()
	return &Port{bus: b, self: m, run: run, ready: ready}
}

// end closes a run. A caller that waits for its answer gets an error at once. gone: no run will
// follow.
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

// Ready reports that the module can receive. Later calls are no-ops.
func (p *Port) Ready() {
	if p.alive() {
		p.ready()
	}
}

// Send puts m into the mailbox of a module, with this module as its source. It returns when the
// mailbox has taken it; a full one holds the sender back (see message.Delivery) until ctx ends or
// the module is gone for good. A message to a module that starts or backs off waits for it.
func (p *Port) Send(ctx context.Context, to message.Name, m message.Message) error {
	member, err := p.bus.member(to)
	if err != nil {
		return err
	}
	m.Header.Awaited = false
	m.Route.Group = ""
	return p.put(ctx, member, m)
}

// SendToGroup sends m to every module of a group but the sender, in the order of the wiring, and
// tries all before it returns their errors. The newest message of Delivery Latest is the state of
// the group: a module of it that starts, or starts again, finds it in its mailbox. It is one for
// the group, whatever its topic.
func (p *Port) SendToGroup(ctx context.Context, to message.Group, m message.Message) error {
	g, ok := p.bus.groups[to]
	if !ok {
		return fmt.Errorf("%s: %w", to, ErrNoGroup)
	}
	m.Header.Awaited = false
	m.Route.Group = to
	m.Route.Source = p.self.name
	if m.Header.ID == 0 {
		m.Header.ID = message.NextID()
	}
	g.retain(m)
	var errs []error
	for _, member := range g.members {
		if member == p.self {
			continue
		}
		errs = append(errs, p.put(ctx, member, m))
	}
	return errors.Join(errs...)
}

// SendSync sends a request and waits for its answer. A refusal is returned as the error, as are the
// end of ctx and, at once, a module that does not run or ends before it has answered:
// ErrNotRunning. Set a deadline: a module that is alive may be slow, and two that send requests to
// each other without answering wait for as long as their contexts let them.
func (p *Port) SendSync(ctx context.Context, to message.Name, m message.Message) (message.Message, error) {
	member, err := p.bus.member(to)
	if err != nil {
		return message.Message{}, err
	}
	m.Header.Sync, m.Header.Awaited = true, true
	m.Route.Group = ""
	// Register first: the answer may arrive before put returns. And check the module after that: if
	// its run ends later than this check, its end finds the registration and answers it.
	r := p.bus.await(&m, to)
	defer p.bus.forget(m.Header.ID, r)
	if !member.running() {
		return message.Message{}, fmt.Errorf("%s: %w", to, ErrNotRunning)
	}
	if err := p.put(ctx, member, m); err != nil {
		return message.Message{}, err
	}
	select {
	case answer := <-r.answer:
		return answer, answer.Err()
	case <-ctx.Done():
		return message.Message{}, fmt.Errorf("waiting for %s: %w", to, context.Cause(ctx))
	case <-p.run:
		return message.Message{}, fmt.Errorf("%s: %w", p.self.name, ErrNotRunning)
	}
}

// Receive waits for the next message.
func (p *Port) Receive(ctx context.Context) (message.Message, error) {
	m, err := p.self.mailbox.take(ctx, p.run)
	if err != nil {
		return message.Message{}, fmt.Errorf("receiving: %w", err)
	}
	return m, nil
}

// Reply answers a request; an error as content is a refusal. The answer goes to the caller of
// SendSync, or, where the request was sent by Send with Header.Sync set (as a hub passes on
// requests of its link), into the sender's mailbox. If the caller has given up, that is no error of
// the module: the answer is dropped and counted.
func (p *Port) Reply(ctx context.Context, request message.Message, content any) error {
	if !request.Header.Sync {
		return fmt.Errorf("replying to %s: %w", request.Key(), errNoRequest)
	}
	m := request.Answer(content)
	m.Route.Source = p.self.name
	if request.Header.Awaited {
		if err := p.bus.answer(p.self.name, m); err != nil && !errors.Is(err, ErrLate) {
			return err
		}
		return nil
	}
	return p.Send(ctx, request.Route.Source, m)
}

// Answer hands over an answer that came from elsewhere: a hub asked the other end of its link on
// behalf of the caller, and m.Header.ParentID names the request as this module received it. ErrLate
// means that no caller waits for it any more, or that this module was not asked.
func (p *Port) Answer(m message.Message) error {
	m.Route.Source = p.self.name
	return p.bus.answer(p.self.name, m)
}

func (p *Port) put(ctx context.Context, to *member, m message.Message) error {
	if !p.alive() {
		return fmt.Errorf("%s: %w", p.self.name, ErrNotRunning)
	}
	m.Route.Source = p.self.name
	if m.Header.ID == 0 {
		m.Header.ID = message.NextID()
	}
	if err := to.mailbox.put(ctx, m); err != nil {
		return fmt.Errorf("sending %s to %s: %w", m.Key(), to.name, err)
	}
	return nil
}

func (p *Port) alive() bool {
	select {
	case <-p.run:
		return false
	default:
		return true
	}
}
