package edgeapi

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Backend serves the API: a *metamanager.Manager, whose methods document their contract. Its errors
// are Kubernetes Status errors, or metamanager.ErrPassThrough from Get and List for requests that
// only kube-apiserver can answer.
type Backend interface {
	Get(ctx context.Context, ref object.Ref, caller metamanager.Caller) (object.Object, error)
	List(ctx context.Context, selection object.Selection, options metamanager.ListOptions) (items []object.Object, version uint64, err error)
	Watch(ctx context.Context, selection object.Selection, options metamanager.WatchOptions) (metamanager.Watch, error)
	Write(ctx context.Context, write metamanager.Write) (metamanager.Result, error)
	Request(ctx context.Context, request *topicpb.APIRequest) (*topicpb.APIResponse, error)
	Covered(selection object.Selection) bool
	Version() uint64
	Resources() []schema.GroupVersionResource
}

var _ Backend = (*metamanager.Manager)(nil)

// State stores the API's persistent state: a *store.Module.
type State interface {
	// Load returns nil if the key is unknown.
	Load(key string) ([]byte, error)
	Keep(ctx context.Context, key string, state []byte) error
	KeepSealed(ctx context.Context, key string, state []byte) error
}

// Keys of the stored values.
const (
	authorityKey = "authority" // sealed: a certificate and its key
	discoveryKey = "discovery"
	grantsKey    = "grants"
)

// forgetful is a State without storage.
type forgetful struct{}

func (forgetful) Load(string) ([]byte, error)                      { return nil, nil }
func (forgetful) Keep(context.Context, string, []byte) error       { return nil }
func (forgetful) KeepSealed(context.Context, string, []byte) error { return nil }
