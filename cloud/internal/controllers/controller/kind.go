package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

const (
	jsonContent  = "application/json"
	patchContent = "application/merge-patch+json"
	// listLimit bounds the body of a list, in bytes.
	listLimit = 64 << 20
	// maxEvent bounds an event's message, in bytes, as kube-apiserver does.
	maxEvent = 1024
)

// Object is a pointer to a Kubernetes type, whose name is the kind's.
type Object[T any] interface {
	*T
	metav1.Object
	runtime.Object
}

// Kind reads and writes objects of one kind at kube-apiserver, each write on condition that the
// object is the version that was read.
type Kind[T any] struct {
	client   Client
	recorder record.EventRecorder
	as       kube.Identity
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
}

// Of is the Kind of a type, with cloudcore's own rights.
func Of[T any, P Object[T]](r *Run, resource schema.GroupVersionResource) *Kind[T] {
	return &Kind[T]{
		client: r.client, recorder: r.recorder, resource: resource,
		kind: resource.GroupVersion().WithKind(reflect.TypeFor[T]().Name()),
	}
}

// As is the same Kind with the rights of another identity.
func (k *Kind[T]) As(identity kube.Identity) *Kind[T] {
	other := *k
	other.as = identity
	return &other
}

// GetLive reads the newest version of an object; nil: it does not exist.
func (k *Kind[T]) GetLive(ctx context.Context, key kube.Key) (*T, error) {
	body, err := k.do(ctx, "reading", key, kube.Request{Method: http.MethodGet, Path: k.path(key)})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o := new(T)
	if err := json.Unmarshal(body, o); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", k.kind.Kind, key, err)
	}
	return o, nil
}

// ListLive reads all objects; served is false where the cluster does not have the kind. cached: as
// of kube-apiserver's cache.
func (k *Kind[T]) ListLive(ctx context.Context, cached bool) (items []T, served bool, err error) {
	r := kube.Request{Method: http.MethodGet, Path: k.path(kube.Key{}), Limit: listLimit}
	if cached {
		r.Query = "resourceVersion=0"
	}
	body, err := k.do(ctx, "listing", kube.Key{}, r)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var list struct {
		Items []T `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, false, fmt.Errorf("listing %s: %w", k.resource.GroupResource(), err)
	}
	return list.Items, true, nil
}

// Create makes an object, and sets its uid and resourceVersion.
func (k *Kind[T]) Create(ctx context.Context, o *T) error {
	key := keyOf(o)
	return k.write(ctx, "creating", o, http.MethodPost, k.path(kube.Key{Namespace: key.Namespace}))
}

// Update writes an object, and sets its resourceVersion to the new one.
func (k *Kind[T]) Update(ctx context.Context, o *T) error {
	return k.write(ctx, "updating", o, http.MethodPut, k.path(keyOf(o)))
}

// UpdateStatus writes the status of an object, and sets its resourceVersion to the new one.
func (k *Kind[T]) UpdateStatus(ctx context.Context, o *T) error {
	return k.write(ctx, "updating the status of", o, http.MethodPut, k.path(keyOf(o))+"/status")
}

// Patch applies a JSON merge patch (RFC 7396); subresource is "" or "status". A patch that names
// metadata.resourceVersion or uid is applied to that version or object only.
func (k *Kind[T]) Patch(ctx context.Context, key kube.Key, subresource string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("patching %s %s: %w", k.kind.Kind, key, err)
	}
	path := k.path(key)
	if subresource != "" {
		path += "/" + subresource
	}
	_, err = k.do(ctx, "patching", key, kube.Request{Method: http.MethodPatch, Path: path, ContentType: patchContent, Body: body})
	return err
}

// Delete deletes this object, and no other of its name. That it is gone already is no error.
func (k *Kind[T]) Delete(ctx context.Context, o *T) error {
	uid := metaOf(o).GetUID()
	return k.remove(ctx, o, metav1.Preconditions{UID: &uid})
}

// DeleteUnchanged is Delete on condition that the object is the version that was read.
func (k *Kind[T]) DeleteUnchanged(ctx context.Context, o *T) error {
	uid, revision := metaOf(o).GetUID(), metaOf(o).GetResourceVersion()
	return k.remove(ctx, o, metav1.Preconditions{UID: &uid, ResourceVersion: &revision})
}

func (k *Kind[T]) remove(ctx context.Context, o *T, conditions metav1.Preconditions) error {
	body, err := json.Marshal(metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: &conditions})
	if err != nil {
		return fmt.Errorf("deleting %s %s: %w", k.kind.Kind, keyOf(o), err)
	}
	_, err = k.do(ctx, "deleting", keyOf(o), kube.Request{Method: http.MethodDelete, Path: k.path(keyOf(o)), ContentType: jsonContent, Body: body})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Event records an event about an object: corev1.EventTypeNormal or EventTypeWarning.
func (k *Kind[T]) Event(o *T, kind, reason, message string) {
	m := metaOf(o)
	k.recorder.Event(&corev1.ObjectReference{
		APIVersion: k.kind.GroupVersion().String(), Kind: k.kind.Kind, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(),
	}, kind, reason, message[:min(len(message), maxEvent)])
}

func (k *Kind[T]) write(ctx context.Context, doing string, o *T, method, path string) error {
	if typed, ok := any(o).(runtime.Object); ok {
		typed.GetObjectKind().SetGroupVersionKind(k.kind)
	}
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", doing, k.kind.Kind, keyOf(o), err)
	}
	answer, err := k.do(ctx, doing, keyOf(o), kube.Request{Method: method, Path: path, ContentType: jsonContent, Body: body})
	if err != nil {
		return err
	}
	var written metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &written); err != nil {
		return fmt.Errorf("%s %s %s: reading the answer: %w", doing, k.kind.Kind, keyOf(o), err)
	}
	m := metaOf(o)
	m.SetUID(written.UID)
	m.SetResourceVersion(written.ResourceVersion)
	return nil
}

func (k *Kind[T]) do(ctx context.Context, doing string, key kube.Key, r kube.Request) ([]byte, error) {
	answer, err := k.client.Do(ctx, k.as, r)
	if err == nil {
		err = answer.Err()
	}
	if err != nil {
		if key.Name == "" {
			return nil, fmt.Errorf("%s %s: %w", doing, k.resource.GroupResource(), err)
		}
		return nil, fmt.Errorf("%s %s %s: %w", doing, k.kind.Kind, key, err)
	}
	return answer.Body, nil
}

// path is that of an object, or of a collection where the key has no name.
func (k *Kind[T]) path(key kube.Key) string {
	p := "/apis/" + k.resource.Group + "/" + k.resource.Version
	if k.resource.Group == "" {
		p = "/api/" + k.resource.Version
	}
	if key.Namespace != "" {
		p += "/namespaces/" + url.PathEscape(key.Namespace)
	}
	p += "/" + k.resource.Resource
	if key.Name != "" {
		p += "/" + url.PathEscape(key.Name)
	}
	return p
}

// metaOf is an object's metadata: every T has been an Object.
func metaOf[T any](o *T) metav1.Object { return any(o).(metav1.Object) }

func keyOf[T any](o *T) kube.Key {
	m := metaOf(o)
	return kube.Key{Namespace: m.GetNamespace(), Name: m.GetName()}
}
