package event

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Created is the event that a write creates, with a uid and a time of its own.
func Created(w request.Write) (*corev1.Event, error) {
	obj, err := object.DecodeRaw(w.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	e, ok := obj.(*corev1.Event)
	if !ok {
		return nil, apierrors.NewBadRequest("the object is no Event")
	}
	if e.Namespace == "" {
		e.Namespace = w.Ref.Namespace
	}
	if e.Name == "" && e.GenerateName != "" {
		e.Name = e.GenerateName + string(uuid.NewUUID())[:8]
	}
	if e.Name == "" || e.Namespace == "" || (w.Ref.Namespace != "" && e.Namespace != w.Ref.Namespace) {
		return nil, apierrors.NewBadRequest("an event needs a name, and the namespace that it is sent to")
	}
	e.UID, e.CreationTimestamp = uuid.NewUUID(), metav1.Now()
	return e, nil
}

// Next returns the event that a patch or an update makes of the existing one.
func Next(w request.Write, have object.Object) (*corev1.Event, error) {
	now, err := object.Decode(have)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var next runtime.Object
	if w.Verb == "patch" {
		next, err = object.Patch(now, w.PatchType, w.Body)
	} else {
		next, err = object.DecodeRaw(w.Body)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	e, ok := next.(*corev1.Event)
	if !ok || e.Name != have.Name || e.Namespace != have.Namespace {
		return nil, apierrors.NewBadRequest("the event does not fit its name")
	}
	e.UID = have.UID
	return e, nil
}

// Own is an event about this node; number distinguishes it from others.
func Own(node string, number uint64, reason, kind, text string) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, // namespace of events about cluster-scoped objects, as in client-go's recorder
			Name:      fmt.Sprintf("%s.%x", node, number), UID: uuid.NewUUID(), CreationTimestamp: now,
		},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node, APIVersion: "v1"},
		Reason:         reason, Type: kind, Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: "metamanager", Host: node},
		ReportingController: "metamanager", ReportingInstance: node,
	}
}
