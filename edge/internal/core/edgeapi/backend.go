package edgeapi

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Backend is what stands behind the API: a *metamanager.Manager, whose methods say what they
// promise. Its errors are Kubernetes Status errors, or metamanager.ErrPassThrough from Get and List
// for what only kube-apiserver can answer.
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

// State keeps what the API must find again after a restart: a *store.Module.
type State interface {
	// Load returns nil where nothing was kept under the key.
	Load(key string) ([]byte, error)
	Keep(ctx context.Context, key string, state []byte) error
	KeepSealed(ctx context.Context, key string, state []byte) error
}

// The keys of what is kept.
const (
	authorityKey = "authority" // sealed: a certificate and its key
	discoveryKey = "discovery"
	grantsKey    = "grants"
)

// forgetful keeps nothing.
type forgetful struct{}

func (forgetful) Load(string) ([]byte, error)                      { return nil, nil }
func (forgetful) Keep(context.Context, string, []byte) error       { return nil }
func (forgetful) KeepSealed(context.Context, string, []byte) error { return nil }
