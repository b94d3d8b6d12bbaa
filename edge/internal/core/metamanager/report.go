package metamanager

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Report sends the cloud an agent's report on an object's state on this node; body is JSON, the
// node's own entry. When Report returns nil it is on the disk. A pending report is replaced by a
// later one of the same object; reports survive restarts and reach the cloud in order.
func (m *Manager) Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error {
	return reply.From(m.do(ctx, func(b *batch) error {
		b.outbox.PutReport(ref, &outbox.Entry{
			Class: storepb.Class_REPORT, Verb: topicpb.Verb_PATCH, Subresource: "status", PatchType: types.MergePatchType,
			Body: body, UID: uid, At: time.Now().UnixMilli(), Size: len(body),
		})
		return nil
	}))
}
