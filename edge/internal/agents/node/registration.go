package node

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
	// firstTry and lastTry bound the pause between two attempts, which doubles. Without a link an
	// attempt is cheap.
	firstTry = time.Second
	lastTry  = 30 * time.Second
	// tryTimeout bounds one try.
	tryTimeout = 30 * time.Second
)

// Backend is the device's store, and the way to kube-apiserver; a *metamanager.Manager.
type Backend interface {
	metamanager.Watcher
	Write(ctx context.Context, w metamanager.Write) (metamanager.Result, error)
}

// Registration keeps the registration.
type Registration struct {
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

// NewRegistration returns a Registration. replaced is called, and must return soon, whenever the
// Node was replaced, by any creator: with the previous one the cloud has lost the device's reports.
func NewRegistration(backend Backend, node string, memory Memory, replaced func()) *Registration {
	return &Registration{backend: backend, node: node, memory: memory, replaced: replaced}
}

// Load reads the saved state. It is called before any other method.
func (r *Registration) Load() error {
	all, err := r.memory.Load()
	if err != nil {
		return err
	}
	raw, ok := all[memoryKey]
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := json.Unmarshal(raw, &r.known); err != nil {
		return fmt.Errorf("reading the saved settings of the Node: %w", err)
	}
	return nil
}

// Problem describes the settings that an administrator has to restore; "" if there are none.
func (r *Registration) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known.Problem(r.node)
}

// Register writes a create of a Node by the kubelet, with its remembered settings. The body is
// kept, some 3 kB.
func (r *Registration) Register(ctx context.Context, w metamanager.Write) (metamanager.Result, error) {
	r.mu.Lock()
	r.said = &w
	known := r.known
	r.mu.Unlock()
	result, err := r.backend.Write(ctx, amended(ctx, w, known, true))
	if result.Code == http.StatusForbidden || apierrors.IsForbidden(err) {
		// For example a label that a NodePool selects: registering without labels is better than
		// not at all.
		klog.FromContext(ctx).Info("Refused to register the Node with its previous labels, registering without them", "node", r.node)
		return r.backend.Write(ctx, amended(ctx, w, known, false))
	}
	return result, err
}

// amended returns a registration with the remembered settings.
func amended(ctx context.Context, w metamanager.Write, known Remembered, withLabels bool) metamanager.Write {
	obj, err := object.DecodeRaw(w.Body)
	node, ok := obj.(*corev1.Node)
	if err != nil || !ok {
		return w // kube-apiserver will report the error
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
func (r *Registration) remember(ctx context.Context, o object.Object) {
	obj, err := object.DecodeRaw(o.Raw)
	node, ok := obj.(*corev1.Node)
	if err != nil || !ok {
		return // it was decoded before
	}
	r.mu.Lock()
	before := r.known
	r.known = before.Follow(node)
	now := r.known
	r.mu.Unlock()
	old, oldErr := json.Marshal(before)
	raw, err := json.Marshal(now)
	if err = errors.Join(err, oldErr); err == nil && !bytes.Equal(old, raw) {
		err = r.memory.Save(ctx, map[string][]byte{memoryKey: raw})
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to save the settings of the Node: its labels would be lost after a restart")
	}
}

// RegistrationName is the module's address on the bus.
const RegistrationName message.Name = "registration"

// Name implements beehive.Module.
func (r *Registration) Name() message.Name { return RegistrationName }

// Run implements beehive.Module.
func (r *Registration) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return r.Keep(ctx)
}

// Keep registers again whenever the Node is deleted, until ctx ends.
func (r *Registration) Keep(ctx context.Context) error {
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	one := object.Selection{Resource: nodes, Fields: fields.OneTermEqualSelector("metadata.name", r.node)}
	for w := range metamanager.HeldWatches(ctx, r.backend, one) {
		r.follow(ctx, w)
	}
	return nil
}

// follow serves one watch until it ends.
func (r *Registration) follow(ctx context.Context, w metamanager.Watch) {
	var again <-chan time.Time // nil while the Node exists
	var last time.Time         // when it was registered again
	wait := firstTry
	for {
		select {
		case e, ok := <-w.Events():
			if !ok {
				return
			}
			switch e.Type {
			case watch.Deleted:
				klog.FromContext(ctx).Info("Registering the Node again: it was deleted in the cloud", "node", r.node)
				// At once, unless the last one was deleted soon.
				again = time.After(0)
				if !last.IsZero() && time.Since(last) < lastTry {
					again = time.After(wait)
					wait = min(2*wait, lastTry)
				} else {
					wait = firstTry
				}
			case watch.Added, watch.Modified:
				again = nil
				if r.uid != "" && r.uid != e.Object.UID {
					r.replaced()
				}
				r.uid = e.Object.UID
				r.remember(ctx, e.Object)
			}
		case <-again:
			again = nil
			if !r.register(ctx) {
				again = time.After(wait)
				wait = min(2*wait, lastTry)
			} else {
				last = time.Now()
			}
		}
	}
}

// register repeats the kubelet's registration, and reports whether it is done.
func (r *Registration) register(ctx context.Context) bool {
	r.mu.Lock()
	said := r.said
	r.mu.Unlock()
	if said == nil {
		return true // the kubelet has not registered in this life: it will
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	result, err := r.Register(ctx, *said)
	switch {
	case err == nil && result.Code < http.StatusMultipleChoices, err == nil && result.Code == http.StatusConflict, apierrors.IsAlreadyExists(err):
		klog.FromContext(ctx).Info("Registered the Node again", "node", r.node)
		return true
	case err == nil:
		klog.FromContext(ctx).Info("Failed to register the Node again, retrying", "node", r.node, "code", result.Code)
	default:
		klog.FromContext(ctx).V(2).Info("Failed to register the Node again, retrying", "node", r.node, "err", err)
	}
	return false
}
