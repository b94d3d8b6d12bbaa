package relay

import (
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Parsers of an edge's bytes, for the fuzz targets.
var (
	WithPreconditions = withPreconditions
	VersionOf         = versionOf
)

// EventBodies returns the bodies made from that of an event.
func EventBodies(body []byte) (fresh, patch []byte, err error) {
	w, err := parseEventBody(body)
	if err != nil {
		return nil, nil, err
	}
	if patch, err = w.patch("7"); err != nil {
		return nil, nil, err
	}
	fresh, _, err = w.fresh()
	return fresh, patch, err
}

// Permit is whether a request of node edge1 is passed on.
func Permit(q *topicpb.APIRequest) error {
	return (&session{node: "edge1", as: kube.Identity{Node: "edge1"}}).permit(q)
}
