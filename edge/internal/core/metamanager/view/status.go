package view

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// ResourceStatus is the status of one cached resource.
type ResourceStatus struct {
	Resource string `json:"resource"`
	Objects  int    `json:"objects"`
	Bytes    int    `json:"bytes"`
	Watchers int    `json:"watchers"`
}

// InterestStatus is one set that this device wants.
type InterestStatus struct {
	ID        uint64 `json:"id"`
	Set       string `json:"set"`
	Synced    bool   `json:"synced"`
	Watchers  int    `json:"watchers"`
	Refused   string `json:"refused,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Status lists the cached resources and the interests.
func (v *View) Status() (resources []ResourceStatus, interests []InterestStatus) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, t := range v.tables {
		r := ResourceStatus{Resource: t.resource.GroupResource().String(), Objects: len(t.objects), Watchers: len(t.allWatchers())}
		for _, h := range t.objects {
			r.Bytes += len(h.Shown.Raw)
		}
		resources = append(resources, r)
	}
	slices.SortFunc(resources, func(a, b ResourceStatus) int { return cmp.Compare(a.Resource, b.Resource) })
	for id, i := range v.interests {
		set := "what pods refer to"
		if !i.deps {
			set = i.Resource.GroupResource().String()
			for _, part := range []string{i.labels, i.Fields} {
				if part != "" {
					set += " " + part
				}
			}
		}
		is := InterestStatus{ID: id, Set: set, Namespace: i.Namespace, Synced: i.synced, Watchers: i.watchers}
		if i.refused != nil {
			is.Refused = i.refused.Message
		}
		interests = append(interests, is)
	}
	slices.SortFunc(interests, func(a, b InterestStatus) int { return cmp.Compare(a.ID, b.ID) })
	return resources, interests
}

// Withheld lists the pods that the kubelet is not shown, in the order of namespace and name.
func (v *View) Withheld() (pods []podgate.Withheld) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	t := v.tables[Pods]
	if t == nil {
		return nil
	}
	for k, h := range t.objects {
		if reason := h.Withheld(); reason != "" && !h.hidden {
			pods = append(pods, podgate.Withheld{Namespace: k.Namespace, Name: k.Name, UID: h.Shown.UID, Reason: reason})
		}
	}
	slices.SortFunc(pods, func(a, b podgate.Withheld) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// Resources lists the resources for which requests can be answered here and now.
func (v *View) Resources() []schema.GroupVersionResource {
	v.mu.RLock()
	defer v.mu.RUnlock()
	seen := map[schema.GroupVersionResource]bool{Events: true}
	for _, i := range v.interests {
		switch {
		case !i.synced:
		case i.deps:
			for _, r := range object.Travelling() {
				seen[r] = true
			}
		default:
			seen[i.Resource] = true
		}
	}
	return slices.Collect(maps.Keys(seen))
}
