package meta

import (
	"bytes"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// Report tells the cloud what an agent says of an object's state on this node; body is JSON, the node's own entry. When Report returns nil it is on
// the disk. A report that waits is replaced by a later one of the same object; they survive restarts and reach the cloud in order.
func (m *Manager) Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error {
	return reply.From(m.do(ctx, func(b *batch) error {
		t := targetOf(ref)
		e := &entry{
			class: storepb.Class_REPORT, verb: topicpb.Verb_PATCH, subresource: "status", patchType: types.MergePatchType,
			body: body, uid: uid, at: time.Now().UnixMilli(), size: len(body),
		}
		var last *entry
		for _, o := range b.pending(t) {
			if o.class == e.class {
				last = o
			}
		}
		if last == nil {
			b.add(t, e)
			return nil
		}
		if last.uid == uid && bytes.Equal(last.body, body) {
			return nil // on its way already
		}
		if _, under := m.outbox.inflight[last.id]; under {
			b.add(t, e)
			return nil
		}
		b.merge(t, last, e)
		return nil
	}))
}
