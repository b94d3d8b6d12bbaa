package shutdown

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Period is how long a shutdown waits for the pods of a priority and above, up to the
// next Period's.
type Period struct {
	Priority int32
	Length   time.Duration
}

// total is how long all of them take.
func total(periods []Period) (sum time.Duration) {
	for _, p := range periods {
		sum += p.Length
	}
	return sum
}

// A Group is the pods that end side by side; the next one follows when their containers have ended,
// or after Length.
type Group struct {
	Period
	Pods []Pod
}

// A Pod is one whose containers are to end.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Grace           time.Duration // of each container, from the group's beginning
	Containers      []Container
}

// A Container is one that runs.
type Container struct {
	ID, Name string
	Sandbox  string // its pod's in the runtime
	PreStop  *corev1.LifecycleHandler
	Ports    []corev1.ContainerPort
	After    []string // the containers of the pod that end before it, by name
}

// Labels and annotations that kubelets give their containers (pkg/kubelet/types and
// kuberuntime/labels.go of Kubernetes): they identify a container whose pod is unknown.
const (
	labelNamespace       = "io.kubernetes.pod.namespace"
	labelPod             = "io.kubernetes.pod.name"
	labelUID             = "io.kubernetes.pod.uid"
	labelContainer       = "io.kubernetes.container.name"
	annotationGrace      = "io.kubernetes.pod.terminationGracePeriod"
	annotationPreStop    = "io.kubernetes.container.preStopHandler"
	annotationPorts      = "io.kubernetes.container.ports"
	annotationConfigHash = "kubernetes.io/config.hash" // of a mirror pod: its static pod's UID
)

// defaultGrace is Kubernetes' terminationGracePeriodSeconds.
const defaultGrace = 30 * time.Second

// Plan returns the order in which the containers of pods end within available: the non-empty groups
// by priority, the lowest first. If less is available than the periods take together, each gets its
// share of it. pods are those of this node; a container of another pod counts as one of priority 0.
// The rules are those of the kubelet's nodeshutdown and killContainer.
func Plan(running []*runtimev1.Container, pods []corev1.Pod, periods []Period, available time.Duration) []Group {
	if len(periods) == 0 {
		return nil
	}
	groups := make([]Group, 0, len(periods))
	share := 1.0
	if sum := total(periods); sum > available {
		share = max(0, float64(available)/float64(sum))
	}
	for _, p := range periods {
		groups = append(groups, Group{Period: Period{p.Priority, time.Duration(float64(p.Length) * share)}})
	}
	slices.SortStableFunc(groups, func(x, y Group) int { return cmp.Compare(x.Priority, y.Priority) })
	specs := map[types.UID]*corev1.Pod{}
	for i, p := range pods {
		uid := p.UID
		if static := p.Annotations[annotationConfigHash]; static != "" && p.Annotations[corev1.MirrorPodAnnotationKey] != "" {
			uid = types.UID(static)
		}
		specs[uid] = &pods[i]
	}
	byPod := map[types.UID][]*runtimev1.Container{}
	for _, c := range running {
		if uid := c.Labels[labelUID]; uid != "" { // else no kubelet made it
			byPod[types.UID(uid)] = append(byPod[types.UID(uid)], c)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(byPod)) {
		spec := specs[uid]
		g := &groups[groupOf(groups, priorityOf(spec))]
		g.Pods = append(g.Pods, podOf(uid, spec, byPod[uid], g.Length))
	}
	return slices.DeleteFunc(groups, func(g Group) bool { return len(g.Pods) == 0 })
}

func priorityOf(spec *corev1.Pod) int32 {
	if spec == nil || spec.Spec.Priority == nil {
		return 0
	}
	return *spec.Spec.Priority
}

// groupOf is the last group whose priority the pod's reaches; below all of them it is the first.
func groupOf(groups []Group, priority int32) int {
	at := 0
	for i, g := range groups {
		if g.Priority <= priority {
			at = i
		}
	}
	return at
}

// podOf is a pod's part of the plan; spec is nil where the pod is not known.
func podOf(uid types.UID, spec *corev1.Pod, running []*runtimev1.Container, atMost time.Duration) Pod {
	first := running[0]
	p := Pod{Namespace: first.Labels[labelNamespace], Name: first.Labels[labelPod], UID: uid, Grace: min(graceOf(spec, first), atMost)}
	names := map[string]bool{}
	for _, c := range running {
		names[c.Labels[labelContainer]] = true
	}
	for _, c := range running {
		one := Container{ID: c.Id, Name: c.Labels[labelContainer], Sandbox: c.PodSandboxId, After: before(spec, c.Labels[labelContainer], names)}
		one.PreStop, one.Ports = hookOf(spec, c)
		p.Containers = append(p.Containers, one)
	}
	slices.SortFunc(p.Containers, func(x, y Container) int { return cmp.Compare(x.Name, y.Name) })
	return p
}

func graceOf(spec *corev1.Pod, c *runtimev1.Container) time.Duration {
	seconds := int64(defaultGrace / time.Second)
	switch {
	case spec != nil && spec.DeletionGracePeriodSeconds != nil:
		seconds = *spec.DeletionGracePeriodSeconds
	case spec != nil && spec.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *spec.Spec.TerminationGracePeriodSeconds
	case spec == nil:
		if n, err := strconv.ParseInt(c.Annotations[annotationGrace], 10, 32); err == nil {
			seconds = n
		}
	}
	return time.Duration(max(0, seconds)) * time.Second
}

func hookOf(spec *corev1.Pod, c *runtimev1.Container) (*corev1.LifecycleHandler, []corev1.ContainerPort) {
	if spec != nil {
		for _, all := range [][]corev1.Container{spec.Spec.Containers, spec.Spec.InitContainers} {
			for _, s := range all {
				if s.Name != c.Labels[labelContainer] {
					continue
				}
				if s.Lifecycle == nil {
					return nil, nil
				}
				return s.Lifecycle.PreStop, s.Ports
			}
		}
	}
	var hook *corev1.LifecycleHandler
	var ports []corev1.ContainerPort
	if json.Unmarshal([]byte(c.Annotations[annotationPreStop]), &hook) != nil { // no hook
		return nil, nil
	}
	_ = json.Unmarshal([]byte(c.Annotations[annotationPorts]), &ports) // without them a hook can't use port names
	return hook, ports
}

// before are the running containers that end before one: before a sidecar all ordinary containers,
// and the sidecars that were started after it (KEP-753).
func before(spec *corev1.Pod, name string, running map[string]bool) (names []string) {
	if spec == nil {
		return nil
	}
	sidecar := func(c corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	at := slices.IndexFunc(spec.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name && sidecar(c) })
	if at < 0 {
		return nil
	}
	for _, c := range spec.Spec.Containers {
		if running[c.Name] {
			names = append(names, c.Name)
		}
	}
	for _, c := range spec.Spec.InitContainers[at+1:] {
		if sidecar(c) && running[c.Name] {
			names = append(names, c.Name)
		}
	}
	return names
}
