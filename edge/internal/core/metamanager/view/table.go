package view

import (
	"crypto/sha256"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// table has the cached objects of one resource. Guarded by the View's lock.
type table struct {
	resource schema.GroupVersionResource
	objects  map[types.NamespacedName]*Held
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
		resource: resource, objects: map[types.NamespacedName]*Held{}, floor: floor,
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
func (t *table) set(k types.NamespacedName, h *Held) {
	if old := t.objects[k]; old != nil && !t.local {
		t.digest.toggle(old.Shown.UID, old.Shown.CloudVersion)
		t.digest.count--
	}
	if h == nil {
		delete(t.objects, k)
		return
	}
	if !t.local {
		t.digest.toggle(h.Shown.UID, h.Shown.CloudVersion)
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
		v := object.Number(h.Shown.CloudVersion)
		if v == 0 {
			return 0
		}
		most = max(most, v)
	}
	return most
}

// keys lists the objects in the order in which kube-apiserver lists them.
func (t *table) keys() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(t.objects), compareKeys)
}

// bucketOf is the bucket of a key in an Inventory.
func bucketOf(k types.NamespacedName) byte {
	h := sha256.Sum256([]byte(k.Namespace + "\x00" + k.Name))
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
			buckets[bucketOf(k)].toggle(h.Shown.UID, h.Shown.CloudVersion)
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
			Namespace: k.Namespace, Name: k.Name, Uid: string(h.Shown.UID), ResourceVersion: h.Shown.CloudVersion,
		})
	}
	return inv
}

func (t *table) watch(w *watcher) {
	name := w.selection.Name()
	if name == "" {
		t.wide[w] = struct{}{}
		return
	}
	if t.named[name] == nil {
		t.named[name] = map[*watcher]struct{}{}
	}
	t.named[name][w] = struct{}{}
}

func (t *table) unwatch(w *watcher) {
	delete(t.wide, w)
	if name := w.selection.Name(); name != "" {
		delete(t.named[name], w)
		if len(t.named[name]) == 0 {
			delete(t.named, name)
		}
	}
}

// watchersOf lists the watchers that may select an object.
func (t *table) watchersOf(k types.NamespacedName) []*watcher {
	if len(t.wide) == 0 && len(t.named[k.Name]) == 0 {
		return nil
	}
	ws := make([]*watcher, 0, len(t.wide)+len(t.named[k.Name]))
	for w := range t.wide {
		ws = append(ws, w)
	}
	for w := range t.named[k.Name] {
		ws = append(ws, w)
	}
	return ws
}
