// Package creationorder prevents a clock that was set back from stopping pods.
//
// The kubelet takes the container with the latest CreatedAt for the last of its name, and the
// sandbox likewise. If the clock is earlier than at the last start, as on a device without a
// battery that boots in 1970, the dead container stays the last forever: the kubelet tries again
// and again to start the one after it, which exists, and the runtime refuses ("failed to reserve
// container name"). Correcting the clock does not repair that. So this package removes, by CRI, the
// dead containers and sandboxes that hide their successors: before the kubelet starts, and while
// the clock is behind the existing containers.
//
// Nor does the kubelet probe a container before the clock has passed its start (prober.worker): one
// that waits for its first success is not Ready until then. Such a container is stopped, if its pod
// is to run always, and the kubelet starts it again.
//
// It has no state and sets no clock. It removes only dead containers, and none that the kubelet
// needs to know that a container must not run again. While the clock is right it does not call the
// runtime. Module.Mend and Run may be called by different goroutines.
package creationorder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "creationorder"

const (
	// poll is the interval of clock checks: no system call wakes us in a process with another
	// clock, and a read is cheap.
	poll = 2 * time.Second
	// slack is how far a clock may be set back without a look: NTP slews more than that seldom.
	slack = time.Second
	// mendTimeout bounds one check and its removals.
	mendTimeout = time.Minute
	// stopSeconds is how long a container has after SIGTERM.
	stopSeconds = 10
)

// Config configures a Module.
type Config struct {
	NodeName string
	// Runtime is the endpoint of the container runtime.
	Runtime string
	// API configures a client of the edge API, which lists the pods of the device.
	API *rest.Config
}

// Module watches the clock.
type Module struct {
	config Config
	client kubernetes.Interface

	mu     sync.Mutex
	newest time.Time // no container was created later, and no later time was seen
}

// New returns a Module.
func New(config Config) (*Module, error) {
	client, err := kubernetes.NewForConfig(config.API)
	if err != nil {
		return nil, fmt.Errorf("making the client for the pods of this device: %w", err)
	}
	return &Module{config: config, client: client}, nil
}

// Name implements beehive.Module.
func (*Module) Name() message.Name { return Name }

// Run implements beehive.Module.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !m.behind(time.Now()) {
			continue
		}
		if err := m.Mend(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(1).Info("Failed to remove dead containers with creation times in the future, retrying", "err", err)
		}
	}
}

// behind reports whether the clock is earlier than it was, or than something that exists.
func (m *Module) behind(now time.Time) bool {
	now = now.Round(0) // without the monotonic clock, which is never set
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest.Sub(now) > slack {
		return true
	}
	if now.After(m.newest) {
		m.newest = now
	}
	return false
}

// Mend removes the dead that hide their successors, regardless of the clock. The kubelet waits for
// it: its view at its start is decisive.
func (m *Module) Mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	conn, err := cri.Dial(m.config.Runtime)
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime := runtimev1.NewRuntimeServiceClient(conn)
	state, err := m.read(ctx, runtime)
	if err != nil {
		return err
	}
	plan := Plan(state)
	err = errors.Join(remove(ctx, runtime, plan), stop(ctx, runtime, plan.Stops))
	if n := len(plan.Sandboxes) + len(plan.Containers); n > 0 {
		klog.FromContext(ctx).Info("Removed dead containers with later creation times than their successors: the clock was set back",
			"sandboxes", len(plan.Sandboxes), "containers", len(plan.Containers), "now", state.Now, "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest = state.newest() // of removed ones too: then it is checked once more
	if n := len(plan.Sandboxes) + len(plan.Containers); n == 0 && m.newest.Before(state.Now) {
		m.newest = state.Now
	}
	return err
}

// stop stops containers, each with its own time.
func stop(ctx context.Context, runtime runtimev1.RuntimeServiceClient, ids []string) error {
	var errs []error
	for _, id := range ids {
		klog.FromContext(ctx).Info("Stopping a container that the kubelet would not probe before the clock has passed its start: the clock was set back", "container", id)
		if _, err := runtime.StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: id, Timeout: stopSeconds}); err != nil {
			errs = append(errs, fmt.Errorf("stopping container %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func remove(ctx context.Context, runtime runtimev1.RuntimeServiceClient, plan Removal) error {
	var errs []error
	for _, id := range plan.Containers {
		if _, err := runtime.RemoveContainer(ctx, &runtimev1.RemoveContainerRequest{ContainerId: id}); err != nil {
			errs = append(errs, fmt.Errorf("removing container %s: %w", id, err))
		}
	}
	for _, id := range plan.Sandboxes {
		// Stopped first: that gives back its addresses.
		_, err := runtime.StopPodSandbox(ctx, &runtimev1.StopPodSandboxRequest{PodSandboxId: id})
		if err == nil {
			_, err = runtime.RemovePodSandbox(ctx, &runtimev1.RemovePodSandboxRequest{PodSandboxId: id})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("removing sandbox %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// read reads the runtime's state.
func (m *Module) read(ctx context.Context, runtime runtimev1.RuntimeServiceClient) (State, error) {
	s := State{Now: time.Now().Round(0), Pods: map[types.UID]Pod{}}
	s.Unset = unset(s.Now)
	pods, err := m.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.config.NodeName).String(), ResourceVersion: "0",
	})
	if err != nil {
		return s, fmt.Errorf("listing the pods of this device: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		uid := p.UID
		if hash := p.Annotations[corev1.MirrorPodAnnotationKey]; hash != "" {
			uid = types.UID(hash) // the runtime identifies a static pod by the hash of its file
		}
		s.Pods[uid] = podOf(p)
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimev1.ListPodSandboxRequest{})
	if err != nil {
		return s, fmt.Errorf("listing sandboxes: %w", err)
	}
	podOfSandbox := map[string]types.UID{}
	for _, b := range sandboxes.Items {
		uid := types.UID(b.GetMetadata().GetUid())
		podOfSandbox[b.Id] = uid
		s.Sandboxes = append(s.Sandboxes, Sandbox{
			ID: b.Id, Pod: uid, Attempt: b.GetMetadata().GetAttempt(), Created: time.Unix(0, b.CreatedAt), Ready: b.State == runtimev1.PodSandboxState_SANDBOX_READY,
		})
	}
	containers, err := runtime.ListContainers(ctx, &runtimev1.ListContainersRequest{})
	if err != nil {
		return s, fmt.Errorf("listing containers: %w", err)
	}
	for _, c := range containers.Containers {
		one := Container{
			ID: c.Id, Sandbox: c.PodSandboxId, Pod: podOfSandbox[c.PodSandboxId], Name: c.GetMetadata().GetName(), Attempt: c.GetMetadata().GetAttempt(),
			Created: time.Unix(0, c.CreatedAt), Dead: c.State == runtimev1.ContainerState_CONTAINER_EXITED,
		}
		one.Unproven = c.State == runtimev1.ContainerState_CONTAINER_RUNNING && s.Pods[one.Pod].Unproven[one.Name]
		if one.Dead && s.Pods[one.Pod].Policy == corev1.RestartPolicyOnFailure {
			status, err := runtime.ContainerStatus(ctx, &runtimev1.ContainerStatusRequest{ContainerId: c.Id})
			if err != nil {
				return s, fmt.Errorf("asking for container %s: %w", c.Id, err)
			}
			one.ExitCode = status.GetStatus().GetExitCode()
		}
		s.Containers = append(s.Containers, one)
	}
	return s, nil
}

func podOf(p *corev1.Pod) Pod {
	pod := Pod{Policy: p.Spec.RestartPolicy, Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
	for _, c := range p.Spec.InitContainers {
		pod.Init = append(pod.Init, c.Name)
	}
	pod.Unproven = map[string]bool{}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if status.Name == c.Name && status.State.Running != nil {
				pod.Unproven[c.Name] = c.StartupProbe != nil && (status.Started == nil || !*status.Started) || c.ReadinessProbe != nil && !status.Ready
			}
		}
	}
	return pod
}
