package metamanager

import (
	"context"

	"github.com/skerry-io/skerry/beehive/message"
)

// Port is the subset that the Manager uses of its *beehive.Port.
type Port = port

// Serve is Run with a port of the test's.
func (m *Manager) Serve(ctx context.Context, p Port) error { return m.run(ctx, p) }

var _ message.Name = Name
