package kube

import (
	"strconv"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// nodeNameField is where the tables of pods, podcertificaterequests and nodeoperations hold
// spec.nodeName: the field that stores are indexed by.
const nodeNameField = 0

// fieldTable is what field selectors may ask for in one resource, beside metadata.name and
// metadata.namespace.
type fieldTable struct {
	names  []string
	byNode bool // the first is spec.nodeName
	values func(runtime.Object) []string
}

// fieldsOf returns the table; the fields are those that kube-apiserver supports for the resource.
func fieldsOf(resource schema.GroupResource) *fieldTable {
	switch resource {
	case schema.GroupResource{Resource: "pods"}:
		return &fieldTable{
			names: []string{
				"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP",
				"status.nominatedNodeName",
			},
			byNode: true,
			values: func(o runtime.Object) []string {
				p, ok := o.(*corev1.Pod)
				if !ok {
					return nil
				}
				return []string{
					p.Spec.NodeName, string(p.Spec.RestartPolicy), p.Spec.SchedulerName, p.Spec.ServiceAccountName, strconv.FormatBool(p.Spec.HostNetwork),
					string(p.Status.Phase), p.Status.PodIP, p.Status.NominatedNodeName,
				}
			},
		}
	case schema.GroupResource{Resource: "nodes"}:
		return &fieldTable{names: []string{"spec.unschedulable"}, values: func(o runtime.Object) []string {
			if n, ok := o.(*corev1.Node); ok {
				return []string{strconv.FormatBool(n.Spec.Unschedulable)}
			}
			return nil
		}}
	case schema.GroupResource{Resource: "services"}:
		return &fieldTable{names: []string{"spec.clusterIP", "spec.type"}, values: func(o runtime.Object) []string {
			if s, ok := o.(*corev1.Service); ok {
				return []string{s.Spec.ClusterIP, string(s.Spec.Type)}
			}
			return nil
		}}
	case schema.GroupResource{Resource: "secrets"}:
		return &fieldTable{names: []string{"type"}, values: func(o runtime.Object) []string {
			if s, ok := o.(*corev1.Secret); ok {
				return []string{string(s.Type)}
			}
			return nil
		}}
	case schema.GroupResource{Resource: "namespaces"}:
		return &fieldTable{names: []string{"status.phase"}, values: func(o runtime.Object) []string {
			if n, ok := o.(*corev1.Namespace); ok {
				return []string{string(n.Status.Phase)}
			}
			return nil
		}}
	case v1alpha1.Resource(v1alpha1.NodeOperations).GroupResource():
		return &fieldTable{names: []string{"spec.nodeName"}, byNode: true, values: func(o runtime.Object) []string {
			if u, ok := o.(*unstructured.Unstructured); ok {
				node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
				return []string{node}
			}
			return nil
		}}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		return &fieldTable{names: []string{"spec.nodeName", "spec.signerName"}, byNode: true, values: func(o runtime.Object) []string {
			switch r := o.(type) {
			case *certificatesv1.PodCertificateRequest:
				return []string{string(r.Spec.NodeName), r.Spec.SignerName}
			case *certificatesv1beta1.PodCertificateRequest:
				return []string{string(r.Spec.NodeName), r.Spec.SignerName}
			}
			return nil
		}}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return &fieldTable{names: []string{"spec.signerName"}, values: func(o runtime.Object) []string {
			switch b := o.(type) {
			case *certificatesv1beta1.ClusterTrustBundle:
				return []string{b.Spec.SignerName}
			case *certificatesv1alpha1.ClusterTrustBundle:
				return []string{b.Spec.SignerName}
			}
			return nil
		}}
	}
	return &fieldTable{values: func(runtime.Object) []string { return nil }}
}

func (t *fieldTable) index(name string) int {
	for i, n := range t.names {
		if n == name {
			return i
		}
	}
	return -1
}
