package object

import (
	"fmt"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// Fields lists what a field selector may ask for of obj, as kube-apiserver's own registries do
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/). A field
// that the kind supports is always there, even if empty.
func Fields(obj runtime.Object) fields.Set {
	set := fields.Set{}
	if m, err := meta.Accessor(obj); err == nil {
		set[fieldName] = m.GetName()
		set[fieldNamespace] = m.GetNamespace()
	}
	if signer, pod, node, ok := podCertificateRequest(obj); ok {
		set["spec.signerName"], set["spec.podName"], set["spec.nodeName"] = signer, pod, node
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		set["spec.nodeName"] = o.Spec.NodeName
		set["spec.restartPolicy"] = string(o.Spec.RestartPolicy)
		set["spec.schedulerName"] = o.Spec.SchedulerName
		set["spec.serviceAccountName"] = o.Spec.ServiceAccountName
		set["spec.hostNetwork"] = strconv.FormatBool(o.Spec.HostNetwork)
		set["status.phase"] = string(o.Status.Phase)
		set["status.podIP"] = o.Status.PodIP
		set["status.podIPs"] = o.Status.PodIP
		if len(o.Status.PodIPs) > 0 {
			set["status.podIP"] = o.Status.PodIPs[0].IP
			set["status.podIPs"] = o.Status.PodIPs[0].IP
		}
		set["status.nominatedNodeName"] = o.Status.NominatedNodeName
	case *corev1.Event:
		source := o.Source.Component
		if source == "" {
			source = o.ReportingController
		}
		set["involvedObject.kind"] = o.InvolvedObject.Kind
		set["involvedObject.namespace"] = o.InvolvedObject.Namespace
		set["involvedObject.name"] = o.InvolvedObject.Name
		set["involvedObject.uid"] = string(o.InvolvedObject.UID)
		set["involvedObject.apiVersion"] = o.InvolvedObject.APIVersion
		set["involvedObject.resourceVersion"] = o.InvolvedObject.ResourceVersion
		set["involvedObject.fieldPath"] = o.InvolvedObject.FieldPath
		set["reason"] = o.Reason
		set["reportingComponent"] = o.ReportingController
		set["source"] = source
		set["type"] = o.Type
	case *corev1.Node:
		set["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
	case *corev1.Service:
		set["spec.clusterIP"] = o.Spec.ClusterIP
		set["spec.type"] = string(o.Spec.Type)
	case *corev1.Secret:
		set["type"] = string(o.Type)
	case *corev1.Namespace:
		set["status.phase"] = string(o.Status.Phase)
	case *corev1.ReplicationController:
		set["status.replicas"] = strconv.Itoa(int(o.Status.Replicas))
	case *batchv1.Job:
		set["status.successful"] = strconv.Itoa(int(o.Status.Succeeded))
	case *certificatesv1.CertificateSigningRequest:
		set["spec.signerName"] = o.Spec.SignerName
	case *unstructured.Unstructured:
		if o.GroupVersionKind().GroupKind() == v1alpha1.SchemeGroupVersion.WithKind("NodeOperation").GroupKind() {
			set["spec.nodeName"], _, _ = unstructured.NestedString(o.Object, "spec", "nodeName")
		}
	case *resourcev1.ResourceSlice:
		set["spec.driver"] = o.Spec.Driver
		set["spec.nodeName"] = ""
		if o.Spec.NodeName != nil {
			set["spec.nodeName"] = *o.Spec.NodeName
		}
	}
	return set
}

// FieldError is a selector that asks for a field which the kind does not offer.
type FieldError struct{ Field string }

func (e *FieldError) Error() string { return "field label not supported: " + e.Field }

// Matches reports whether the selection holds o. It decodes o only where the selector asks for more
// than name and namespace.
func (s Selection) Matches(o Object) (bool, error) {
	if s.Resource != o.Resource || (s.Namespace != "" && s.Namespace != o.Namespace) {
		return false, nil
	}
	if s.Labels != nil && !s.Labels.Empty() && !s.Labels.Matches(o.Labels) {
		return false, nil
	}
	if s.Fields == nil || s.Fields.Empty() {
		return true, nil
	}
	set := fields.Set{fieldName: o.Name, fieldNamespace: o.Namespace}
	decoded := false
	for _, r := range s.Fields.Requirements() {
		if set.Has(r.Field) {
			continue
		}
		if decoded {
			return false, &FieldError{Field: r.Field}
		}
		obj, err := DecodeRaw(o.Raw)
		if err != nil {
			return false, fmt.Errorf("decoding %s: %w", o.Ref, err)
		}
		set, decoded = Fields(obj), true
		if !set.Has(r.Field) {
			return false, &FieldError{Field: r.Field}
		}
	}
	return s.Fields.Matches(set), nil
}

// Name is the one name that the selection is limited to, or "".
func (s Selection) Name() string {
	if s.Fields == nil {
		return ""
	}
	name, _ := s.Fields.RequiresExactMatch(fieldName)
	return name
}

// LabelString and FieldString are the selectors in a form that is equal for equal selectors.
func (s Selection) LabelString() string {
	if s.Labels == nil {
		return ""
	}
	return s.Labels.String()
}

// FieldString: see LabelString.
func (s Selection) FieldString() string {
	if s.Fields == nil {
		return ""
	}
	return s.Fields.String()
}

func (s Selection) String() string {
	out := s.Resource.GroupResource().String()
	if s.Namespace != "" {
		out += " in " + s.Namespace
	}
	if l := s.LabelString(); l != "" {
		out += " with labels " + l
	}
	if f := s.FieldString(); f != "" {
		out += " with fields " + f
	}
	return out
}
