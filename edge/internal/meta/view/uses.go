package view

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

// Resources that are answered in a way of their own.
var (
	Pods   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	Nodes  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	Events = schema.GroupVersionResource{Version: "v1", Resource: "events"} // made on the device, not delivered by the cloud
)

// dependency is one object that a pod refers to.
type dependency struct {
	resource string // of the core group
	types.NamespacedName
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
		d := dependency{resource, types.NamespacedName{Namespace: pod.Namespace, Name: name}}
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
