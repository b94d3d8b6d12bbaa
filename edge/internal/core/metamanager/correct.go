package metamanager

import (
	"context"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Recorrect presents objects again for which the Corrector or the Gate would now decide
// differently. Unchanged and unknown objects are skipped. It does not write to the disk.
func (m *Manager) Recorrect(ctx context.Context, refs ...object.Ref) error {
	return m.do(ctx, func(b *batch) error {
		for _, ref := range refs {
			b.reapply(ref)
		}
		return nil
	})
}
