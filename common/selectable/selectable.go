// Package selectable lists the fields that field selectors may use in each resource in addition to
// metadata.name and metadata.namespace: those that kube-apiserver supports, in the versions that it
// serves.
//
// It owns the list, by which cloudcore selects the objects that go down and edgecore those that it
// answers with; a test compares it with Kubernetes' own. It refuses the selectableFields of
// CustomResourceDefinitions, which only kube-apiserver has. It is stateless.
package selectable

import (
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// NodeName is the field that names an object's node. Where a resource has it, it is the first of
// its Names.
const NodeName = "spec.nodeName"

// Names lists the fields of a resource; nil without one.
func Names(resource schema.GroupResource) []string {
	switch resource {
	case schema.GroupResource{Resource: "pods"}:
		return []string{
			NodeName, "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs",
			"status.nominatedNodeName",
		}
	case schema.GroupResource{Resource: "nodes"}:
		return []string{"spec.unschedulable"}
	case schema.GroupResource{Resource: "services"}:
		return []string{"spec.clusterIP", "spec.type"}
	case schema.GroupResource{Resource: "secrets"}:
		return []string{"type"}
	case schema.GroupResource{Resource: "namespaces"}:
		return []string{"status.phase"}
	case schema.GroupResource{Resource: "replicationcontrollers"}:
		return []string{"status.replicas"}
	case schema.GroupResource{Resource: "events"}:
		return []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion",
			"involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
		}
	case schema.GroupResource{Group: "events.k8s.io", Resource: "events"}:
		return []string{
			"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "regarding.apiVersion", "regarding.resourceVersion",
			"regarding.fieldPath", "reason", "reportingController", "type",
		}
	case schema.GroupResource{Group: "batch", Resource: "jobs"}:
		return []string{"status.successful"}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		return []string{NodeName, "spec.signerName", "spec.podName"}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
		schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return []string{"spec.signerName"}
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return []string{NodeName, "spec.driver", "spec.pool.name"}
	case v1alpha1.Resource(v1alpha1.NodeOperations).GroupResource():
		return []string{NodeName}
	}
	return nil
}

// Values returns the values of an object, in the order of its resource's Names.
func Values(obj runtime.Object) []string {
	_, values := of(obj)
	return values
}

// Fields calls do for each field of an object.
func Fields(obj runtime.Object, do func(name, value string)) {
	resource, values := of(obj)
	for i, name := range Names(resource) {
		do(name, values[i])
	}
}

// of returns the resource of an object that has fields, and their values.
func of(obj runtime.Object) (resource schema.GroupResource, values []string) {
	if signer, pod, node, ok := podCertificateRequest(obj); ok {
		return schema.GroupResource{Group: certificatesv1.GroupName, Resource: "podcertificaterequests"}, []string{node, signer, pod}
	}
	if signer, ok := signerOfBundle(obj); ok {
		return schema.GroupResource{Group: certificatesv1.GroupName, Resource: "clustertrustbundles"}, []string{signer}
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		return schema.GroupResource{Resource: "pods"}, podValues(o)
	case *corev1.Node:
		return schema.GroupResource{Resource: "nodes"}, []string{strconv.FormatBool(o.Spec.Unschedulable)}
	case *corev1.Service:
		return schema.GroupResource{Resource: "services"}, []string{o.Spec.ClusterIP, string(o.Spec.Type)}
	case *corev1.Secret:
		return schema.GroupResource{Resource: "secrets"}, []string{string(o.Type)}
	case *corev1.Namespace:
		return schema.GroupResource{Resource: "namespaces"}, []string{string(o.Status.Phase)}
	case *corev1.ReplicationController:
		return schema.GroupResource{Resource: "replicationcontrollers"}, []string{strconv.Itoa(int(o.Status.Replicas))}
	case *corev1.Event:
		source := o.Source.Component
		if source == "" {
			source = o.ReportingController
		}
		return schema.GroupResource{Resource: "events"}, append(references(&o.InvolvedObject), o.Reason, o.ReportingController, source, o.Type)
	case *eventsv1.Event:
		return schema.GroupResource{Group: eventsv1.GroupName, Resource: "events"}, append(references(&o.Regarding), o.Reason, o.ReportingController, o.Type)
	case *batchv1.Job:
		return schema.GroupResource{Group: batchv1.GroupName, Resource: "jobs"}, []string{strconv.Itoa(int(o.Status.Succeeded))}
	case *certificatesv1.CertificateSigningRequest:
		return schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}, []string{o.Spec.SignerName}
	case *resourcev1.ResourceSlice:
		return sliceValues(o.Spec.NodeName, o.Spec.Driver, o.Spec.Pool.Name)
	case *resourcev1beta2.ResourceSlice:
		return sliceValues(o.Spec.NodeName, o.Spec.Driver, o.Spec.Pool.Name)
	case *resourcev1beta1.ResourceSlice:
		return sliceValues(&o.Spec.NodeName, o.Spec.Driver, o.Spec.Pool.Name)
	case *unstructured.Unstructured:
		if r := v1alpha1.Resource(v1alpha1.NodeOperations).GroupResource(); o.GetKind() == "NodeOperation" && o.GroupVersionKind().Group == r.Group {
			node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
			return r, []string{node}
		}
	}
	return schema.GroupResource{}, nil
}

func podValues(p *corev1.Pod) []string {
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []string{
		p.Spec.NodeName, string(p.Spec.RestartPolicy), p.Spec.SchedulerName, p.Spec.ServiceAccountName, strconv.FormatBool(p.Spec.HostNetwork),
		string(p.Status.Phase), ip, ip, p.Status.NominatedNodeName,
	}
}

func sliceValues(node *string, driver, pool string) (schema.GroupResource, []string) {
	r := schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceslices"}
	if node == nil {
		return r, []string{"", driver, pool}
	}
	return r, []string{*node, driver, pool}
}

func references(r *corev1.ObjectReference) []string {
	return []string{r.Kind, r.Namespace, r.Name, string(r.UID), r.APIVersion, r.ResourceVersion, r.FieldPath}
}
