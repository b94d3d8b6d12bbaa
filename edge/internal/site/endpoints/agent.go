package endpoints

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Name is the module's address on the bus.
const Name message.Name = "endpoints"

const (
	// readyAfter is how long the modules behind this one wait for the first correction: on a first
	// boot the slices are unknown until there is a link.
	readyAfter = 10 * time.Second
	// forgetAfter is the interval of recomputing the slices' dependencies: that drops deleted ones.
	forgetAfter = 10 * time.Minute

	bootKey = "boot"
)

// Recorrector shows slices again: a *metamanager.Manager.
type Recorrector interface {
	Recorrect(ctx context.Context, refs ...object.Ref) error
}

// Config configures the agent.
type Config struct {
	NodeName string
	API      *rest.Config
	// Services are the cluster's, in an informer that others run and read too.
	Services   cache.SharedIndexInformer
	Correction *Correction
	View       Recorrector
	Memory     agent.Memory
	// BootID is the unique ID of this boot, and BootTime its time by the present clock.
	BootID   string
	BootTime func() time.Time
	// Corrected is called once, when slices have been corrected with all known data: modules that
	// program the kernel by them wait for it.
	Corrected func()
	// Own receives the kubelet's status of this device's pods, whenever that may have changed;
	// nil: no callback.
	Own func(map[types.UID]PodStatus)
}

// New makes the agent that passes this device's own pods and Services to the Correction.
func New(c Config) *agent.Module {
	var corrected sync.Once
	kit := agent.Config{Name: Name, NodeName: c.NodeName, API: c.API, ReadyAfter: readyAfter, Resync: time.Minute}
	kit.Start = func(_ context.Context, r *agent.Run) (agent.Sync, error) {
		pods, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}, agent.Selection{Fields: "spec.nodeName=" + c.NodeName})
		if err != nil {
			return nil, err
		}
		services := &notable{wake: r.Wake, all: map[types.NamespacedName]Service{}}
		handled, err := c.Services.AddEventHandler(services.handler())
		if err != nil {
			return nil, fmt.Errorf("watching Services: %w", err)
		}
		r.Cleanup(func() { _ = c.Services.RemoveEventHandler(handled) }) // refused only for one that is not ours
		c.Correction.onChange(r.Wake)
		s := &syncer{Config: c}
		return func(ctx context.Context) (time.Duration, error) {
			if !handled.HasSynced() {
				r.Note("the cluster's services are not known yet")
				if !cache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
					return 0, ctx.Err()
				}
				r.Note("")
			}
			if err := s.sync(ctx, pods.List(), services.now(), time.Now()); err != nil {
				return 0, err
			}
			corrected.Do(c.Corrected)
			return 0, nil
		}, nil
	}
	return agent.New(kit)
}

// syncer is one run.
type syncer struct {
	Config
	preBoot map[string]bool // containers of an earlier boot; nil: not known yet
	unsaved *boot           // the part that the store has not taken yet; nil: it has all
	forgot  time.Time
}

func (s *syncer) sync(ctx context.Context, pods []*corev1.Pod, services map[types.NamespacedName]Service, now time.Time) error {
	if s.preBoot == nil {
		var err error
		if s.preBoot, err = s.recordPreBoot(ctx, pods); err != nil {
			return err
		}
	} else if s.unsaved != nil && s.save(ctx, *s.unsaved) == nil {
		s.unsaved = nil
	}
	statuses := make(map[types.UID]PodStatus, len(pods))
	for _, p := range pods {
		statuses[p.UID] = PodStatusOf(p, s.preBoot)
	}
	if s.Own != nil {
		s.Own(maps.Clone(statuses))
	}
	refs := s.Correction.learn(statuses, services)
	if s.forgot.IsZero() || now.Sub(s.forgot) >= forgetAfter {
		s.forgot, refs = now, s.Correction.all()
	}
	if len(refs) == 0 {
		return nil
	}
	if err := s.View.Recorrect(ctx, refs...); err != nil {
		s.forgot = time.Time{} // all of them next time
		return fmt.Errorf("correcting EndpointSlices: %w", err)
	}
	return nil
}

// boot is the saved state.
type boot struct {
	ID      string   `json:"id"`
	PreBoot []string `json:"preBoot,omitempty"` // containers
}

// recordPreBoot notes, once a boot, which containers the store's pods had before it: their
// addresses and conditions are of that boot, and hold no more. A device without a record has not
// run this before: its pods are as in the store.
func (s *syncer) recordPreBoot(ctx context.Context, pods []*corev1.Pod) (map[string]bool, error) {
	kept, err := s.Memory.Load()
	if err != nil {
		return nil, err
	}
	var b boot
	if raw := kept[bootKey]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &b); err != nil {
			b = boot{ID: "unreadable"} // as after a boot: pods come in again with their next status
		}
	}
	if b.ID == s.BootID {
		return b.ids(), nil
	}
	earlier := b.ID != ""
	b = boot{ID: s.BootID}
	if earlier {
		b.note(pods, func(corev1.ContainerStatus) bool { return true })
	}
	if err := s.save(ctx, b); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		// A disk without room must not keep Services down. Whether an earlier run of this boot was
		// here can't be known now, and a pod that began in this boot would stay out for as long as
		// it runs: so when it began decides, although a device's clock may be wrong when it boots.
		klog.FromContext(ctx).Error(err, "Failed to store the containers of an earlier boot, retrying")
		if earlier {
			began := s.BootTime().Add(-time.Second) // times in a pod are in whole seconds
			b.note(pods, func(c corev1.ContainerStatus) bool {
				return c.State.Running != nil && c.State.Running.StartedAt.Time.Before(began)
			})
		}
		s.unsaved = &b
	}
	return b.ids(), nil
}

func (s *syncer) save(ctx context.Context, b boot) error {
	raw, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("keeping the boot: %w", err)
	}
	return s.Memory.Save(ctx, map[string][]byte{bootKey: raw})
}

// note takes those of the pods' containers.
func (b *boot) note(pods []*corev1.Pod, which func(corev1.ContainerStatus) bool) {
	b.PreBoot = []string{}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if c.ContainerID != "" && which(c) {
				b.PreBoot = append(b.PreBoot, c.ContainerID)
			}
		}
	}
	slices.Sort(b.PreBoot)
}

func (b *boot) ids() map[string]bool {
	out := map[string]bool{}
	for _, id := range b.PreBoot {
		out[id] = true
	}
	return out
}

func containers(p *corev1.Pod) (ids []string) {
	for _, c := range p.Status.ContainerStatuses {
		if c.ContainerID != "" {
			ids = append(ids, c.ContainerID)
		}
	}
	return ids
}

// PodStatusOf is the kubelet's status on a pod of this device. A status that still has containers
// of an earlier boot (preBoot) is no status of this one: no address, not ready.
func PodStatusOf(p *corev1.Pod, preBoot map[string]bool) PodStatus {
	w := PodStatus{Terminating: p.DeletionTimestamp != nil}
	if slices.ContainsFunc(containers(p), func(id string) bool { return preBoot[id] }) {
		return w
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return w
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			w.Addresses = append(w.Addresses, a.Unmap())
		}
	}
	w.Ready = object.PodReady(p)
	return w
}
