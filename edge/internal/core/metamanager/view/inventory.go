package view

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// fewEntries is up to how many objects all entries are sent at once, instead of the sums of
// their buckets first.
const fewEntries = 64

// Interests returns the interests and digests of this device for the session with this epoch.
// written is called under the same lock: by resource, the newest of kube-apiserver's versions of
// writes that have not been delivered yet.
func (v *View) Interests(written func() map[schema.GroupVersionResource]uint64) (msg *topicpb.Interests, epoch uint64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	// An object is decoded before it is kept, so it need not be named a second time next to it. An
	// older cloudcore ignores this and names each.
	msg = &topicpb.Interests{Unnamed: true}
	for _, id := range slices.Sorted(maps.Keys(v.interests)) {
		msg.Interests = append(msg.Interests, v.interests[id].wire())
	}
	resources := slices.SortedFunc(maps.Keys(v.tables), func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	newest := written()
	for _, r := range resources {
		t := v.tables[r]
		if t.local || t.digest.count == 0 && v.gone[r] == 0 {
			continue
		}
		d := t.digest.wire(r)
		d.Newest, d.Written = t.newest(), newest[r]
		if v.gone[r] > d.Newest { // else the cached objects prove as much
			d.Written = max(d.Written, v.gone[r])
		}
		msg.Digests = append(msg.Digests, d)
	}
	return msg, v.link.Epoch
}

// Inventory answers the cloud's request for the objects of a resource.
func (v *View) Inventory(r *topicpb.InventoryRequest) *topicpb.Inventory {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.tables[ResourceOf(r.GetResource())].inventory(r)
}

// Mismatch lists the cached objects of a resource for a cloud that expected others.
func (v *View) Mismatch(resource schema.GroupVersionResource) *topicpb.Inventory {
	v.mu.RLock()
	defer v.mu.RUnlock()
	t := v.tables[resource]
	var d digest
	if t != nil {
		d = t.digest
	}
	inventory := t.inventory(&topicpb.InventoryRequest{Resource: wireResource(resource), Buckets: d.count > fewEntries})
	inventory.Holds = d.wire(resource)
	return inventory
}
