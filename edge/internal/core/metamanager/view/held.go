package view

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func keyOf(ref object.Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Held is one object: in its delivered form, and in its visible form with the pending writes
// applied. It is never changed, only replaced.
type Held struct {
	Shown  object.Object
	hidden bool  // a deletion waits: shown to no client
	more   *more // nil for nearly all: shown as delivered, and it refers to no other
}

// more has the fields that few objects need.
type more struct {
	raw    []byte // as delivered; the same bytes as Shown.Raw where no write waits
	labels object.Labels
	uses   []use // of a pod

	withheld string // of a pod: why the kubelet is not shown it; see podgate
}

// NewHeld returns a delivered object, shown unchanged; decoded is the same object, nil if it cannot
// refer to others.
func NewHeld(delivered object.Object, decoded runtime.Object) *Held {
	h := &Held{Shown: delivered}
	if uses := usesOf(decoded); len(uses) > 0 {
		h.more = &more{raw: delivered.Raw, labels: delivered.Labels, uses: uses}
	}
	return h
}

// With is h, of which shown is shown; h itself where that is so already.
func (h *Held) With(shown object.Object, hidden bool) *Held {
	same := bytes.Equal(shown.Raw, h.Shown.Raw) && shown.Labels == h.Shown.Labels
	if same && hidden == h.hidden {
		return h
	}
	next := *h
	if h.more == nil && !same {
		next.more = &more{raw: h.Shown.Raw, labels: h.Shown.Labels}
	}
	next.Shown, next.hidden = shown, hidden
	return &next
}

// Withhold is h, which the kubelet is not shown for this reason, or is shown where it is "".
func (h *Held) Withhold(reason string) *Held {
	if h.Withheld() == reason {
		return h
	}
	next := *h
	m := more{raw: h.Shown.Raw, labels: h.Shown.Labels}
	if h.more != nil {
		m = *h.more
	}
	m.withheld = reason
	next.more = &m
	return &next
}

// Withheld is why the kubelet is not shown the object; "" where it is.
func (h *Held) Withheld() string {
	if h.more == nil {
		return ""
	}
	return h.more.withheld
}

// shownTo reports whether the object is visible to a client.
func (h *Held) shownTo(kubelet bool) bool { return !kubelet || h.Withheld() == "" }

// uses lists the objects that a pod refers to.
func (h *Held) uses() []use {
	if h.more == nil {
		return nil
	}
	return h.more.uses
}

// Visible is h, or nil where no client may see it.
func (h *Held) Visible() *Held {
	if h == nil || h.hidden {
		return nil
	}
	return h
}

// Hidden reports whether a deletion waits.
func (h *Held) Hidden() bool { return h.hidden }

// Delivered is the object as the cloud delivered it.
func (h *Held) Delivered() object.Object {
	o := h.Shown
	if h.more != nil {
		o.Raw, o.Labels = h.more.raw, h.more.labels
	}
	return o
}

// digest sums up the delivered objects of one resource; see topicpb.Digest.
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

// is reports whether d equals the cloud's digest.
func (d digest) is(p *topicpb.Digest) bool {
	return d.count == p.GetCount() && string(d.sum[:]) == string(p.GetSum())
}

// change is one visible change of one object.
type change struct {
	version uint64
	key     types.NamespacedName
	before  *Held // nil: new object
	after   *Held // nil: is gone
}

func (c change) size() int {
	n := 64
	if c.before != nil {
		n += len(c.before.Shown.Raw)
	}
	if c.after != nil {
		n += len(c.after.Shown.Raw)
	}
	return n
}

func wireResource(r schema.GroupVersionResource) *topicpb.Resource {
	return &topicpb.Resource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}

// ResourceOf is a resource as the link names it.
func ResourceOf(r *topicpb.Resource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.GetGroup(), Version: r.GetVersion(), Resource: r.GetResource()}
}
