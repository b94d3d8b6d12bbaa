// Package registration registers the device's Node again when the cloud has removed it.
//
// A kubelet registers once in its life. Where the Node is deleted while the device is away, or by
// mistake, upstream's kubelet waits for its next start. This package keeps what the kubelet said
// when it registered, in memory alone since each start says it again, and says it once more when
// the Node that the device held goes and a link is there to say it over. It also says when the Node
// is another one, since what was reported went with the one before.
//
// What others have said of the Node (labels, taints, a cordon, the range of its pods) is
// remembered in the store, written only when it changes, and comes back with each registration as
// far as a node may say that of itself. What it may not, an administrator sets again: Problem names
// it. It refuses nothing and judges nothing: whether the node may come back is for kube-apiserver
// to say, and a device that is to stay away is revoked (`cloudcore node revoke`), which bans its
// certificate. Register and Problem may be called by any goroutine.
package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

const (
	// firstTry and lastTry bound the pause between two tries, which doubles. Without a link a
	// try costs nothing.
	firstTry = time.Second
	lastTry  = 30 * time.Second
	// tryTimeout bounds one try.
	tryTimeout = 30 * time.Second
)

// Backend is what is held here, and the way to kube-apiserver; a *metamanager.Manager.
type Backend interface {
	metamanager.Watcher
	Write(ctx context.Context, w metamanager.Write) (metamanager.Result, error)
}

// Keeper keeps the registration.
type Keeper struct {
	backend  Backend
	node     string
	replaced func()
	uid      types.UID // of the Node that was seen last; owned by Keep
	memory   Memory

	mu    sync.Mutex
	said  *metamanager.Write // nil before the kubelet has registered
	known Remembered         // of the Node that was seen last, in this run or before
}

// Memory keeps a few bytes over a restart; agent.NewMemory.
type Memory interface {
	Load() (map[string][]byte, error)
	Save(ctx context.Context, changes map[string][]byte) error
}

// memoryKey is of the one entry in Memory.
const memoryKey = "node"

// New returns a Keeper. It starts nothing. replaced is called, and must return soon, whenever the
// Node is another one than before, whoever made it: with the one before, the cloud has forgotten
// what the device had reported.
func New(backend Backend, node string, memory Memory, replaced func()) *Keeper {
	return &Keeper{backend: backend, node: node, memory: memory, replaced: replaced}
}

// Load reads what was remembered. It is called before anything runs.
func (k *Keeper) Load() error {
	all, err := k.memory.Load()
	if err != nil {
		return err
	}
	raw, ok := all[memoryKey]
	if !ok {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := json.Unmarshal(raw, &k.known); err != nil {
		return fmt.Errorf("reading what is remembered of the Node: %w", err)
	}
	return nil
}

// Problem says what an administrator has to set again; "" for nothing.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known.Problem(k.node)
}

// Register writes a create of a Node by the kubelet, with what is remembered of it. The body is
// kept, some 3 kB.
func (k *Keeper) Register(ctx context.Context, w metamanager.Write) (metamanager.Result, error) {
	k.mu.Lock()
	k.said = &w
	known := k.known
	k.mu.Unlock()
	result, err := k.backend.Write(ctx, amended(ctx, w, known, true))
	if result.Code == http.StatusForbidden || apierrors.IsForbidden(err) {
		// A label that chooses for a NodePool, say: better without all than not at all.
		klog.FromContext(ctx).Info("The Node may not register with the labels that it had, registering without them", "node", k.node)
		return k.backend.Write(ctx, amended(ctx, w, known, false))
	}
	return result, err
}

// amended is a registration with what is remembered.
func amended(ctx context.Context, w metamanager.Write, known Remembered, withLabels bool) metamanager.Write {
	obj, err := object.DecodeRaw(w.Body)
	node, ok := obj.(*corev1.Node)
	if err != nil || !ok {
		return w // kube-apiserver will say what is wrong with it
	}
	known.Amend(node, withLabels)
	body, err := object.EncodeLike(w.Body, node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to encode the Node, registering it as the kubelet does")
		return w
	}
	w.Body = body
	return w
}

// remember follows the Node.
func (k *Keeper) remember(ctx context.Context, o object.Object) {
	obj, err := object.DecodeRaw(o.Raw)
	node, ok := obj.(*corev1.Node)
	if err != nil || !ok {
		return // it was decoded before
	}
	k.mu.Lock()
	before := k.known
	k.known = before.Follow(node)
	now := k.known
	k.mu.Unlock()
	old, oldErr := json.Marshal(before)
	raw, err := json.Marshal(now)
	if err = errors.Join(err, oldErr); err == nil && !bytes.Equal(old, raw) {
		err = k.memory.Save(ctx, map[string][]byte{memoryKey: raw})
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to save what is known of the Node: after a restart its labels would not come back")
	}
}

// Name is the module's address on the bus.
const Name message.Name = "registration"

// Name implements beehive.Module.
func (k *Keeper) Name() message.Name { return Name }

// Run implements beehive.Module.
func (k *Keeper) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return k.Keep(ctx)
}

// Keep registers again whenever the Node goes, until ctx ends.
func (k *Keeper) Keep(ctx context.Context) error {
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	one := object.Selection{Resource: nodes, Fields: fields.OneTermEqualSelector("metadata.name", k.node)}
	for w := range metamanager.HeldWatches(ctx, k.backend, one) {
		k.follow(ctx, w)
	}
	return nil
}

// follow serves one watch until it ends.
func (k *Keeper) follow(ctx context.Context, w metamanager.Watch) {
	var again <-chan time.Time // nil while the Node is there
	wait := firstTry
	for {
		select {
		case e, ok := <-w.Events():
			if !ok {
				return
			}
			switch e.Type {
			case watch.Deleted:
				klog.FromContext(ctx).Info("The cloud has removed this Node: registering it again", "node", k.node)
				wait = firstTry
				again = time.After(0)
			case watch.Added, watch.Modified:
				again = nil
				if k.uid != "" && k.uid != e.Object.UID {
					k.replaced()
				}
				k.uid = e.Object.UID
				k.remember(ctx, e.Object)
			}
		case <-again:
			again = nil
			if !k.register(ctx) {
				again = time.After(wait)
				wait = min(2*wait, lastTry)
			}
		}
	}
}

// register says once more what the kubelet said, and reports whether that was the end of it.
func (k *Keeper) register(ctx context.Context) bool {
	k.mu.Lock()
	said := k.said
	k.mu.Unlock()
	if said == nil {
		return true // the kubelet has not registered in this life: it will
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	result, err := k.Register(ctx, *said)
	switch {
	case err == nil && result.Code < http.StatusMultipleChoices, err == nil && result.Code == http.StatusConflict, apierrors.IsAlreadyExists(err):
		klog.FromContext(ctx).Info("Registered the Node again", "node", k.node)
		return true
	case err == nil:
		klog.FromContext(ctx).Info("The Node could not be registered again; it will be tried", "node", k.node, "code", result.Code)
	default:
		klog.FromContext(ctx).V(2).Info("The Node could not be registered again; it will be tried", "node", k.node, "err", err)
	}
	return false
}
