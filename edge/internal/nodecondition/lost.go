package nodecondition

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/object"
)

const (
	// lostReason is kube-controller-manager's for conditions that it sets to Unknown
	// (pkg/controller/nodelifecycle).
	lostReason = "NodeStatusUnknown"
	// restoreEvery is the kubelet's nodeStatusUpdateFrequency: where a condition is lost again
	// sooner, there is another reason for it than a link that was away, and the kubelet's own
	// pace is enough.
	restoreEvery = 10 * time.Second
	// unheld is how long to wait for the kubelet to open its watch of the Node.
	unheld = 5 * time.Second
	// writeTimeout bounds a write, which is applied and kept here.
	writeTimeout = 10 * time.Second
)

// Backend is what is held here; a *meta.Manager.
type Backend interface {
	Watch(ctx context.Context, s object.Selection, options meta.WatchOptions) (meta.Watch, error)
	Write(ctx context.Context, w meta.Write) (meta.Result, error)
}

// LostModule says again what the kubelet said of its node where kube-controller-manager has written
// since that nobody knows. It sets Ready and the kubelet's other conditions to Unknown when the
// node's Lease runs out, as in a long cut. With the link back the Lease is renewed within a second,
// but the kubelet looks at its Node each 10 s only.
type LostModule struct {
	backend Backend
	node    string
	alive   func() bool
}

// NewLostModule returns the module for the Node of that name. alive says whether the kubelet lives:
// what one that does not said before is not said again.
func NewLostModule(backend Backend, node string, alive func() bool) *LostModule {
	return &LostModule{backend, node, alive}
}

// Name implements beehive.Module.
func (*LostModule) Name() message.Name { return "lost-conditions" }

// Run implements beehive.Module.
func (m *LostModule) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return m.Restore(ctx)
}

// Restore follows the Node until ctx ends.
func (m *LostModule) Restore(ctx context.Context) error {
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	one := object.Selection{Resource: nodes, Fields: fields.OneTermEqualSelector("metadata.name", m.node)}
	said := conditions{}
	for ctx.Err() == nil {
		w, err := m.backend.Watch(ctx, one, meta.WatchOptions{Held: true})
		if err == nil {
			m.follow(ctx, w, said)
			w.Stop()
		}
		_ = rerun.Pause(ctx, unheld) // the kubelet has not opened its own yet, or the watch has ended
	}
	return nil
}

// conditions are those that the kubelet, or anybody on the device, said last.
type conditions map[corev1.NodeConditionType]corev1.NodeCondition

// follow serves one watch until it ends.
func (m *LostModule) follow(ctx context.Context, w meta.Watch, said conditions) {
	var last time.Time
	for e := range w.Events() {
		if e.Type != watch.Added && e.Type != watch.Modified {
			continue
		}
		decoded, err := object.Decode(e.Object)
		node, ok := decoded.(*corev1.Node)
		if err != nil || !ok {
			klog.FromContext(ctx).Error(err, "The Node that is held can't be read")
			continue
		}
		lost := said.take(node)
		if len(lost) == 0 || !m.alive() || time.Since(last) < restoreEvery {
			continue
		}
		last = time.Now()
		if err := m.restore(ctx, node, lost); err != nil {
			klog.FromContext(ctx).Info("The Node's conditions could not be restored: the kubelet will", "err", err)
		}
	}
}

// take takes in what the Node says, and returns what it said before of the conditions that are lost
// now.
func (said conditions) take(node *corev1.Node) (lost []corev1.NodeCondition) {
	for _, c := range node.Status.Conditions {
		if c.Status != corev1.ConditionUnknown || c.Reason != lostReason {
			said[c.Type] = c
		} else if before, ok := said[c.Type]; ok {
			lost = append(lost, before)
		}
	}
	return lost
}

// restore writes the conditions with the time of now, as the kubelet does.
func (m *LostModule) restore(ctx context.Context, node *corev1.Node, lost []corev1.NodeCondition) error {
	now := metav1.Now()
	for i := range lost {
		lost[i].LastHeartbeatTime, lost[i].LastTransitionTime = now, now
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": lost}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	ref := object.Ref{Resource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Name: m.node}
	result, err := m.backend.Write(ctx, meta.Write{
		Verb: "patch", Ref: ref, Subresource: "status", PatchType: types.StrategicMergePatchType, ContentType: string(types.StrategicMergePatchType), Body: patch, UID: node.UID,
	})
	if err == nil && result.Code != http.StatusOK {
		klog.FromContext(ctx).Info("The Node's conditions were not restored: the kubelet will", "code", result.Code)
		return nil
	}
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Restored the Node's conditions that had become Unknown while the link was away")
	}
	return err
}
