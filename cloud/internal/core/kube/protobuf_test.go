package kube_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Kubernetes' own codec reads bytes that are encoded here, and the other way round.
func TestProtobufIsKubernetes(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Event")
	e := &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Count: 3, Message: "m",
	}
	ours, err := kube.ToProtobuf(kind, e)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), e)
	if err != nil {
		t.Fatal(err)
	}
	read, _, err := scheme.Codecs.UniversalDeserializer().Decode(ours, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(runtime.Object(e), read); d != "" {
		t.Errorf("as Kubernetes reads it (-want +got):\n%s", d)
	}
	have := corev1.Event{TypeMeta: e.TypeMeta}
	if err := kube.FromProtobuf(theirs, kind, &have); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*e, have); d != "" {
		t.Errorf("as Kubernetes wrote it (-want +got):\n%s", d)
	}
	for name, body := range map[string][]byte{"JSON": []byte("{}"), "cut off": theirs[:len(theirs)/2], "the magic alone": []byte("k8s\x00"), "nothing": nil} {
		if err := kube.FromProtobuf(body, kind, &have); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if err := kube.FromProtobuf(theirs, corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{}); err == nil {
		t.Error("an Event was read as a Pod")
	}
}

// A failure is the same Status error in both encodings.
func TestFailuresInProtobuf(t *testing.T) {
	body, err := kube.ToProtobuf(schema.GroupVersionKind{Version: "v1", Kind: "Status"}, &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonAlreadyExists, Message: "it is there", Code: 409,
	})
	if err != nil {
		t.Fatal(err)
	}
	failure := (&kube.Response{Code: 409, Body: body}).Err()
	inJSON := (&kube.Response{
		Code: 409, Body: []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","message":"it is there","code":409}`),
	}).Err()
	if d := cmp.Diff(inJSON, failure); d != "" {
		t.Errorf("(-JSON +protobuf):\n%s", d)
	}
}
