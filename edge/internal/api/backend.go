package api

import (
	"context"
	"errors"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
)

type Backend interface {
	Get(ctx context.Context, ref object.Ref, caller Caller) (object.Object, error)
	List(ctx context.Context, selection object.Selection, options ListOptions) (items []object.Object, version uint64, err error)
	Watch(ctx context.Context, selection object.Selection, options WatchOptions) (Watch, error)
	Version() uint64
	Write(ctx context.Context, write Write) (Result, error)
	Request(ctx context.Context, request *topicpb.APIRequest) (*topicpb.APIResponse, error)
	Covered(selection object.Selection) bool
	Linked() bool
	Resources() []schema.GroupVersionResource
}

// ErrPassThrough is what a Backend answers for what it does not hold.
var ErrPassThrough = errors.New("not held here")

type Caller struct {
	Kubelet     bool
	BearerToken string
}

type ListOptions struct {
	FromReflector bool
	Held          bool
	Caller        Caller
}

type WatchOptions struct {
	From          uint64
	InitialEvents bool
	Held          bool
	Caller        Caller
}

type Watch interface {
	Events() <-chan Event
	Stop()
}

type Event struct {
	Type       watch.EventType
	Object     object.Object
	Version    uint64
	InitialEnd bool
	Status     *metav1.Status
}

type Write struct {
	Verb         string
	Ref          object.Ref
	Subresource  string
	PatchType    types.PatchType
	ContentType  string
	Accept       string
	Body         []byte
	Path         string
	Query        url.Values
	UID          types.UID
	FieldManager string
	Caller       Caller
}

type Result struct {
	Code     int
	Object   *object.Object
	Status   *metav1.Status
	Response *topicpb.APIResponse
}
