package view

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/dependency"
)

// Resources that are answered in a way of their own.
var (
	Pods   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	Nodes  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	Events = schema.GroupVersionResource{Version: "v1", Resource: "events"} // made on the device, not delivered by the cloud
)

// use is one object that a pod refers to.
type use struct {
	resource schema.GroupVersionResource
	types.NamespacedName
}

// usesOf lists the objects that a pod refers to.
func usesOf(obj runtime.Object) []use {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	needs := dependency.Of(pod)
	if len(needs) == 0 {
		return nil
	}
	uses := make([]use, len(needs))
	for i, n := range needs {
		uses[i] = use{n.Resource, types.NamespacedName{Namespace: n.Namespace, Name: n.Name}}
	}
	return uses
}
