package kube

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/selectable"
)

// SumSize is the length of a Sum.
const SumSize = 16

// Sum stands for one version of one object: the first 16 bytes of SHA-256(uid NUL version). The sum
// of a set is the XOR of its members'.
type Sum [SumSize]byte

// SumOf computes a Sum.
func SumOf(uid, resourceVersion string) Sum {
	b := make([]byte, 0, 64)
	b = append(b, uid...)
	b = append(b, 0)
	b = append(b, resourceVersion...)
	full := sha256.Sum256(b)
	return Sum(full[:SumSize])
}

// Xor adds other to s, or takes it away.
func (s *Sum) Xor(other Sum) {
	for i := range s {
		s[i] ^= other[i]
	}
}

// Object is one version of one object, as it goes down to the edges: encoded once, shared by all of
// them, never changed.
type Object struct {
	Key
	UID     types.UID
	Version string // the edges' version of it: metadata.resourceVersion, or a digest of the content that they get (contentVersion)
	// Revision is metadata.resourceVersion.
	Revision string
	Labels   labels.Set
	Raw      []byte // Kubernetes protobuf with its envelope for built-in kinds, else JSON; without managedFields, and without status where that is not for edges
	// Status is the status as JSON, of a kind whose status stays in the cloud and is needed here.
	Status  []byte
	Refs    []Ref // the objects that a pod, a claim or a volume needs on its node
	Started bool  // of a pod: its node's kubelet has reported its status, so the node had the objects that the pod refers to
	Sum     Sum

	// Node is the node of a pod; Fields are the values of the selectable fields without the name,
	// in the order of the store's table.
	fields []string
}

// Encoder makes Objects of one collection.
type encoder struct {
	resource schema.GroupVersionResource
	proto    runtime.Encoder // nil: JSON
	fields   *fieldTable
	trims    bool
	content  bool                 // versions are digests of the content, and the object has no other
	change   func(runtime.Object) // applied to an object before it is encoded; may be nil
}

func (c *catalog) encoder(resource schema.GroupVersionResource) *encoder {
	e := &encoder{resource: resource, fields: fieldsOf(resource.GroupResource()), trims: trims(resource.GroupResource())}
	if kind, ok := c.kind(resource); ok {
		e.proto = c.protos[kind.GroupVersion()]
	}
	return e
}

// trims reports whether the status of a kind stays in the cloud. Such a status is aggregated from
// all nodes: each node knows its own part better, and has no use for the others, but a thousand
// nodes that report once each would cause a million messages. A NodeOperation belongs to one node,
// which needs its progress.
func trims(resource schema.GroupResource) bool {
	if resource.Group != v1alpha1.Group {
		return false
	}
	switch resource.Resource {
	case v1alpha1.StaticRoutes, v1alpha1.NodePools, v1alpha1.VirtualIPs, v1alpha1.ServiceCollections, v1alpha1.EdgeApps, v1alpha1.ClusterInfos:
		return true
	}
	return false
}

// keeps reports whether the status of a trimmed kind is kept for cloudcore's own parts. That of
// a StaticRoute, with a line for each of thousands of nodes, is not: its controller reads one
// where it needs it.
func keeps(resource schema.GroupResource) bool {
	return resource.Resource == v1alpha1.NodePools || resource.Resource == v1alpha1.VirtualIPs || resource.Resource == v1alpha1.EdgeApps || resource.Resource == v1alpha1.ClusterInfos
}

// contentVersion identifies the content of an object that an edge gets, wherever and whenever it is
// computed: cloudcores agree about it, and a change of the status alone doesn't change it. It is no
// number, so it is never taken for a resourceVersion.
func contentVersion(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "content-" + base64.RawURLEncoding.EncodeToString(sum[:SumSize])
}

// encode takes the object over: it removes its managedFields. The edge writes by patches that the
// cloud applies, so it has no use for the record of the fields' managers, and that record is often
// the larger half of an object.
func (e *encoder) encode(from runtime.Object) (*Object, error) {
	m, err := meta.Accessor(from)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.resource.Resource, err)
	}
	m.SetManagedFields(nil)
	if e.change != nil {
		e.change(from)
	}
	o := &Object{
		Key: Key{m.GetNamespace(), m.GetName()}, UID: m.GetUID(), Version: m.GetResourceVersion(), Revision: m.GetResourceVersion(), Labels: m.GetLabels(),
		Refs: refsOf(from), fields: selectable.Values(from),
	}
	if pod, ok := from.(*corev1.Pod); ok {
		o.Started = pod.Status.StartTime != nil // only the kubelet sets it
	}
	if u, ok := from.(*unstructured.Unstructured); ok && e.trims {
		if status, ok := u.Object["status"]; ok && keeps(e.resource.GroupResource()) {
			if o.Status, err = json.Marshal(status); err != nil {
				return nil, fmt.Errorf("encoding the status of %s %s: %w", e.resource.Resource, o.Key, err)
			}
		}
		unstructured.RemoveNestedField(u.Object, "status")
		u.SetResourceVersion("")
	}
	if e.content {
		m.SetResourceVersion("")
	}
	switch t := from.(type) {
	case *unstructured.Unstructured:
		o.Raw, err = t.MarshalJSON()
	default:
		if e.proto == nil {
			return nil, fmt.Errorf("%s: no encoding for %T", e.resource.Resource, from)
		}
		o.Raw, err = runtime.Encode(e.proto, from)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", e.resource.Resource, o.Key, err)
	}
	if e.trims || e.content {
		o.Version = contentVersion(o.Raw)
	}
	o.Sum = SumOf(string(o.UID), o.Version)
	return o, nil
}

// share makes o, which is not published yet, reuse equal parts of an older version: a holder of
// both then has them in memory once.
func (o *Object) share(old *Object) {
	o.Key = old.Key
	if o.UID == old.UID {
		o.UID = old.UID
	}
	if maps.Equal(o.Labels, old.Labels) {
		o.Labels = old.Labels
	}
	if slices.Equal(o.fields, old.fields) {
		o.fields = old.fields
	}
}

// Outline is o without the content for the edges: the part that selections and digests need. It is
// for users that remember past objects.
func (o *Object) Outline() *Object {
	if o == nil {
		return nil
	}
	return &Object{Key: o.Key, UID: o.UID, Labels: o.Labels, Sum: o.Sum, fields: o.fields}
}

// Node is the node that a pod is bound to.
func (o *Object) Node() string { return o.field(nodeNameField) }

func (o *Object) field(i int) string {
	if i < len(o.fields) {
		return o.fields[i]
	}
	return ""
}
