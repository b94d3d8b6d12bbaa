package metamanager

import (
	"context"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Recorrect shows objects again that the Corrector would now make something else of, or the Gate.
// Those that they make the same of are left alone, and those that are not held. It writes nothing
// to the disk.
func (m *Manager) Recorrect(ctx context.Context, refs ...object.Ref) error {
	return m.do(ctx, func(b *batch) error {
		for _, ref := range refs {
			b.reapply(ref)
		}
		return nil
	})
}
