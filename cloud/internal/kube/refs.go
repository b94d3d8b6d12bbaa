package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	volumeutil "k8s.io/kubernetes/pkg/api/v1/persistentvolume"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// The resources that pods need on their node.
var (
	Pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	Claims     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	Volumes    = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
)

// Key names an object in its collection.
type Key struct{ Namespace, Name string }

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Ref names an object.
type Ref struct {
	Resource schema.GroupVersionResource
	Key
}

// refsOf lists what o needs on its node: the same that the Node authorizer lets the node
// of a pod read.
func refsOf(o runtime.Object) []Ref {
	var refs []Ref
	add := func(resource schema.GroupVersionResource, namespace, name string) {
		if name != "" {
			refs = append(refs, Ref{resource, Key{namespace, name}})
		}
	}
	switch o := o.(type) {
	case *corev1.Pod:
		// A node makes mirror pods itself: what they refer to is none of its business, and the
		// authorizer says so too.
		if _, mirror := o.Annotations[corev1.MirrorPodAnnotationKey]; mirror || o.Spec.NodeName == "" {
			return nil
		}
		podutil.VisitPodSecretNames(o, func(name string) bool { add(Secrets, o.Namespace, name); return true })
		podutil.VisitPodConfigmapNames(o, func(name string) bool { add(ConfigMaps, o.Namespace, name); return true })
		for _, v := range o.Spec.Volumes {
			switch {
			case v.PersistentVolumeClaim != nil:
				add(Claims, o.Namespace, v.PersistentVolumeClaim.ClaimName)
			case v.Ephemeral != nil:
				add(Claims, o.Namespace, o.Name+"-"+v.Name) // the name of a generic ephemeral volume's claim, KEP-1698
			}
		}
	case *corev1.PersistentVolumeClaim:
		add(Volumes, "", o.Spec.VolumeName)
	case *corev1.PersistentVolume:
		if o.Spec.ClaimRef != nil {
			volumeutil.VisitPVSecretNames(o, func(namespace, name string, kubeletVisible bool) bool {
				if kubeletVisible {
					add(Secrets, namespace, name)
				}
				return true
			})
		}
	}
	slices.SortFunc(refs, compareRefs)
	return slices.Compact(refs)
}

func compareRefs(a, b Ref) int {
	if c := strings.Compare(a.Resource.Resource, b.Resource.Resource); c != 0 {
		return c
	}
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}
