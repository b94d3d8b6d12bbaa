package meta

import (
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
)

type key struct{ namespace, name string }

func (k key) compare(o key) int {
	if c := strings.Compare(k.namespace, o.namespace); c != 0 {
		return c
	}
	return strings.Compare(k.name, o.name)
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

func (d digest) wire(r schema.GroupVersionResource) *topicpb.Digest {
	return &topicpb.Digest{Resource: wireResource(r), Count: d.count, Sum: slices.Clone(d.sum[:])}
}

// is reports whether d is what the cloud says.
func (d digest) is(p *topicpb.Digest) bool {
	return d.count == p.GetCount() && string(d.sum[:]) == string(p.GetSum())
}

// table is what is held of one resource. Guarded by Manager.mu.
type table struct {
	resource schema.GroupVersionResource
	objects  map[key]*held
	local    bool // made here, not delivered by the cloud: the ring of events
	digest   digest

	history      []change // the newest changes, oldest first
	historyBytes int
	floor        uint64 // a watch can start from this version and any later one

	named map[string]map[*watcher]struct{} // those of one object, by its name
	wide  map[*watcher]struct{}
}

func newTable(resource schema.GroupVersionResource, floor uint64) *table {
	return &table{
		resource: resource, objects: map[key]*held{}, floor: floor,
		named: map[string]map[*watcher]struct{}{}, wide: map[*watcher]struct{}{},
	}
}

func (t *table) allWatchers() []*watcher {
	all := slices.Collect(maps.Keys(t.wide))
	for _, ws := range t.named {
		all = slices.AppendSeq(all, maps.Keys(ws))
	}
	return all
}

// set replaces an object and keeps the digest; nil deletes it.
func (t *table) set(k key, h *held) {
	if old := t.objects[k]; old != nil && !t.local {
		t.digest.toggle(old.shown.UID, old.shown.CloudVersion)
		t.digest.count--
	}
	if h == nil {
		delete(t.objects, k)
		return
	}
	if !t.local {
		t.digest.toggle(h.shown.UID, h.shown.CloudVersion)
		t.digest.count++
	}
	t.objects[k] = h
}

func (t *table) remember(c change, limits Limits) {
	t.history = append(t.history, c)
	t.historyBytes += c.size()
	drop := 0
	for len(t.history)-drop > limits.HistoryChanges || (t.historyBytes > limits.HistoryBytes && len(t.history)-drop > 1) {
		t.historyBytes -= t.history[drop].size()
		t.floor = t.history[drop].version
		drop++
	}
	if drop > 0 {
		t.history = slices.Delete(t.history, 0, drop)
	}
}

// newest is the greatest of kube-apiserver's versions among the objects; 0 where one is no number.
func (t *table) newest() (most uint64) {
	for _, h := range t.objects {
		v, err := strconv.ParseUint(h.shown.CloudVersion, 10, 64)
		if err != nil {
			return 0
		}
		most = max(most, v)
	}
	return most
}

// keys lists the objects in the order in which kube-apiserver lists them.
func (t *table) keys() []key { return slices.SortedFunc(maps.Keys(t.objects), key.compare) }

// bucketOf is the bucket of a key in an Inventory.
func bucketOf(k key) byte {
	h := sha256.Sum256([]byte(k.namespace + "\x00" + k.name))
	return h[0]
}

// shortSum is how many bytes of a bucket's sum travel.
const shortSum = 4

// inventory answers an InventoryRequest.
func (t *table) inventory(r *topicpb.InventoryRequest) *topicpb.Inventory {
	inv := &topicpb.Inventory{Resource: r.Resource}
	if t == nil {
		t = newTable(schema.GroupVersionResource{}, 0)
	}
	if r.Buckets {
		var buckets [256]digest
		for k, h := range t.objects {
			buckets[bucketOf(k)].toggle(h.shown.UID, h.shown.CloudVersion)
		}
		for _, b := range buckets {
			inv.Sums = append(inv.Sums, b.sum[:shortSum]...)
		}
		return inv
	}
	only := map[byte]bool{}
	for _, b := range r.Only {
		only[byte(b)] = true
	}
	for _, k := range t.keys() {
		if len(only) > 0 && !only[bucketOf(k)] {
			continue
		}
		h := t.objects[k]
		inv.Entries = append(inv.Entries, &topicpb.Entry{
			Namespace: k.namespace, Name: k.name, Uid: string(h.shown.UID), ResourceVersion: h.shown.CloudVersion,
		})
	}
	return inv
}

// older reports whether kube-apiserver's version a is older than b. Since Kubernetes 1.35 resource versions can be compared as numbers (KEP-5504);
// where one is none, they are only equal or not.
func older(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	if err1 != nil || err2 != nil {
		return a != b
	}
	return x < y
}

func wireResource(r schema.GroupVersionResource) *topicpb.Resource {
	return &topicpb.Resource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}

func resourceOf(r *topicpb.Resource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.GetGroup(), Version: r.GetVersion(), Resource: r.GetResource()}
}
