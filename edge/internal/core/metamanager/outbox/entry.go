package outbox

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Entry is one write that waits. The body of an event is on the disk alone. It is never changed
// once it was staged, only replaced.
type Entry struct {
	ID              uint64 // given by the outbox; its results are matched by it
	Class           storepb.Class
	Verb            topicpb.Verb
	Subresource     string
	PatchType       types.PatchType
	Body            []byte
	UID             types.UID
	At              int64 // unix milliseconds
	ShownVersion    uint64
	Accepted        bool // accepted by the cloud; kept until the object is delivered at that version or newer
	AcceptedVersion string
	AcceptedEpoch   uint64 // of the session; 0 after a restart
	Size            int
	// Local: it stays on the device while it is set, as does all behind it. It is of a pod that has
	// ended and that may run again here; see podrestart.
	Local bool

	// Volatile: never on the disk. A kubelet writes an unchanged status every few minutes: that is
	// not worth a write to flash.
	Volatile bool
	sent     bool // may have reached the cloud: merging into a create then has to change its verb. Only the outbox sets it
}

// event reports whether it is an event: events are bounded by themselves and leave room for state.
func (e *Entry) event() bool { return e.Class == storepb.Class_EVENT }

// Laid reports whether the write is applied to the delivered object. An agent's report is only
// added to the object in the cloud.
func (e *Entry) Laid() bool { return e.Class != storepb.Class_EVENT && e.Class != storepb.Class_REPORT }

// LocalOf is the write of an object that stays on the device; nil without one.
func LocalOf(entries []*Entry, uid types.UID) *Entry {
	for _, e := range entries {
		if e.Local && e.UID == uid {
			return e
		}
	}
	return nil
}

func entryOf(id uint64, r *storepb.Entry) (object.Ref, *Entry) {
	ref := object.Ref{
		Resource:  schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource},
		Namespace: r.Namespace, Name: r.Name,
	}
	e := &Entry{
		ID: id, Class: r.Class, Verb: topicpb.Verb(r.Verb), Subresource: r.Subresource, PatchType: types.PatchType(r.PatchType), UID: types.UID(r.Uid),
		At: r.UnixMillis, ShownVersion: r.ShownVersion, Accepted: r.Accepted, AcceptedVersion: r.AcceptedVersion, Size: len(r.Body), Local: r.Local, sent: !r.Local,
	}
	if !e.event() {
		e.Body = r.Body
	}
	return ref, e
}

func (e *Entry) record(ref object.Ref) *storepb.Entry {
	return &storepb.Entry{
		Class: e.Class, Verb: uint32(e.Verb), Group: ref.Resource.Group, Version: ref.Resource.Version, Resource: ref.Resource.Resource,
		Namespace: ref.Namespace, Name: ref.Name, Subresource: e.Subresource, PatchType: string(e.PatchType), Body: e.Body, Uid: string(e.UID),
		UnixMillis: e.At, ShownVersion: e.ShownVersion, Accepted: e.Accepted, AcceptedVersion: e.AcceptedVersion, Local: e.Local,
	}
}

// Outlives reports whether an object stays after its deletion, until its finalizers are gone.
func Outlives(delivered object.Object) bool {
	obj, err := object.DecodeRaw(delivered.Raw)
	if err != nil {
		return false
	}
	m, err := meta.Accessor(obj)
	return err == nil && len(m.GetFinalizers()) > 0
}

// Overlay applies the pending writes to the delivered object; hidden is true if one deletes it and
// no finalizer keeps it. A write with another uid is not for this object, and one that does not
// apply is skipped: the relay will report the error.
func Overlay(delivered object.Object, entries []*Entry) (shown object.Object, hidden bool) {
	shown = delivered
	var obj runtime.Object
	for _, e := range entries {
		if !e.Laid() || (e.UID != "" && e.UID != delivered.UID) {
			continue
		}
		if e.Verb == topicpb.Verb_DELETE {
			hidden = true
			continue
		}
		if obj == nil {
			var err error
			if obj, err = object.DecodeRaw(delivered.Raw); err != nil {
				return shown, hidden
			}
		}
		if next, err := object.Patch(obj, e.PatchType, e.Body); err == nil {
			obj = next
		}
	}
	hidden = hidden && !Outlives(delivered)
	if obj == nil {
		return shown, hidden
	}
	if raw, err := object.Encode(obj); err == nil {
		shown.Raw = raw
		if m, err := meta.Accessor(obj); err == nil {
			shown.Labels = object.NewLabels(m.GetLabels())
		}
	}
	return shown, hidden
}
