package kube

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Protobuf is the media type of Kubernetes' protobuf encoding.
const Protobuf = "application/vnd.kubernetes.protobuf"

// protobufMagic begins every object in that encoding; a runtime.Unknown with the object in it
// follows. See k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
const protobufMagic = "k8s\x00"

// IsProtobuf reports whether an encoded object is protobuf; JSON begins otherwise.
func IsProtobuf(body []byte) bool { return bytes.HasPrefix(body, []byte(protobufMagic)) }

// FromProtobuf decodes an object, which must be of that kind. It is for the few types that are read
// and written for every write of an edge: the general deserializer looks each up in a scheme first.
func FromProtobuf(body []byte, kind schema.GroupVersionKind, into interface{ Unmarshal([]byte) error }) error {
	var u runtime.Unknown
	if !IsProtobuf(body) {
		return fmt.Errorf("decoding %s: no protobuf", kind.Kind)
	}
	if err := u.Unmarshal(body[len(protobufMagic):]); err != nil {
		return fmt.Errorf("decoding the envelope of %s: %w", kind.Kind, err)
	}
	if have := u.GroupVersionKind(); have != kind || u.ContentEncoding != "" {
		return fmt.Errorf("got %s, want %s", have, kind)
	}
	if err := into.Unmarshal(u.Raw); err != nil {
		return fmt.Errorf("decoding %s: %w", kind.Kind, err)
	}
	return nil
}

// ToProtobuf encodes an object of that kind.
func ToProtobuf(kind schema.GroupVersionKind, o interface{ Marshal() ([]byte, error) }) ([]byte, error) {
	raw, err := o.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", kind.Kind, err)
	}
	u := runtime.Unknown{Raw: raw}
	u.APIVersion, u.Kind = kind.ToAPIVersionAndKind()
	body := make([]byte, len(protobufMagic)+u.Size())
	copy(body, protobufMagic)
	if _, err := u.MarshalTo(body[len(protobufMagic):]); err != nil {
		return nil, fmt.Errorf("encoding the envelope of %s: %w", kind.Kind, err)
	}
	return body, nil
}
