package relay

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Attach makes a session's way up.
func (r *Relay) Attach(l cloudhub.Session, mux *message.Mux) cloudhub.Service {
	s := &session{relay: r, link: l, node: l.Node(), as: kube.Identity{Node: l.Node()}, requests: make(chan struct{}, maxRequests)}
	s.held.Most = r.quotas.bytes
	s.queue = newQueue(s.finish)
	s.lease = newLease(r, l)
	s.handle(mux, topic.EventWrite, topic.EventResult, s.writeEvent)
	s.handle(mux, topic.PodStatusWrite, topic.PodStatusResult, s.writePodStatus)
	s.handle(mux, topic.NodeStatusWrite, topic.NodeStatusResult, s.writeNodeStatus)
	s.handle(mux, topic.PodWrite, topic.PodResult, s.deletePod)
	message.Handle(mux, topic.Heartbeat, func(_ context.Context, _ message.Message, h *topicpb.Heartbeat) error {
		s.lease.heard(h)
		return nil
	})
	message.Handle(mux, topic.APIRequest, func(ctx context.Context, m message.Message, q *topicpb.APIRequest) error {
		return s.onRequest(ctx, m, q)
	})
	return s
}

func (s *session) handle(mux *message.Mux, write message.Topic[*topicpb.Write], result message.Topic[*topicpb.WriteResult],
	do func(context.Context, *topicpb.Write) outcome) {
	message.Handle(mux, write, func(ctx context.Context, _ message.Message, w *topicpb.Write) error {
		if refusal := s.overQuota(w); refusal != nil {
			return s.answer(ctx, result, w, outcome{err: refusal})
		}
		return s.queue.push(&job{write: w, result: result, do: do, turn: s.turnOf(w)})
	})
}

// Start implements cloudhub.Service.
func (s *session) Start(ctx context.Context, fail func(error)) {
	s.relay.metrics.sessions.Add(1)
	s.relay.nodes.enter(s.node, s.lease)
	// No write before this session owns the Lease: an older one of this node, on another replica,
	// has then lost it.
	s.lease.run(ctx, fail, func() {
		s.queue.start(ctx, fail)
		if s.relay.hide {
			s.begin(func() { s.hideNow(ctx) }) // addresses that the edge writes from now on are hidden in its patches
		}
	})
}

// Stop implements cloudhub.Service.
func (s *session) Stop() {
	s.relay.nodes.leave(s.node, s.lease)
	s.lease.stop()
	s.queue.stop()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.wg.Wait()
	s.relay.metrics.sessions.Add(-1)
}

// finish sends the edge the result of a write.
func (s *session) finish(ctx context.Context, j *job, o outcome) error {
	s.held.Give(sizeOf(j.write))
	if o.err != nil {
		reason := apierrors.ReasonForError(o.err)
		s.relay.metrics.refused(j.result.Kind, reason)
		level := 0
		if apierrors.IsNotFound(o.err) || otherUID(o.err) {
			level = 4 // the object is gone: usual where pods come and go, and no error
		}
		klog.FromContext(ctx).V(level).Info("Dropped a rejected write", "kind", j.result.Kind, "verb", j.write.GetVerb(),
			"resource", j.write.GetResource().GetResource(), "namespace", j.write.GetNamespace(), "name", j.write.GetName(), "err", o.err)
	} else {
		s.relay.metrics.accepted(j.result.Kind)
	}
	return s.answer(ctx, j.result, j.write, o)
}

func (s *session) answer(ctx context.Context, result message.Topic[*topicpb.WriteResult], w *topicpb.Write, o outcome) error {
	r := &topicpb.WriteResult{Id: w.GetId(), Accepted: o.err == nil, ResourceVersion: o.version}
	if o.err != nil {
		r.Status = kube.StatusOf(o.err)
	}
	return s.link.Send(ctx, result.New(message.Resource{Namespace: w.GetNamespace(), Name: w.GetName()}, r))
}
