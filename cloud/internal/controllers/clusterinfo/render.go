package clusterinfo

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// The greatest lengths of the lists: together some 800 KB, and kube-apiserver takes 1.5 MB. Further
// entries, in the order of names, are counted.
const (
	mostNodes, mostPods, mostVMs, mostNamespaces, mostVolumes = 1000, 1000, 500, 1000, 500
	mostAddresses                                             = 8
)

// The labels by which KubeVirt's pods name their virtual machine.
const vmDomainLabel = "kubevirt.io/domain"

// Cluster is the input of the statistics.
type Cluster struct {
	Nodes []*corev1.Node
	Pods  []*corev1.Pod
	VMs   []unstructured.Unstructured // KubeVirt's VirtualMachineInstances
	// Volumes are Longhorn's; Storage is true if the cluster has Longhorn.
	Volumes []unstructured.Unstructured
	Storage bool
}

// Render makes the statistics.
func Render(c Cluster) (s v1alpha1.ClusterInfoStatus) {
	for _, n := range c.Nodes {
		s.Nodes = append(s.Nodes, nodeOf(n))
	}
	namespaces, launcher := map[string]*v1alpha1.ClusterNamespace{}, map[string]int32{}
	for _, p := range c.Pods {
		n := namespaces[p.Namespace]
		if n == nil {
			n = &v1alpha1.ClusterNamespace{Name: p.Namespace}
			namespaces[p.Namespace] = n
		}
		n.Pods++
		if p.Status.Phase == corev1.PodRunning {
			n.Running++
		}
		if vm := p.Labels[vmDomainLabel]; vm != "" {
			launcher[p.Namespace+"/"+vm] += restarts(p)
		}
		if p.Labels[v1alpha1.EdgeAppLabel] != "" {
			s.Pods = append(s.Pods, podOf(p))
		}
	}
	for _, n := range namespaces {
		s.Namespaces = append(s.Namespaces, *n)
	}
	for i := range c.VMs {
		vm := vmOf(&c.VMs[i])
		vm.Restarts = launcher[vm.Namespace+"/"+vm.Name]
		s.VMs = append(s.VMs, vm)
	}
	storage := storageOf(c.Volumes, c.Storage)
	s.Omitted += bound(&s.Nodes, mostNodes, func(a, b v1alpha1.ClusterNode) int { return cmp.Compare(a.Name, b.Name) })
	s.Omitted += bound(&s.Pods, mostPods, func(a, b v1alpha1.ClusterPod) int { return order(a.Namespace, a.Name, b.Namespace, b.Name) })
	s.Omitted += bound(&s.VMs, mostVMs, func(a, b v1alpha1.ClusterVM) int { return order(a.Namespace, a.Name, b.Namespace, b.Name) })
	s.Omitted += bound(&s.Namespaces, mostNamespaces, func(a, b v1alpha1.ClusterNamespace) int { return cmp.Compare(a.Name, b.Name) })
	s.Omitted += bound(&storage.Volumes, mostVolumes, func(a, b v1alpha1.ClusterVolume) int { return order(a.Namespace, a.Name, b.Namespace, b.Name) })
	s.Storage = storage
	return s
}

func order(ns1, name1, ns2, name2 string) int {
	return cmp.Or(cmp.Compare(ns1, ns2), cmp.Compare(name1, name2))
}

// bound sorts a list and cuts it, and returns how many entries are left out.
func bound[T any](list *[]T, most int, compare func(a, b T) int) (omitted int32) {
	slices.SortFunc(*list, compare)
	if over := len(*list) - most; over > 0 {
		*list, omitted = (*list)[:most:most], int32(over)
	}
	return omitted
}

const roleLabel = "node-role.kubernetes.io/"

func nodeOf(n *corev1.Node) v1alpha1.ClusterNode {
	out := v1alpha1.ClusterNode{
		Name: n.Name, Status: "Unknown", Schedulable: !n.Spec.Unschedulable, KubeletVersion: n.Status.NodeInfo.KubeletVersion,
		ContainerRuntimeVersion: n.Status.NodeInfo.ContainerRuntimeVersion, KernelVersion: n.Status.NodeInfo.KernelVersion, OSImage: n.Status.NodeInfo.OSImage,
	}
	for label := range n.Labels {
		if role, ok := strings.CutPrefix(label, roleLabel); ok && role != "" {
			out.Roles = append(out.Roles, role)
		}
	}
	slices.Sort(out.Roles)
	for _, a := range n.Status.Addresses {
		if len(out.Addresses) < mostAddresses {
			out.Addresses = append(out.Addresses, v1alpha1.ClusterAddress{Type: string(a.Type), Address: a.Address})
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		switch c.Status {
		case corev1.ConditionTrue:
			out.Status = "Ready"
		case corev1.ConditionFalse:
			out.Status = "NotReady"
		}
		if !c.LastTransitionTime.IsZero() {
			t := c.LastTransitionTime
			out.LastTransition = &t
		}
	}
	return out
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

func podOf(p *corev1.Pod) v1alpha1.ClusterPod {
	out := v1alpha1.ClusterPod{
		Namespace: p.Namespace, Name: p.Name, App: p.Labels[v1alpha1.EdgeAppLabel], Node: p.Spec.NodeName, State: string(p.Status.Phase), Restarts: restarts(p),
	}
	if p.DeletionTimestamp != nil {
		out.State = "Terminating"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	return out
}

func field(u *unstructured.Unstructured, path ...string) string {
	text, _, err := unstructured.NestedString(u.Object, path...)
	if err != nil {
		return ""
	}
	return text
}

func vmOf(u *unstructured.Unstructured) v1alpha1.ClusterVM {
	out := v1alpha1.ClusterVM{Namespace: u.GetNamespace(), Name: u.GetName(), Node: field(u, "status", "nodeName"), State: field(u, "status", "phase")}
	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return out
	}
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" {
			out.Ready = c["status"] == "True"
		}
	}
	return out
}

// storageOf reads Longhorn's volumes (status.state, status.robustness, status.currentNodeID). The
// worst robustness is that of the storage; a volume that is not attached has no robustness, and
// doesn't count.
func storageOf(volumes []unstructured.Unstructured, there bool) *v1alpha1.ClusterStorage {
	if !there {
		return &v1alpha1.ClusterStorage{Health: v1alpha1.StorageUnsupported}
	}
	rank := []v1alpha1.StorageHealth{v1alpha1.StorageHealthy, v1alpha1.StorageUnknown, v1alpha1.StorageDegraded, v1alpha1.StorageFaulted}
	worst := 0
	out := &v1alpha1.ClusterStorage{}
	for i := range volumes {
		u := &volumes[i]
		v := v1alpha1.ClusterVolume{
			Namespace: u.GetNamespace(), Name: u.GetName(), State: field(u, "status", "state"), Robustness: field(u, "status", "robustness"), Node: field(u, "status", "currentNodeID"),
		}
		out.Volumes = append(out.Volumes, v)
		is := v1alpha1.StorageUnknown
		switch v.Robustness {
		case "healthy":
			is = v1alpha1.StorageHealthy
		case "degraded":
			is = v1alpha1.StorageDegraded
		case "faulted":
			is = v1alpha1.StorageFaulted
		}
		if v.State == "detached" && is != v1alpha1.StorageFaulted {
			continue
		}
		worst = max(worst, slices.Index(rank, is))
	}
	out.Health = rank[worst]
	return out
}
