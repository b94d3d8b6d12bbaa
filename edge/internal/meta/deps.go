package meta

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/skerry-io/skerry/edge/internal/object"
)

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

var (
	podsResource   = core("pods")
	nodesResource  = core("nodes")
	eventsResource = core("events")
)

// dependency is one object that a pod refers to.
type dependency struct {
	resource string // of the core group
	key
}

// usesOf lists what a pod refers to.
func usesOf(obj runtime.Object) []dependency {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	seen := map[dependency]bool{}
	var uses []dependency
	add := func(resource, name string) {
		d := dependency{resource, key{pod.Namespace, name}}
		if name != "" && !seen[d] {
			seen[d] = true
			uses = append(uses, d)
		}
	}
	podutil.VisitPodConfigmapNames(pod, func(name string) bool { add("configmaps", name); return true })
	podutil.VisitPodSecretNames(pod, func(name string) bool { add("secrets", name); return true })
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			add("persistentvolumeclaims", v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			// https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming
			add("persistentvolumeclaims", pod.Name+"-"+v.Name)
		}
	}
	return uses
}

// countUses keeps the index of what pods refer to. Called with the lock held.
func (m *Manager) countUses(before, after *held) {
	if before != nil {
		for _, d := range before.uses {
			if m.uses[d]--; m.uses[d] <= 0 {
				delete(m.uses, d)
			}
		}
	}
	if after != nil {
		for _, d := range after.uses {
			m.uses[d]++
		}
	}
}

// travelsHere reports whether a selection is of one object that some pod here refers to. Called with the lock held.
func (m *Manager) travelsHere(s object.Selection) bool {
	name := s.Name()
	if name == "" || !object.Travels(s.Resource) {
		return false
	}
	if s.Resource.Resource != "persistentvolumes" {
		return m.uses[dependency{s.Resource.Resource, key{s.Namespace, name}}] > 0
	}
	claims := m.tables[core("persistentvolumeclaims")]
	if claims == nil {
		return false
	}
	for k, h := range claims.objects {
		if m.uses[dependency{"persistentvolumeclaims", k}] == 0 {
			continue
		}
		obj, err := object.DecodeRaw(h.raw)
		if err != nil {
			continue
		}
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == name {
			return true
		}
	}
	return false
}
