package publish

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

func newSession(p *Publisher, link cloudhub.Session) *session {
	s := &session{
		part: p, link: link, node: link.Node(),
		interests: map[uint64]*interest{}, held: map[kube.Ref]*heldObject{},
	}
	s.loop = cloudhub.NewLoop(s.turn)
	return s
}

// ---- the inbox: called by the session's read loop ----

func (s *session) onInterests(m *topicpb.Interests) error {
	if len(m.GetInterests()) > maxInterests {
		return outOfTurn("%d interests, at most %d are served", len(m.GetInterests()), maxInterests)
	}
	s.link.Charge(time.Duration(len(m.GetInterests())) * perInterest)
	s.mu.Lock()
	s.inbox.interests = m
	s.inbox.digests = append(s.inbox.digests, m.GetDigests()...)
	if len(s.inbox.digests) > maxInterests {
		s.inbox.digests = m.GetDigests()
	}
	s.mu.Unlock()
	s.signal()
	return nil
}

func (s *session) onInventory(m *topicpb.Inventory) error {
	s.link.Charge(time.Duration(len(m.GetEntries())) * perInventoryEntry)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inbox.inventories) > maxInterests {
		return outOfTurn("inventories that were not requested")
	}
	s.inbox.inventories = append(s.inbox.inventories, m)
	s.signal()
	return nil
}

func (s *session) onAck(sequence uint64) {
	s.mu.Lock()
	s.inbox.acked = max(s.inbox.acked, sequence)
	s.mu.Unlock()
	s.signal()
}

// ---- the loop ----

// Start implements cloudhub.Service.
func (s *session) Start(ctx context.Context, fail func(error)) {
	s.ctx, s.log, s.began = ctx, klog.FromContext(ctx), time.Now()
	s.part.metrics.sessions.Add(1)
	s.timer = time.AfterFunc(recheckPause(), func() {
		s.due.Store(true)
		s.signal()
	})
	s.loop.Start(ctx, fail)
}

// Stop implements cloudhub.Service.
func (s *session) Stop() {
	s.timer.Stop()
	s.loop.Stop()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.wg.Wait()
	s.close()
	s.part.metrics.sessions.Add(-1)
}

// recheckPause has jitter: after a restart of cloudcore all edges come at once, and should not be
// reviewed at once for ever.
func recheckPause() time.Duration { return recheckSoon/2 + rand.N(recheckSoon) }

// turn is one round of the loop.
func (s *session) turn(context.Context) error {
	if s.site != "" && s.site != s.siteOf() {
		// Its objects were made for another site. It comes again at once and compares.
		return &link.CloseError{Code: link.CloseShutdown, Reason: "the device is of another site now"}
	}
	if s.due.Swap(false) {
		s.recheck()
		s.timer.Reset(recheckPause())
	}
	return s.step()
}

// close releases all that is shared. No goroutine of the session runs any more.
func (s *session) close() {
	for _, i := range s.interests {
		i.gone = true
		s.detach(i)
	}
	if s.deps != nil {
		s.deps.close()
	}
	for _, h := range s.held {
		h.watch.Cancel()
	}
	for _, r := range s.resources {
		r.closeFeed()
		r.waitFor(nil)
	}
}

// step does all that can be done now.
func (s *session) step() error {
	s.mu.Lock()
	in := s.inbox.interests
	digests := s.inbox.digests
	inventories := s.inbox.inventories
	verdicts, due, caughtUp := s.inbox.verdicts, s.inbox.due, s.inbox.caughtUp
	acked := s.inbox.acked
	s.inbox.interests, s.inbox.digests, s.inbox.inventories, s.inbox.verdicts, s.inbox.due = nil, nil, nil, nil, nil
	s.inbox.caughtUp = nil
	s.mu.Unlock()

	s.window.ack(acked)
	if in != nil {
		s.declare(in, digests)
		if s.unheard > maxUnheard {
			return outOfTurn("%d unacknowledged interests, at most %d", s.unheard, maxUnheard)
		}
	}
	for _, v := range verdicts {
		s.decide(v.interest, v.verdict)
	}
	for _, i := range due {
		s.ask(i)
	}
	for _, i := range inventories {
		if err := s.compare(i); err != nil {
			return err
		}
	}
	for _, c := range caughtUp {
		c.collection = false
	}
	if s.deps != nil {
		s.deps.scan()
	}
	for _, r := range s.resources {
		if err := s.advance(r); err != nil {
			return err
		}
	}
	return s.send()
}

// next takes the first item off the queue, unless all that is there waits for more.
func (s *session) next() (item, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.inbox
	if wait := q.patience(); wait > 0 {
		s.wakeLater(wait)
		return item{}, false
	}
	for q.head < len(q.queue) {
		it := q.queue[q.head]
		q.queue[q.head] = item{}
		if q.head++; q.head == len(q.queue) {
			if cap(q.queue) > 16 { // a burst's memory is not kept by an idle session
				q.queue = nil
			} else {
				q.queue = q.queue[:0]
			}
			q.head, q.pressing, q.until = 0, false, time.Time{}
		}
		if it.mark != nil || it.expect {
			return it, true
		}
		if !it.resource.flows {
			continue // it waits in dirty
		}
		if _, ok := it.resource.dirty[it.key]; ok { // else it went ahead already, with a pod
			it.resource.clean(it.key)
			return it, true
		}
	}
	return item{}, false
}

// send fills frames and sends them while the window is open.
func (s *session) send() error {
	for s.window.open() {
		s.unheard = 0
		for s.frame.bytes < frameBytes {
			it, ok := s.next()
			if !ok {
				break
			}
			if it.expect {
				if err := s.expect(it.resource); err != nil {
					return err
				}
			} else if it.mark != nil {
				s.delivered(it.resource, it.mark)
			} else {
				s.emit(it.resource, it.key)
			}
		}
		if s.frame.empty() {
			return nil
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) flush() error {
	state, full := s.frame.state, s.frame.bytes
	s.frame = frame{}
	state.Sequence = s.window.take(full)
	m := s.part.metrics
	m.states.Add(1)
	for _, g := range state.Changes {
		m.changes.Add(int64(len(g.Items)))
	}
	m.bytes.Add(int64(full))
	s.sent.Store(time.Now().UnixNano())
	if err := s.link.Send(s.ctx, topic.State.New(message.Resource{}, state)); err != nil {
		if s.ctx.Err() != nil {
			return nil
		}
		return err
	}
	return nil
}
