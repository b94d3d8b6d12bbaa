package meta

import (
	"cmp"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta/ready"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// target is what a write changes: writes of one target go up in order, those of different targets don't wait for each other.
type target struct {
	resource schema.GroupVersionResource
	key
}

func targetOf(ref object.Ref) target { return target{ref.Resource, key{ref.Namespace, ref.Name}} }

func (t target) ref() object.Ref {
	return object.Ref{Resource: t.resource, Namespace: t.namespace, Name: t.name}
}

// entry is one write that waits. The body of an event is on the disk alone. But for sent, it is never changed, only replaced.
type entry struct {
	id              uint64
	class           storepb.Class
	verb            topicpb.Verb
	subresource     string
	patchType       types.PatchType
	body            []byte
	uid             types.UID
	at              int64 // unix milliseconds
	shownVersion    uint64
	accepted        bool // the cloud has it; kept until the object comes down as it was then or newer
	acceptedVersion string
	acceptedEpoch   uint64 // of the session; 0 after a restart
	size            int

	// volatile: never on the disk. A kubelet says every few minutes that nothing has changed: that is not worth a write to flash.
	volatile bool
	sent     bool // may have reached the cloud: a create can't be merged into any more without saying so
}

func (e *entry) event() bool { return e.class == storepb.Class_EVENT }

// laid reports whether the write is laid over the object that the cloud delivered. What it says of its node, an agent adds to the object in the
// cloud.
func (e *entry) laid() bool { return e.class != storepb.Class_EVENT && e.class != storepb.Class_REPORT }

// queue is the writes of one target, oldest first: first those accepted, then at most one under way, then those that wait.
type queue struct{ entries []*entry }

// head is the next write to send.
func (q *queue) head() *entry {
	for _, e := range q.entries {
		if !e.accepted {
			return e
		}
	}
	return nil
}

type eventSums struct{ entries, bytes int }

// outbox is the writes that wait. Owned by the core; changed in show and by sending.
type outbox struct {
	last         uint64 // number of the newest entry
	lastInterest uint64 // ... and of the newest interest, which is numbered the same way
	queues       map[target]*queue
	targets      map[uint64]target
	inflight     map[uint64]bool // true: an event
	inEvents     int             // how many of inflight are events
	state        *ready.Set      // heads that may be sent
	event        *ready.Set
	eventOrder   []uint64 // events by age; may hold some that are gone
	events       eventSums
	dropped      uint64 // events that had to make room and that nobody was told of
}

func newOutbox() *outbox {
	return &outbox{
		queues: map[target]*queue{}, targets: map[uint64]target{}, inflight: map[uint64]bool{}, state: ready.New(), event: ready.New(),
	}
}

func entryOf(id uint64, r *storepb.Entry) (target, *entry) {
	t := target{
		schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}, key{r.Namespace, r.Name},
	}
	e := &entry{
		id: id, class: r.Class, verb: topicpb.Verb(r.Verb), subresource: r.Subresource, patchType: types.PatchType(r.PatchType), uid: types.UID(r.Uid),
		at: r.UnixMillis, shownVersion: r.ShownVersion, accepted: r.Accepted, acceptedVersion: r.AcceptedVersion, size: len(r.Body), sent: true,
	}
	if !e.event() {
		e.body = r.Body
	}
	return t, e
}

// noteEvents keeps eventOrder in the order of age: the queues of a batch come in any order.
func (o *outbox) noteEvents(q *queue) {
	for _, e := range q.entries {
		if !e.event() {
			continue
		}
		if i, found := slices.BinarySearch(o.eventOrder, e.id); !found {
			o.eventOrder = slices.Insert(o.eventOrder, i, e.id)
		}
	}
}

// offer puts the head of a queue among those to send, unless one of the queue is under way.
func (o *outbox) offer(q *queue) {
	e := q.head()
	if e == nil {
		return
	}
	if _, under := o.inflight[e.id]; under {
		return
	}
	o.readyOf(e).Put(e.id)
}

func (o *outbox) readyOf(e *entry) *ready.Set {
	if e.event() {
		return o.event
	}
	return o.state
}

// restart makes all that was under way wait again: the link that it was on is gone.
func (o *outbox) restart() {
	clear(o.inflight)
	o.inEvents = 0
	o.state, o.event = ready.New(), ready.New()
	for _, q := range o.queues {
		o.offer(q)
	}
}

// ended says that the entry is no longer under way.
func (o *outbox) ended(id uint64) {
	if event, ok := o.inflight[id]; ok {
		delete(o.inflight, id)
		if event {
			o.inEvents--
		}
	}
}

// next takes the oldest of those that may be sent; nil where there is none.
func (o *outbox) next(r *ready.Set) (target, *entry) {
	id, ok := r.Take()
	if !ok {
		return target{}, nil
	}
	t := o.targets[id]
	return t, o.queues[t].head()
}

// written is, by resource, the greatest of kube-apiserver's versions of accepted writes that have not
// come down yet; the greatest number where the version of one is not known.
func (o *outbox) written() map[schema.GroupVersionResource]uint64 {
	out := map[schema.GroupVersionResource]uint64{}
	for t, q := range o.queues {
		for _, e := range q.entries {
			if e.accepted {
				out[t.resource] = max(out[t.resource], cmp.Or(object.Number(e.acceptedVersion), math.MaxUint64))
			}
		}
	}
	return out
}
