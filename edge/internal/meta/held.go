package meta

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
)

type key struct{ namespace, name string }

func (k key) compare(o key) int {
	return cmp.Or(strings.Compare(k.namespace, o.namespace), strings.Compare(k.name, o.name))
}

// dependency is one object that a pod refers to.
type dependency struct {
	resource string // of the core group
	key
}

// held is one object: as the cloud delivered it, and as it is shown, with the writes that wait laid over it. It is never changed, only replaced.
type held struct {
	shown  object.Object
	hidden bool   // a deletion waits in the outbox: shown to nobody
	raw    []byte // as delivered; the same bytes as shown.Raw where no write waits
	labels map[string]string
	uses   []dependency // of a pod
}

// visible is h, or nil where nobody may see it.
func (h *held) visible() *held {
	if h == nil || h.hidden {
		return nil
	}
	return h
}

// digest sums up what the cloud delivered of one resource; see topicpb.Digest.
type digest struct {
	count uint64
	sum   [16]byte
}

func (d *digest) toggle(uid types.UID, version string) {
	h := sha256.Sum256([]byte(string(uid) + "\x00" + version))
	for i := range d.sum {
		d.sum[i] ^= h[i]
	}
}

func (d digest) wire(r schema.GroupVersionResource) *topicpb.Digest {
	return &topicpb.Digest{Resource: wireResource(r), Count: d.count, Sum: slices.Clone(d.sum[:])}
}

// is reports whether d is what the cloud says.
func (d digest) is(p *topicpb.Digest) bool {
	return d.count == p.GetCount() && string(d.sum[:]) == string(p.GetSum())
}

// change is one visible change of one object.
type change struct {
	version uint64
	key     key
	before  *held // nil: was not there
	after   *held // nil: is gone
}

func (c change) size() int {
	n := 64
	if c.before != nil {
		n += len(c.before.shown.Raw)
	}
	if c.after != nil {
		n += len(c.after.shown.Raw)
	}
	return n
}

func wireResource(r schema.GroupVersionResource) *topicpb.Resource {
	return &topicpb.Resource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}

func resourceOf(r *topicpb.Resource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.GetGroup(), Version: r.GetVersion(), Resource: r.GetResource()}
}

// delivered is the object as the cloud delivered it.
func (h *held) delivered() object.Object {
	o := h.shown
	o.Raw, o.Labels = h.raw, h.labels
	return o
}
