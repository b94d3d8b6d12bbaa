package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
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
	// restoreEvery is the kubelet's own pace (nodeStatusUpdateFrequency, and the sync period of its
	// status manager). A status that is lost again sooner is lost for another reason than a lost
	// link.
	restoreEvery = 10 * time.Second
	// writeTimeout bounds a write, which is applied and kept here.
	writeTimeout = 10 * time.Second
)

// Restorer restores lost statuses.
type Restorer struct {
	backend Backend
	node    string
	alive   func() bool
}

// NewRestorer returns the module for the Node of that name. alive reports whether the kubelet is
// alive. It starts no goroutine.
func NewRestorer(backend Backend, node string, alive func() bool) *Restorer {
	return &Restorer{backend, node, alive}
}

// Name implements beehive.Module.
func (*Restorer) Name() message.Name { return "lost-conditions" }

// Run implements beehive.Module.
func (m *Restorer) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return m.Restore(ctx)
}

// Restore follows the Node and its pods until ctx ends.
func (m *Restorer) Restore(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for resource, f := range map[string]*follower{
		"nodes": {fields.OneTermEqualSelector("metadata.name", m.node), nodeConditions{}, map[types.UID]time.Time{}},
		"pods":  {fields.OneTermEqualSelector("spec.nodeName", m.node), podReadiness{}, map[types.UID]time.Time{}},
	} {
		g.Go(func() error {
			s := object.Selection{Resource: schema.GroupVersionResource{Version: "v1", Resource: resource}, Fields: f.mine}
			for w := range metamanager.HeldWatches(ctx, m.backend, s) {
				m.follow(ctx, w, f)
			}
			return nil
		})
	}
	return g.Wait()
}

// follower has the state of one kind of object.
type follower struct {
	mine     fields.Selector
	said     statements
	restored map[types.UID]time.Time // when
}

// statements has the last status of each object of a kind.
type statements interface {
	// take processes the current object, and returns its lost conditions, as they should be
	// restored.
	take(obj runtime.Object, now time.Time) (lost []any)
	forget(uid types.UID)
}

// follow serves one watch until it ends.
func (m *Restorer) follow(ctx context.Context, w metamanager.Watch, f *follower) {
	for e := range w.Events() {
		o := e.Object
		log := klog.FromContext(ctx).WithValues("object", o.Ref)
		switch e.Type {
		case watch.Deleted:
			f.said.forget(o.UID)
			delete(f.restored, o.UID)
			continue
		case watch.Added, watch.Modified:
		default:
			continue
		}
		obj, err := object.Decode(o)
		if err != nil {
			log.Error(err, "Failed to read the stored object, not restoring its conditions")
			continue
		}
		now := time.Now()
		lost := f.said.take(obj, now)
		if len(lost) == 0 || !m.alive() || now.Sub(f.restored[o.UID]) < restoreEvery {
			continue
		}
		f.restored[o.UID] = now
		if err := m.restore(ctx, o, lost); err != nil {
			log.Info("Failed to restore lost conditions, leaving it to the kubelet", "err", err)
			continue
		}
		log.V(2).Info("Restored conditions that were lost while offline")
	}
}

// restore writes conditions of an object.
func (m *Restorer) restore(ctx context.Context, o object.Object, lost []any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": lost}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	result, err := m.backend.Write(ctx, metamanager.Write{
		Verb: "patch", Ref: o.Ref, Subresource: "status", PatchType: types.StrategicMergePatchType, ContentType: string(types.StrategicMergePatchType), Body: patch, UID: o.UID,
	})
	if err == nil && result.Code != http.StatusOK {
		err = fmt.Errorf("patching the status: code %d", result.Code)
	}
	return err
}
