package meta

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// overlay makes a held object of what the cloud delivered (an Object whose Raw is that) and the writes that wait. A write with another uid is not for
// this object, and one that does not apply is left out: the relay will say what is wrong with it.
func overlay(delivered object.Object, uses []dependency, entries []*entry) *held {
	h := &held{shown: delivered, raw: delivered.Raw, labels: delivered.Labels, uses: uses}
	var obj runtime.Object
	for _, e := range entries {
		if !e.laid() || (e.uid != "" && e.uid != delivered.UID) {
			continue
		}
		if e.verb == topicpb.Verb_DELETE {
			h.hidden = true
			continue
		}
		if obj == nil {
			var err error
			if obj, err = object.DecodeRaw(delivered.Raw); err != nil {
				return h
			}
		}
		if next, err := object.Patch(obj, e.patchType, e.body); err == nil {
			obj = next
		}
	}
	if obj == nil {
		return h
	}
	if raw, err := object.Encode(obj); err == nil {
		h.shown.Raw = raw
		if m, err := meta.Accessor(obj); err == nil {
			h.shown.Labels = m.GetLabels()
		}
	}
	return h
}

// before is the decoded object under the last of entries: as delivered, with all but that one laid over it.
func (h *held) before(entries []*entry) (runtime.Object, error) {
	return object.DecodeRaw(overlay(h.delivered(), nil, entries[:len(entries)-1]).shown.Raw)
}
