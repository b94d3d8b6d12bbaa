// Package hollow is the edge's end of the link without a device behind it: edgehub with its own
// dialling, back-off and heartbeats, for programs that simulate many nodes (tests/hollow).
//
// It only makes edgehub accessible to such programs. edgecore does not use it. The rule for
// concurrency is edgehub's.
package hollow

import (
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Hub is edgehub; Config is its configuration; Port is its access to the modules of its node, which
// their replacement implements.
type (
	Hub    = edgehub.Hub
	Config = edgehub.Config
	Port   = edgehub.Port
)

// New returns a hub. Its Serve starts it on any Port.
func New(c Config) (*Hub, error) { return edgehub.New(c) }

// Up reports whether m, which the hub sends to a group, reports an opened session, and the
// session's epoch.
func Up(m message.Message) (epoch uint64, ok bool) {
	l, ok := m.Content.(linkstate.Link)
	return l.Epoch, ok
}

// Down reports whether m, which the hub sends to a group, reports an ended session, and why.
func Down(m message.Message) (why error, ok bool) { //nolint:revive // the error is the result, not a failure
	l, ok := m.Content.(linkstate.Loss)
	return l.Reason, ok
}
