package publish

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// changeOverhead is about the size of a change without its object, in bytes.
const changeOverhead = 96

// frame is the State being filled.
type frame struct {
	state *topicpb.State
	bytes int
	last  *topicpb.Resource // whose changes the last group holds
}

func resourceFrom(p *topicpb.Resource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: p.GetGroup(), Version: p.GetVersion(), Resource: p.GetResource()}
}

// deletion reports that an object is not the edge's to hold, as of a version of its collection; 0:
// unknown. The order of a frame is the order in which the edge applies it.
func (f *frame) deletion(r *topicpb.Resource, key kube.Key, version uint64) {
	c := &topicpb.Change{Namespace: key.Namespace, Name: key.Name, Deleted: true}
	if version != 0 {
		c.ResourceVersion = strconv.FormatUint(version, 10)
	}
	f.add(r, c)
}

// change appends the state of a key: o, or that it is gone when o is nil. unnamed: the edge takes
// the key from the object, of which it is a part in every encoding.
func (f *frame) change(r *topicpb.Resource, key kube.Key, o *kube.Object, unnamed bool) {
	if o == nil {
		f.deletion(r, key, 0)
		return
	}
	c := &topicpb.Change{Object: o.Raw}
	if !unnamed {
		c.Namespace, c.Name = key.Namespace, key.Name
	}
	if o.Version != o.Revision { // else the object has it
		c.ResourceVersion = o.Version
	}
	f.add(r, c)
}

func (f *frame) add(r *topicpb.Resource, c *topicpb.Change) {
	f.begin()
	if f.last != r {
		f.state.Changes = append(f.state.Changes, &topicpb.Changes{Resource: r})
		f.last = r
	}
	group := f.state.Changes[len(f.state.Changes)-1]
	group.Items = append(group.Items, c)
	f.bytes += changeOverhead + len(c.Object) + len(c.Name) + len(c.Namespace)
}

func (f *frame) synced(id uint64) {
	f.begin()
	f.state.Synced = append(f.state.Synced, id)
	f.bytes += 8
}

func (f *frame) expect(r *topicpb.Resource, d digest) {
	f.begin()
	f.state.Expected = append(f.state.Expected, &topicpb.Digest{Resource: r, Count: d.count, Sum: d.sum[:]})
	f.bytes += 32
}

func (f *frame) refuse(id uint64, status []byte) {
	f.begin()
	f.state.Refused = append(f.state.Refused, &topicpb.Refusal{Interest: id, Status: status})
	f.bytes += 16 + len(status)
}

func (f *frame) begin() {
	if f.state == nil {
		f.state = &topicpb.State{}
	}
}

func (f *frame) empty() bool { return f.bytes == 0 }

// window has the sent changes that were not acknowledged.
type window struct {
	sequence uint64 // of the last State sent
	acked    uint64
	sizes    []int // of the States after acked
	bytes    int
}

// ack accepts an acknowledgement; one of an unsent change counts up to the last sent.
func (w *window) ack(sequence uint64) {
	sequence = min(sequence, w.sequence)
	if sequence <= w.acked {
		return
	}
	n := int(sequence - w.acked)
	for _, size := range w.sizes[:n] {
		w.bytes -= size
	}
	w.sizes = slices.Delete(w.sizes, 0, n)
	if len(w.sizes) == 0 {
		w.sizes = nil
	}
	w.acked = sequence
}

// open reports whether another State may be sent.
func (w *window) open() bool {
	return len(w.sizes) == 0 || len(w.sizes) < windowStates && w.bytes < windowBytes
}

func (w *window) take(size int) uint64 {
	w.sequence++
	w.sizes = append(w.sizes, size)
	w.bytes += size
	return w.sequence
}
