package relay

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

const (
	rememberPods    = time.Hour
	rememberedBound = 50_000
)

// Collections are shared caches of kube-apiserver's objects.
type Collections interface {
	Open(resource schema.GroupVersionResource) (store *kube.Store, release func())
}

// Pods records which pod is, or was lately, bound to which node: that node may report events about
// it.
type Pods struct {
	collections Collections

	mu    sync.RWMutex
	store *kube.Store // nil before Run
	gone  map[types.UID]departed
	order []types.UID // of departure; gone is bounded, the oldest go first
}

type departed struct {
	node string
	key  kube.Key
	at   time.Time
}

// NewPods returns Pods that are empty before Run.
func NewPods(collections Collections) *Pods {
	return &Pods{collections: collections, gone: map[types.UID]departed{}}
}

// Run follows the pods until ctx ends.
func (p *Pods) Run(ctx context.Context) error {
	store, release := p.collections.Open(kube.Pods)
	defer release()
	defer store.Observe(p.changed)()
	p.mu.Lock()
	p.store = store
	p.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (p *Pods) changed(old, new *kube.Object) {
	if old == nil || old.Node() == "" || new != nil && new.UID == old.UID {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone[old.UID] = departed{old.Node(), old.Key, now}
	p.order = append(p.order, old.UID)
	for len(p.order) > 0 && (len(p.order) > rememberedBound || now.Sub(p.gone[p.order[0]].at) > rememberPods) {
		delete(p.gone, p.order[0])
		p.order = p.order[1:]
	}
}

// ownership tells whether a pod belongs to a node, as far as is known.
type ownership int

const (
	unknown ownership = iota // no such pod is known, nor was lately
	own
	foreign
)

// owner reports whether a pod, named by its key and, where given, its uid, is or was the node's.
func (p *Pods) owner(node types.NodeName, key kube.Key, uid types.UID) ownership {
	p.mu.RLock()
	store := p.store
	was, left := p.gone[uid]
	p.mu.RUnlock()
	if left && was.key == key {
		if was.node == string(node) {
			return own
		}
		return foreign
	}
	if store == nil {
		return unknown
	}
	o := store.Get(key)
	switch {
	case o == nil:
		return unknown
	case o.Node() == string(node): // a static pod's events bear the uid of its file, not of its mirror: the name decides
		return own
	}
	return foreign
}

// live returns the pod as it is, or nil.
func (p *Pods) live(key kube.Key) *kube.Object {
	if store := p.current(); store != nil {
		return store.Get(key)
	}
	return nil
}

// ready reports whether the pods are known at all.
func (p *Pods) ready() bool {
	store := p.current()
	return store != nil && store.HasSynced()
}

// current is asked before the store is: the store calls changed with its own lock held.
func (p *Pods) current() *kube.Store {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.store
}
