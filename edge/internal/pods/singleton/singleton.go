// Package singleton keeps the pods of singletons from a kubelet that boots until the cloud has
// confirmed which pods this device has.
//
// While a device is off, an application may have moved: the device's store is outdated. A pod with
// the annotation v1alpha1.EdgeAppHeldAtBoot is therefore withheld from the kubelet (podgate) until
// the whole set of the device's pods was delivered or found right over a link of this boot. After
// that no pod is withheld before the next boot: later pods come over the link, and running pods
// need no link.
//
// It owns one key in the store, the boot that was confirmed, written once for each boot in which
// there is such a pod. It withholds no other pods, and never ends a running pod. Rule and Confirmed
// are called by metamanager's core; Run is called once.
package singleton

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Name is the module's, and that of its part of the store.
const Name message.Name = "singleton"

// Reason is why a pod is withheld.
const Reason = "a singleton starts after a boot once the cloud has confirmed it: it may run elsewhere by now (failover.offlineStart)"

const (
	bootKey = "boot"
	// saveAgain is the pause after a failed write to the store.
	saveAgain = 5 * time.Second
)

// Manager shows pods; a *metamanager.Manager.
type Manager interface {
	Withheld() []podgate.Withheld
	Recorrect(ctx context.Context, refs ...object.Ref) error
}

// Gate is that of one process.
type Gate struct {
	manager func() Manager
	memory  agent.Memory
	boot    string
	kick    chan struct{} // one slot

	mu        sync.Mutex
	needed    bool // there is a pod that asks for it
	confirmed bool // in this boot
	kept      bool // the store has that
}

// New makes a Gate for a boot. It does not read the store or start a goroutine.
func New(manager func() Manager, memory agent.Memory, boot string) *Gate {
	return &Gate{manager: manager, memory: memory, boot: boot, kick: make(chan struct{}, 1)}
}

// Load reads whether an earlier process of this boot was confirmed. If the boot or the store can't
// be read, no process was.
func (g *Gate) Load() error {
	kept, err := g.memory.Load()
	if err != nil {
		return err
	}
	if g.boot != "" && string(kept[bootKey]) == g.boot {
		g.confirmed, g.kept = true, true
	}
	return nil
}

// Rule is the podgate's.
func (g *Gate) Rule(pod *corev1.Pod) string {
	if pod.Annotations[v1alpha1.EdgeAppHeldAtBoot] != "true" {
		return ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.needed {
		g.needed = true
		g.wake()
	}
	if g.confirmed {
		return ""
	}
	return Reason
}

// Confirmed notes that the cloud has confirmed the pods of this device.
func (g *Gate) Confirmed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.confirmed {
		g.confirmed = true
		g.wake()
	}
}

func (g *Gate) wake() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// Name implements beehive.Module.
func (*Gate) Name() message.Name { return Name }

// Run implements beehive.Module: it stores that this boot was confirmed, and shows the withheld
// pods.
func (g *Gate) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return g.Serve(ctx)
}

// Serve is Run without a bus.
func (g *Gate) Serve(ctx context.Context) error {
	g.wake() // work that the previous run has not finished
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.kick:
		}
		for !g.settle(ctx) {
			if err := rerun.Pause(ctx, saveAgain); err != nil {
				return nil
			}
		}
	}
}

// settle reports whether all work is done.
func (g *Gate) settle(ctx context.Context) bool {
	g.mu.Lock()
	save, confirmed := g.confirmed && g.needed && !g.kept, g.confirmed
	g.mu.Unlock()
	if !confirmed {
		return true
	}
	log := klog.FromContext(ctx)
	done := true
	if save {
		// First: a process that starts again without a link must not withhold running pods.
		if err := g.memory.Save(ctx, map[string][]byte{bootKey: []byte(g.boot)}); err != nil {
			log.Error(err, "Failed to store that the cloud has confirmed the pods of this boot, retrying")
			done = false
		} else {
			g.mu.Lock()
			g.kept = true
			g.mu.Unlock()
		}
	}
	m := g.manager()
	var refs []object.Ref
	for _, w := range m.Withheld() {
		if w.Reason == Reason {
			refs = append(refs, object.Ref{Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespace: w.Namespace, Name: w.Name})
		}
	}
	if len(refs) == 0 {
		return done
	}
	log.Info("Starting singleton pods that the cloud has confirmed", "pods", len(refs))
	if err := m.Recorrect(ctx, refs...); err != nil {
		log.Error(err, "Failed to show singletons to the kubelet, retrying")
		done = false
	}
	return done
}
