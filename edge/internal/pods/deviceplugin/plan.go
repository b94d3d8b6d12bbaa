package deviceplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
)

// Dir is where device plugins and the kubelet meet; upstream it is a constant
// (pluginapi.DevicePluginPath), whatever the kubelet's root directory is.
const Dir = "/var/lib/kubelet/device-plugins"

// Resources are the resources of device plugins, by name, and the kubelet's records of each pod's
// devices.
type Resources struct {
	// Known are those that a plugin has registered before. For any other the kubelet allocates no
	// devices.
	Known sets.Set[string]
	// All is set where every extended resource may be one: the kubelet's notes can't be read.
	All bool
	// Allocated are the IDs of devices, by pod and resource.
	Allocated map[types.UID]map[string]sets.Set[string]
}

func (r Resources) has(name corev1.ResourceName) bool {
	return r.Known.Has(string(name)) || r.All && extended(name)
}

// extended is the kubelet's v1helper.IsExtendedResourceName, except names that the API does not
// admit.
func extended(name corev1.ResourceName) bool {
	n := string(name)
	return strings.Contains(n, "/") && !strings.Contains(n, corev1.ResourceDefaultNamespacePrefix) && !strings.HasPrefix(n, corev1.DefaultResourceRequestsPrefix)
}

// wanted are the devices of plugins that a container asks for. Those that DRA provides (KEP-5004)
// are excluded.
func (r Resources) wanted(pod *corev1.Pod, c *corev1.Container) map[string]int64 {
	var all map[string]int64
	for name, quantity := range c.Resources.Limits {
		if !r.has(name) || quantity.Value() == 0 || fromDRA(pod, c.Name, string(name)) {
			continue
		}
		if all == nil {
			all = map[string]int64{}
		}
		all[string(name)] = quantity.Value()
	}
	return all
}

func fromDRA(pod *corev1.Pod, container, resource string) bool {
	status := pod.Status.ExtendedResourceClaimStatus
	return status != nil && slices.ContainsFunc(status.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// requests are the devices that a pod occupies: containers that run to an end leave theirs to those
// after them.
func (r Resources) requests(pod *corev1.Pod) map[string]int64 {
	sum, peak := map[string]int64{}, map[string]int64{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		stays := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for name, n := range r.wanted(pod, c) {
			peak[name] = max(peak[name], sum[name]+n)
			if stays {
				sum[name] += n
			}
		}
	}
	for i := range pod.Spec.Containers {
		for name, n := range r.wanted(pod, &pod.Spec.Containers[i]) {
			sum[name] += n
		}
	}
	for name, n := range peak {
		sum[name] = max(sum[name], n)
	}
	return sum
}

// mustWait reports whether a kubelet that starts now would reject a pod because of a missing
// device: while no plugin has registered it admits a container that requests one only if the
// container runs (ManagerImpl.devicesToAllocate). running are the containers of the pod that do.
func (r Resources) mustWait(pod *corev1.Pod, running sets.Set[string]) bool {
	if podrestart.Terminal(pod) || pod.Annotations[corev1.MirrorPodAnnotationKey] != "" || isPlugin(pod) {
		return false
	}
	waits := func(c corev1.Container) bool { return !running.Has(c.Name) && len(r.wanted(pod, &c)) > 0 }
	return slices.ContainsFunc(pod.Spec.InitContainers, waits) || slices.ContainsFunc(pod.Spec.Containers, waits)
}

// isPlugin reports whether a pod may be a device plugin itself: it has the folder of their sockets.
func isPlugin(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if v.HostPath == nil {
			return false
		}
		path := strings.TrimRight(v.HostPath.Path, "/") + "/"
		return strings.HasPrefix(Dir+"/", path) || strings.HasPrefix(path, Dir+"/")
	})
}

// State is the input of the decision which pods keep waiting.
type State struct {
	Resources
	// Healthy are the IDs of the devices that plugins have registered with this kubelet.
	Healthy map[string]sets.Set[string]
	// Allocatable is the Node's, by which the kubelet admits pods. For a while it is that before
	// the boot.
	Allocatable corev1.ResourceList
	// Waiting are the pods that the kubelet is not shown, Shown the others of this device.
	Waiting, Shown []*corev1.Pod
}

// Plan returns why pods keep waiting: for missing devices, the oldest pod first. A pod without a
// reason would be admitted.
func Plan(s State) map[types.UID]string {
	used := map[string]sets.Set[string]{} // IDs
	count := map[string]int64{}           // of devices whose IDs are not known yet
	total := map[string]int64{}           // requests of pods that the kubelet counts
	reserve := func(pod *corev1.Pod) {
		for name, n := range s.requests(pod) {
			total[name] += n
			ids := s.Allocated[pod.UID][name]
			if len(ids) == 0 {
				count[name] += n
				continue
			}
			if used[name] == nil {
				used[name] = sets.New[string]()
			}
			used[name].Insert(ids.UnsortedList()...)
		}
	}
	for _, pod := range s.Shown {
		if !podrestart.Terminal(pod) {
			reserve(pod)
		}
	}
	reasons := map[types.UID]string{}
	for _, pod := range byAge(s.Waiting) {
		requests := s.requests(pod)
		for _, name := range slices.Sorted(maps.Keys(requests)) {
			n, healthy, own := requests[name], s.Healthy[name], s.Allocated[pod.UID][name]
			allocatable := s.Allocatable[corev1.ResourceName(name)]
			free := int64(healthy.Difference(used[name]).Len()) - count[name]
			switch {
			case len(healthy) == 0:
				reasons[pod.UID] = "no device plugin has registered " + name + " since the kubelet's start"
			case len(own) > 0 && !healthy.IsSuperset(own):
				reasons[pod.UID] = fmt.Sprintf("the device plugin does not have the pod's devices of %s yet: %s", name, strings.Join(sets.List(own.Difference(healthy)), ", "))
			case len(own) == 0 && free < n, allocatable.Value() < total[name]+n:
				reasons[pod.UID] = fmt.Sprintf("too few devices of %s are allocatable for this pod and those before it", name)
			default:
				continue
			}
			break
		}
		reserve(pod)
	}
	return reasons
}

func byAge(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}
