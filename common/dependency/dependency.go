// Package dependency is the objects that a pod needs on its node: those that Kubernetes' Node
// authorizer lets the node of a pod read (plugin/pkg/auth/authorizer/node).
//
// It owns the list, by which cloudcore sends these objects in front of the pod and edgecore finds
// the objects of a pod that it holds; a test compares it with the authorizer. It refuses objects
// that every node may read, such as ClusterTrustBundles: these come by the kubelet's own watches.
// It is stateless.
package dependency

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	volumeutil "k8s.io/kubernetes/pkg/api/v1/persistentvolume"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// The resources of dependencies.
var (
	ConfigMaps      = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Secrets         = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	Claims          = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	Volumes         = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	ServiceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	ResourceClaims  = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}
	Attachments     = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
)

// Resources lists the resources of dependencies.
func Resources() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{ConfigMaps, Secrets, Claims, Volumes, ServiceAccounts, ResourceClaims, Attachments}
}

// Always reports whether every cloudcore sends a resource with the pods, also the oldest, and may
// follow it: an object of it that an edge lacks does not exist. Of the others that is not certain.
func Always(resource schema.GroupVersionResource) bool {
	return resource == ConfigMaps || resource == Secrets || resource == Claims || resource == Volumes
}

// Ref names an object.
type Ref struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// PerNode: each node has one of its own, and Name is a part of its name; see On.
	PerNode bool
}

// On is the ref for one node.
func (r Ref) On(node string) Ref {
	if r.PerNode {
		r.Name, r.PerNode = AttachmentName(r.Name, node), false
	}
	return r
}

// AttachmentName is the name of the VolumeAttachment of a CSI volume, of which volume is the handle
// with the driver's name behind it (pkg/volume/csi/csi_attacher.go, getAttachmentName).
func AttachmentName(volume, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume+node)))
}

// Of lists the objects that o needs on its node: for a pod its claims and all others that it names,
// for a claim its volume, for a volume its Secrets and its attachment.
func Of(o runtime.Object) []Ref {
	var refs []Ref
	add := func(resource schema.GroupVersionResource, namespace, name string) {
		if name != "" {
			refs = append(refs, Ref{Resource: resource, Namespace: namespace, Name: name})
		}
	}
	switch o := o.(type) {
	case *corev1.Pod:
		ofPod(o, func(resource schema.GroupVersionResource, name string) { add(resource, o.Namespace, name) })
	case *corev1.PersistentVolumeClaim:
		add(Volumes, "", o.Spec.VolumeName)
	case *corev1.PersistentVolume:
		if o.Spec.ClaimRef == nil {
			return nil
		}
		volumeutil.VisitPVSecretNames(o, func(namespace, name string, kubeletVisible bool) bool {
			if kubeletVisible {
				add(Secrets, namespace, name)
			}
			return true
		})
		if o.Spec.CSI != nil {
			refs = append(refs, Ref{Resource: Attachments, Name: o.Spec.CSI.VolumeHandle + o.Spec.CSI.Driver, PerNode: true})
		}
	}
	slices.SortFunc(refs, compare)
	return slices.Compact(refs)
}

func ofPod(p *corev1.Pod, add func(resource schema.GroupVersionResource, name string)) {
	// A node makes mirror pods itself: it may not read the objects that they refer to, and the
	// authorizer agrees.
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror || p.Spec.NodeName == "" {
		return
	}
	add(ServiceAccounts, p.Spec.ServiceAccountName)
	podutil.VisitPodSecretNames(p, func(name string) bool { add(Secrets, name); return true })
	podutil.VisitPodConfigmapNames(p, func(name string) bool { add(ConfigMaps, name); return true })
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			add(Claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			add(Claims, p.Name+"-"+v.Name) // the name of a generic ephemeral volume's claim, KEP-1698
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		switch {
		case c.ResourceClaimName != nil:
			add(ResourceClaims, *c.ResourceClaimName)
		case c.ResourceClaimTemplateName != nil: // the status has the name of the claim that was made of it
			for _, made := range p.Status.ResourceClaimStatuses {
				if made.Name == c.Name && made.ResourceClaimName != nil {
					add(ResourceClaims, *made.ResourceClaimName)
				}
			}
		}
	}
	if extended := p.Status.ExtendedResourceClaimStatus; extended != nil {
		add(ResourceClaims, extended.ResourceClaimName)
	}
}

func compare(a, b Ref) int {
	if c := strings.Compare(a.Resource.Resource, b.Resource.Resource); c != 0 {
		return c
	}
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}
