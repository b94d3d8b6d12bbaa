package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// MaxRaw is the longest encoded object that is taken, in bytes. kube-apiserver takes 3 MiB in a
// request and etcd 1.5 MiB by default.
const MaxRaw = 4 << 20

// ErrMalformed is returned for bytes that are no Kubernetes object.
var ErrMalformed = errors.New("not a Kubernetes object")

// DecodeRaw decodes one object: typed where its kind is one of Kubernetes' own,
// *unstructured.Unstructured for all others (JSON only). The result is the caller's alone and has
// its apiVersion and kind set.
func DecodeRaw(raw []byte) (obj runtime.Object, err error) {
	if len(raw) > MaxRaw {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are taken", ErrMalformed, len(raw), MaxRaw)
	}
	defer func() {
		if p := recover(); p != nil { // generated decoders of many kinds: a panic in one of them must not end the process
			obj, err = nil, fmt.Errorf("%w: decoder panicked: %v", ErrMalformed, p)
		}
	}()
	// The universal deserializer also takes YAML, which no sender uses.
	if !IsProtobuf(raw) && !isJSON(raw) {
		return nil, fmt.Errorf("%w: neither protobuf nor JSON", ErrMalformed)
	}
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	switch {
	case err == nil:
		obj.GetObjectKind().SetGroupVersionKind(*kind)
		if _, err := meta.Accessor(obj); err != nil {
			return nil, fmt.Errorf("%w: %s has no metadata", ErrMalformed, kind)
		}
		return obj, nil
	case runtime.IsNotRegisteredError(err) && isJSON(raw):
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if _, ok := u.Object["metadata"].(map[string]any); !ok {
			return nil, fmt.Errorf("%w: %s has no metadata", ErrMalformed, u.GroupVersionKind())
		}
		return u, nil
	}
	return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
}

// Decode decodes o, with o.Version as its metadata.resourceVersion. The result is the
// caller's alone.
func Decode(o Object) (runtime.Object, error) {
	obj, err := DecodeRaw(o.Raw)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", o.Ref, err)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", o.Ref, err)
	}
	m.SetResourceVersion(strconv.FormatUint(o.Version, 10))
	return obj, nil
}

// Encode encodes obj as an Object's Raw: Kubernetes protobuf for Kubernetes' own kinds, else JSON.
func Encode(obj runtime.Object) ([]byte, error) {
	if u, ok := obj.(runtime.Unstructured); ok {
		raw, err := json.Marshal(u.UnstructuredContent())
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", obj.GetObjectKind().GroupVersionKind(), err)
		}
		return raw, nil
	}
	obj, err := withKind(obj)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b); err != nil {
		return nil, fmt.Errorf("encoding %s: %w", obj.GetObjectKind().GroupVersionKind(), err)
	}
	return b.Bytes(), nil
}

// JSON encodes obj as JSON, with its apiVersion and kind.
func JSON(obj runtime.Object) ([]byte, error) {
	obj, err := withKind(obj)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", obj.GetObjectKind().GroupVersionKind(), err)
	}
	return raw, nil
}

func withKind(obj runtime.Object) (runtime.Object, error) {
	if !obj.GetObjectKind().GroupVersionKind().Empty() {
		return obj, nil
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %T: %w", obj, err)
	}
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(kinds[0])
	return obj, nil
}

// FromRaw makes an Object of an encoded one, without a Version. The metadata's resourceVersion
// becomes its CloudVersion. raw is kept.
func FromRaw(resource schema.GroupVersionResource, raw []byte) (Object, error) {
	obj, err := DecodeRaw(raw)
	if err != nil {
		return Object{}, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return Object{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return fromMeta(resource, m, raw), nil
}

// FromObject makes an Object of a decoded one, as FromRaw does.
func FromObject(resource schema.GroupVersionResource, obj runtime.Object) (Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return Object{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	raw, err := Encode(obj)
	if err != nil {
		return Object{}, err
	}
	return fromMeta(resource, m, raw), nil
}

func fromMeta(resource schema.GroupVersionResource, m metav1.Object, raw []byte) Object {
	return Object{
		Ref:          Ref{Resource: resource, Namespace: m.GetNamespace(), Name: m.GetName()},
		UID:          m.GetUID(),
		Labels:       NewLabels(m.GetLabels()),
		CloudVersion: m.GetResourceVersion(),
		Raw:          raw,
	}
}

// IsProtobuf reports whether raw begins with the magic number of Kubernetes' protobuf envelope; see
// k8s.io/apimachinery's runtime/serializer/protobuf.
func IsProtobuf(raw []byte) bool { return bytes.HasPrefix(raw, []byte("k8s\x00")) }

func isJSON(raw []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) }

// maxName bounds a namespace and a name, in bytes. Kubernetes' own end at 253 but for a few kinds.
// A write has both outside of its body, where the link has 4 KiB for them (link.Config).
const maxName = 1 << 10

// checkName refuses names that can't be used here. Kubernetes' decoders accept any bytes: invalid
// UTF-8 could not be sent in a message, and a NUL ends the namespace in a key of the store.
func checkName(namespace, name string) error {
	if name == "" {
		return fmt.Errorf("%w: it has no name", ErrMalformed)
	}
	for _, s := range []string{namespace, name} {
		if len(s) > maxName {
			return fmt.Errorf("%w: a name of %d bytes, at most %d are taken", ErrMalformed, len(s), maxName)
		}
		if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
			return fmt.Errorf("%w: the name %q", ErrMalformed, s)
		}
	}
	return nil
}

// Describe returns ref with the namespace and name of an encoded object, if ref has neither and as
// far as they can be read: for messages on a skipped object.
func Describe(ref Ref, raw []byte) Ref {
	if ref.Namespace != "" || ref.Name != "" {
		return ref
	}
	var said metav1.PartialObjectMetadata
	var envelope runtime.Unknown
	switch {
	case !IsProtobuf(raw):
		_ = json.Unmarshal(raw, &said)
	case envelope.Unmarshal(raw[len("k8s\x00"):]) == nil:
		_ = said.Unmarshal(envelope.Raw)
	}
	ref.Namespace, ref.Name = said.Namespace, said.Name
	return ref
}

// FromDecoded makes an Object of an encoded one that the caller has decoded already; raw is kept.
// If ref has neither namespace nor name, both are taken from the object.
func FromDecoded(ref Ref, obj runtime.Object, raw []byte) (Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return Object{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if ref.Namespace == "" && ref.Name == "" {
		ref.Namespace, ref.Name = m.GetNamespace(), m.GetName()
	}
	if err := checkName(m.GetNamespace(), m.GetName()); err != nil {
		return Object{}, err
	}
	if m.GetNamespace() != ref.Namespace || m.GetName() != ref.Name {
		return Object{}, fmt.Errorf("%w: it is %s/%s, not %s", ErrMalformed, m.GetNamespace(), m.GetName(), ref)
	}
	return fromMeta(ref.Resource, m, raw), nil
}
