package relay

import (
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// What reads bytes of an edge, for the fuzz targets.
var (
	WithUID    = withUID
	EventPatch = eventPatch
	FreshEvent = freshEvent
	VersionOf  = versionOf
)

// Permit is whether a request of node edge1 is passed on.
func Permit(q *topicpb.APIRequest) error {
	return (&session{node: "edge1", as: kube.Identity{Node: "edge1"}}).permit(q)
}
