// Package topic lists every topic that cloudcore and edgecore share, with its payload, and turns
// their messages into bytes and back.
//
// It owns the wire contract: adding a topic here is all that a new conversation needs. It refuses
// unknown topics and payloads that don't parse. The table never changes at run time; every function
// may be called by many goroutines at once.
package topic

import (
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Protocol is the newest version of the contract that this release speaks. Ends without a common
// version (package protocol) close the link with a code for it.
const Protocol = protocol.Current

// QuotaKind is the kind in the details of a Status by which cloudcore reports that a quota of the
// node is used up; their name is the quota's. In a WriteResult it is not final: the edge keeps the
// write, and sends it again after the time in the details.
const QuotaKind = "cloudcore-quota"

// The kinds.
const (
	KindHello      message.Kind = "hello"
	KindHeartbeat  message.Kind = "heartbeat"
	KindInterest   message.Kind = "interest"
	KindInventory  message.Kind = "inventory"
	KindState      message.Kind = "state"
	KindEvent      message.Kind = "event"
	KindPodStatus  message.Kind = "podstatus"
	KindNodeStatus message.Kind = "nodestatus"
	KindPod        message.Kind = "pod"
	KindReport     message.Kind = "report"
	KindAPI        message.Kind = "api"
	KindStream     message.Kind = "stream"
	KindSite       message.Kind = "site"
	KindMetrics    message.Kind = "metrics"
)

// Session.
var (
	// Hello opens a session; its answer, a Welcome, is of topic Welcome.
	Hello   = message.NewTopic[*topicpb.Hello](KindHello, message.Insert, message.Every)
	Welcome = message.NewTopic[*topicpb.Welcome](KindHello, message.Response, message.Every)
	// Heartbeat goes up; HeartbeatAnswer comes down.
	Heartbeat       = message.NewTopic[*topicpb.Heartbeat](KindHeartbeat, message.Update, message.Latest)
	HeartbeatAnswer = message.NewTopic[*topicpb.Heartbeat](KindHeartbeat, message.Response, message.Latest)
)

// The way down.
var (
	Interests        = message.NewTopic[*topicpb.Interests](KindInterest, message.Update, message.Every)
	InventoryRequest = message.NewTopic[*topicpb.InventoryRequest](KindInventory, message.Query, message.Every)
	Inventory        = message.NewTopic[*topicpb.Inventory](KindInventory, message.Response, message.Every)
	State            = message.NewTopic[*topicpb.State](KindState, message.Update, message.Every)
	StateAck         = message.NewTopic[*topicpb.StateAck](KindState, message.Response, message.Latest)
)

// The way up: each of these is answered by a WriteResult of the same kind.
var (
	EventWrite       = message.NewTopic[*topicpb.Write](KindEvent, message.Update, message.Every)
	EventResult      = message.NewTopic[*topicpb.WriteResult](KindEvent, message.Response, message.Every)
	PodStatusWrite   = message.NewTopic[*topicpb.Write](KindPodStatus, message.Update, message.Every)
	PodStatusResult  = message.NewTopic[*topicpb.WriteResult](KindPodStatus, message.Response, message.Every)
	NodeStatusWrite  = message.NewTopic[*topicpb.Write](KindNodeStatus, message.Update, message.Every)
	NodeStatusResult = message.NewTopic[*topicpb.WriteResult](KindNodeStatus, message.Response, message.Every)
	PodWrite         = message.NewTopic[*topicpb.Write](KindPod, message.Update, message.Every) // deletion by the kubelet
	PodResult        = message.NewTopic[*topicpb.WriteResult](KindPod, message.Response, message.Every)
)

// A report of an agent on the node about an object's state there: later replaces earlier. The body
// is the node's own entry, as JSON.
var (
	ReportWrite  = message.NewTopic[*topicpb.Write](KindReport, message.Update, message.Every)
	ReportResult = message.NewTopic[*topicpb.WriteResult](KindReport, message.Response, message.Every)
)

// Requests that need an answer now. Header.Sync is set, and the answer's ParentID names
// the request.
var (
	APIRequest  = message.NewTopic[*topicpb.APIRequest](KindAPI, message.Query, message.Every)
	APIResponse = message.NewTopic[*topicpb.APIResponse](KindAPI, message.Response, message.Every)
)

// Streams: connections within the link. The first StreamWindow or StreamData tells the opener that
// it was accepted, a StreamClose that it was refused. StreamData and StreamClose stay in order
// among themselves, and so do the other two.
var (
	StreamOpen   = message.NewTopic[*topicpb.StreamOpen](KindStream, message.Insert, message.Every)
	StreamWindow = message.NewTopic[*topicpb.StreamWindow](KindStream, message.Response, message.Every)
	StreamData   = message.NewTopic[*topicpb.StreamData](KindStream, message.Update, message.Every)
	StreamClose  = message.NewTopic[*topicpb.StreamClose](KindStream, message.Delete, message.Every)
)

// The site. The edge asks once in a session; the cloud sends it whenever it differs from the edge's
// copy.
var (
	SiteRequest = message.NewTopic[*topicpb.SiteRequest](KindSite, message.Query, message.Latest)
	Site        = message.NewTopic[*topicpb.Site](KindSite, message.Update, message.Latest)
)

// Metrics of the device, to a cloud with protocol.FeatureMetrics. The edge sends the next message
// once the last was answered.
var (
	NodeMetrics       = message.NewTopic[*topicpb.NodeMetrics](KindMetrics, message.Update, message.Every)
	NodeMetricsResult = message.NewTopic[*topicpb.NodeMetricsResult](KindMetrics, message.Response, message.Every)
)
