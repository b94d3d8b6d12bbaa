// Package deviceplugin keeps pods with devices of device plugins from being rejected after a boot.
//
// A kubelet that starts has no device until its plugin has registered, which is often a pod itself,
// and rejects each pod that requests one until then: UnexpectedAdmissionError, permanently
// (kubernetes#128043). So these pods are withheld from the kubelet until it has their devices, the
// oldest first, and at most for a while: then the kubelet decides.
//
// It owns which pods wait, and their conditions and events about that. It refuses to hold a pod
// whose containers run (the kubelet admits those), a plugin's own pod, and any pod once the limit
// is over: from then on the scheduler and the kubelet decide. Prepare runs before Run's first
// check; Withholds may be called by any goroutine, all the time.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "deviceplugin"

const (
	// poll is the interval of looking for devices while pods wait.
	poll = time.Second
	// settled is how often in a row a pod's devices must be seen: the kubelet receives its own
	// Node's allocatable a moment after it is written.
	settled = 2
	// askTimeout bounds a look at the runtime or the kubelet.
	askTimeout = 10 * time.Second
	// runtimeTimeout is how long Prepare retries where the container runtime does not list its
	// containers.
	runtimeTimeout = 30 * time.Second
)

// Config configures a Module.
type Config struct {
	NodeName string
	// Runtime is the endpoint of the container runtime.
	Runtime string
	// RootDir is the kubelet's.
	RootDir string
	// API configures a client of the edge API.
	API    *rest.Config
	Events func(ctx context.Context) (agent.Recorder, error)
	// Recorrect has the gate asked again for pods; metamanager.Manager's.
	Recorrect func(ctx context.Context, refs ...object.Ref) error
	// Timeout is how long pods wait after the kubelet's start.
	Timeout time.Duration
}

// Module withholds pods. A nil Module withholds no pod.
type Module struct {
	config Config
	client kubernetes.Interface
	source source
	wake   chan struct{} // one slot

	failing time.Time               // owned by Prepare: since when the runtime does not answer
	changed map[object.Ref]struct{} // owned by Run: pods for which the gate has another answer and must be asked again

	mu       sync.Mutex // guards the fields below
	until    time.Time  // pods may wait until then; zero: no pod waits
	plugins  Resources  // as the kubelet found them when it started
	running  map[types.UID]sets.Set[string]
	waiting  map[types.UID]*waiting
	admitted map[types.UID]bool // pods that the kubelet has been shown; empty when until has passed
}

// source answers from the container runtime and the kubelet.
type source interface {
	// Running are the names of the containers that run, by pod.
	Running(ctx context.Context) (map[types.UID]sets.Set[string], error)
	// Resources returns the kubelet's records.
	Resources() (Resources, error)
	// Healthy are the devices that plugins have registered, by resource.
	Healthy(ctx context.Context) (map[string]sets.Set[string], error)
}

// waiting is a pod that the kubelet is not shown.
type waiting struct {
	ref    object.Ref
	reason string
	said   bool // by its conditions
	seen   int  // how often in a row its devices were all there
}

// New returns a Module.
func New(config Config) (*Module, error) {
	client, err := kubernetes.NewForConfig(config.API)
	if err != nil {
		return nil, fmt.Errorf("making the client for the pods of this device: %w", err)
	}
	return &Module{
		config: config, client: client, source: &machine{config}, wake: make(chan struct{}, 1),
		changed: map[object.Ref]struct{}{}, waiting: map[types.UID]*waiting{}, admitted: map[types.UID]bool{},
	}, nil
}

// Name implements beehive.Module.
func (*Module) Name() message.Name { return Name }

// Withholds is a podgate.Rule.
func (m *Module) Withholds(pod *corev1.Pod) (reason string) {
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.until.IsZero() {
		return ""
	}
	w := m.waiting[pod.UID]
	switch {
	case w != nil:
	case m.admitted[pod.UID]:
		return ""
	case !m.plugins.mustWait(pod, m.running[pod.UID]):
		m.admitted[pod.UID] = true
		return ""
	default:
		w = &waiting{ref: object.Ref{Resource: view.Pods, Namespace: pod.Namespace, Name: pod.Name}, reason: "the kubelet has only started"}
		m.waiting[pod.UID] = w
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return fmt.Sprintf("waits for a device plugin: %s; see whether the plugin's pod runs; starts in any case %s after the kubelet", w.reason, m.config.Timeout)
}

// Prepare decides which pods wait. The kubelet waits for it: at its start it admits all visible
// pods at once.
func (m *Module) Prepare(ctx context.Context) error {
	if m.config.Timeout == 0 {
		return nil
	}
	resources, err := m.source.Resources()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read the kubelet's device checkpoint, treating all extended resources as device plugins'")
	}
	if !resources.All && len(resources.Known) == 0 {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	running, err := m.source.Running(asked)
	switch {
	case err == nil:
		m.failing = time.Time{}
	case m.failing.IsZero():
		m.failing = time.Now()
		return err
	case time.Since(m.failing) < runtimeTimeout:
		return err
	default: // without it a pod that runs might be stopped
		m.failing = time.Time{}
		klog.FromContext(ctx).Error(err, "Failed to list running containers: no pod waits for device plugins")
		return nil
	}
	pods, err := m.pods(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.until, m.plugins, m.running = time.Now().Add(m.config.Timeout), resources, running
	clear(m.waiting)
	clear(m.admitted)
	m.mu.Unlock()
	var refs []object.Ref
	for _, pod := range pods {
		if m.Withholds(pod) != "" {
			refs = append(refs, object.Ref{Resource: view.Pods, Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	if len(refs) == 0 {
		return nil
	}
	klog.FromContext(ctx).Info("Withholding pods from the kubelet until device plugins have registered", "pods", len(refs), "timeout", m.config.Timeout)
	return m.config.Recorrect(ctx, refs...)
}

func (m *Module) pods(ctx context.Context) ([]*corev1.Pod, error) {
	list, err := m.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.config.NodeName).String(), ResourceVersion: "0",
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of this device: %w", err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// Run implements beehive.Module: it looks for devices while pods wait.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	recorder, err := m.config.Events(ctx)
	if err != nil {
		return fmt.Errorf("opening the recorder of events: %w", err)
	}
	defer func() { _ = recorder.Close(context.WithoutCancel(ctx)) }() // an event that can't be written is no reason to fail
	port.Ready()
	return m.run(ctx, recorder)
}

func (m *Module) run(ctx context.Context, recorder agent.Recorder) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		if err := m.look(ctx, recorder); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(1).Info("Failed to check the devices that pods wait for, retrying", "err", err)
		}
		if next := m.next(); next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
}

// next is when to look again; 0: not before Withholds asks for it.
func (m *Module) next() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case len(m.changed) > 0:
		return poll
	case m.until.IsZero():
		return 0
	case len(m.waiting) > 0:
		return poll
	}
	return max(time.Until(m.until), poll) // no further pod waits then
}

// look admits pods whose devices are available, or all once their time is over.
func (m *Module) look(ctx context.Context, recorder agent.Recorder) error {
	m.mu.Lock()
	until, some := m.until, len(m.waiting) > 0
	m.mu.Unlock()
	if !until.IsZero() && !time.Now().Before(until) {
		m.giveUp(ctx, recorder)
		some = false
	}
	if !some {
		return m.recorrect(ctx) // also earlier failures
	}
	pods, err := m.pods(ctx)
	if err != nil {
		return err
	}
	node, err := m.client.CoreV1().Nodes().Get(ctx, m.config.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("reading the Node: %w", err)
	}
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	healthy, err := m.source.Healthy(asked)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Failed to list the devices of the kubelet", "err", err)
	}
	now, err := m.source.Resources() // the kubelet may have given devices to others
	if err != nil {
		return err
	}
	m.judge(now, healthy, node.Status.Allocatable, pods)
	if err := m.recorrect(ctx); err != nil {
		return err
	}
	return m.report(ctx)
}

// recorrect asks the gate again for the pods that changed. Those of a write that fails remain.
func (m *Module) recorrect(ctx context.Context) error {
	if len(m.changed) == 0 {
		return nil
	}
	if err := m.config.Recorrect(ctx, slices.Collect(maps.Keys(m.changed))...); err != nil {
		return fmt.Errorf("showing pods to the kubelet: %w", err)
	}
	clear(m.changed)
	return nil
}

// judge decides which pods wait on, and notes for which the gate has another answer now.
func (m *Module) judge(now Resources, healthy map[string]sets.Set[string], allocatable corev1.ResourceList, pods []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now.Known = now.Known.Union(m.plugins.Known)
	now.All = now.All || m.plugins.All
	s := State{Resources: now, Healthy: healthy, Allocatable: allocatable}
	present := map[types.UID]bool{}
	for _, pod := range pods {
		present[pod.UID] = true
		if m.waiting[pod.UID] != nil {
			s.Waiting = append(s.Waiting, pod)
		} else {
			s.Shown = append(s.Shown, pod)
		}
	}
	reasons := Plan(s)
	for uid, w := range m.waiting {
		reason := reasons[uid]
		switch {
		case !present[uid]: // gone, or not stored yet: then the gate, asked again, has it wait again
			delete(m.waiting, uid)
		case reason != "" && reason != w.reason:
			w.reason, w.said, w.seen = reason, false, 0
		case reason != "":
			w.seen = 0
			continue
		case w.seen+1 < settled:
			w.seen++
			continue
		default:
			delete(m.waiting, uid)
			m.admitted[uid] = true
		}
		m.changed[w.ref] = struct{}{}
	}
}

// report makes pods that wait not Ready, with the reason: their status is of before.
func (m *Module) report(ctx context.Context) error {
	m.mu.Lock()
	unsaid := map[*waiting]string{}
	for _, w := range m.waiting {
		if !w.said {
			unsaid[w] = w.reason
		}
	}
	m.mu.Unlock()
	var errs []error
	for w, reason := range unsaid {
		patch := podgate.NotReady(time.Now(), "WaitingForDevicePlugin", reason)
		if _, err := m.client.CoreV1().Pods(w.ref.Namespace).Patch(ctx, w.ref.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			errs = append(errs, fmt.Errorf("writing the conditions of pod %s/%s: %w", w.ref.Namespace, w.ref.Name, err))
			continue
		}
		m.mu.Lock()
		w.said = w.reason == reason
		m.mu.Unlock()
	}
	return errors.Join(errs...)
}

// giveUp shows the kubelet all pods that wait.
func (m *Module) giveUp(ctx context.Context, recorder agent.Recorder) {
	m.mu.Lock()
	left := m.waiting
	m.until, m.waiting = time.Time{}, map[types.UID]*waiting{}
	clear(m.admitted)
	m.mu.Unlock()
	for uid, w := range left {
		klog.FromContext(ctx).Info("Showing a pod to the kubelet although its device plugin has not registered in time", "pod", klog.KRef(w.ref.Namespace, w.ref.Name), "reason", w.reason)
		recorder.Eventf(&corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: w.ref.Namespace, Name: w.ref.Name, UID: uid}, corev1.EventTypeWarning, "DevicePluginTimeout",
			"%s; the pod has waited for %s and is started now. Look for the device plugin's pod on this node, or raise modules.edged.devicePluginTimeout", w.reason, m.config.Timeout)
		m.changed[w.ref] = struct{}{}
	}
}

// machine is the source on a real device.
type machine struct{ config Config }

func (s *machine) Resources() (Resources, error) { return readResources(Dir) }

func (s *machine) Running(ctx context.Context) (map[types.UID]sets.Set[string], error) {
	conn, err := cri.Dial(s.config.Runtime)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := runtimev1.NewRuntimeServiceClient(conn).ListContainers(ctx, &runtimev1.ListContainersRequest{
		Filter: &runtimev1.ContainerFilter{State: &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, fmt.Errorf("asking the container runtime which containers run: %w", err)
	}
	running := map[types.UID]sets.Set[string]{}
	for _, c := range list.Containers {
		uid := types.UID(c.Labels["io.kubernetes.pod.uid"]) // the kubelet's own (pkg/kubelet/types)
		if running[uid] == nil {
			running[uid] = sets.New[string]()
		}
		running[uid].Insert(c.GetMetadata().GetName())
	}
	return running, nil
}

// Healthy asks the kubelet's own API for its resources (KEP-606): it is right from the first
// moment, where the Node's status is that of before the boot for a while.
func (s *machine) Healthy(ctx context.Context) (map[string]sets.Set[string], error) {
	conn, err := cri.Dial(filepath.Join(s.config.RootDir, "pod-resources", "kubelet.sock"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := podresourcesv1.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet for its devices: %w", err)
	}
	healthy := map[string]sets.Set[string]{}
	for _, d := range answer.Devices {
		if healthy[d.ResourceName] == nil {
			healthy[d.ResourceName] = sets.New[string]()
		}
		healthy[d.ResourceName].Insert(d.DeviceIds...)
	}
	return healthy, nil
}
