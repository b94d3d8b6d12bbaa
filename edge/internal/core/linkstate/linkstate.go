// Package linkstate has the messages by which the modules of an edge learn that the link to the
// cloud is up or down.
//
// It owns only the two topics and their contents: edgehub sends them to the group "link", a module
// that depends on the link joins that group. They never cross the link. Values are immutable.
package linkstate

import (
	"net/netip"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
)

// Group has the modules that get every change of the link.
const Group message.Group = "link"

// Kind is the kind of both topics.
const Kind message.Kind = "link"

// Link is an open session with the cloud: Hello was answered by Welcome.
type Link struct {
	// Epoch is the session's. It grows with every connect; a receiver that gets a Loss with a lower
	// epoch than its own ignores it.
	Epoch uint64
	// Instance is the replica of cloudcore at the other end, Version its version, from its Welcome.
	Instance string
	Version  string
	// Transport and Remote are for display: "websocket" or "quic", and the server as it is
	// configured, with a name where it has one.
	Transport string
	Remote    string
	// Address is where the link's packets go: that of the server, or of the proxy on the way there.
	// The zero value for a transport without addresses.
	Address netip.Addr
	// CloudTime is the cloud's clock when it wrote its Welcome; zero if the Welcome had no time.
	CloudTime time.Time
	// History names the cluster's history; "" if the cloud sent no name.
	History string
	// Streams reports whether the cloud accepts streams opened by this end.
	Streams bool
	// Rescue reports that both ends have no version of the protocol in common: the session carries
	// streams alone, for an upgrade of this device. It is sent to no group.
	Rescue bool
	// Metrics reports whether the cloud accepts samples of this device's metrics.
	Metrics bool
	Since   time.Time
}

// Loss is the end of a session.
type Loss struct {
	Epoch  uint64
	Reason error
	At     time.Time
}

// The topics. Every, so that an Up and the Down after it are never seen in another order; a link's
// changes are few.
var (
	Up   = message.NewTopic[Link](Kind, message.Insert, message.Every)
	Down = message.NewTopic[Loss](Kind, message.Delete, message.Every)
)

// Agents is the group of modules that receive the link's state, not a series of events.
const Agents message.Group = "agents"

// State reports whether there is a session. The zero value is a device without one.
type State struct {
	Up   bool
	Link Link // of the open session, or of the last one
}

// Current is sent to the group Agents whenever a session opens or ends. Latest, so that the bus
// hands the present state to a module that starts, or starts again in the middle of a session.
var Current = message.NewTopic[State](Kind, message.Query, message.Latest)
