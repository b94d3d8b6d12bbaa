package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/volume"
)

func nodeColumns() []metav1.TableColumnDefinition {
	return append(named("Status", "Roles", age, "Version"), columns(1, "Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")...)
}

func nodeRow(n *corev1.Node) metav1.TableRow {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if status = "Ready"; c.Status != corev1.ConditionTrue {
			status = "NotReady"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	info := n.Status.NodeInfo
	kernel := cmp.Or(info.KernelVersion, unknown)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return cells(n.Name, status, roles(n), since(n.CreationTimestamp), info.KubeletVersion,
		address(n, corev1.NodeInternalIP), address(n, corev1.NodeExternalIP), cmp.Or(info.OSImage, unknown), kernel, cmp.Or(info.ContainerRuntimeVersion, unknown))
}

// roles are in a node's labels: node-role.kubernetes.io/ROLE, or kubernetes.io/role=ROLE.
func roles(n *corev1.Node) string {
	found := sets.New[string]()
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			found.Insert(role)
		} else if key == "kubernetes.io/role" && value != "" {
			found.Insert(value)
		}
	}
	return cmp.Or(strings.Join(sets.List(found), ","), none)
}

func address(n *corev1.Node, of corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == of {
			return a.Address
		}
	}
	return none
}

func serviceColumns() []metav1.TableColumnDefinition {
	return append(named("Type", "Cluster-IP", "External-IP", "Port(s)", age), columns(1, "Selector")...)
}

func serviceRow(s *corev1.Service) metav1.TableRow {
	inside := none
	if len(s.Spec.ClusterIPs) > 0 {
		inside = s.Spec.ClusterIPs[0]
	}
	ports := make([]string, len(s.Spec.Ports))
	for i, p := range s.Spec.Ports {
		ports[i] = fmt.Sprint(p.Port)
		if p.NodePort > 0 {
			ports[i] += fmt.Sprintf(":%d", p.NodePort)
		}
		ports[i] += "/" + string(p.Protocol)
	}
	return cells(s.Name, string(s.Spec.Type), inside, outside(s), cmp.Or(strings.Join(ports, ","), none), since(s.CreationTimestamp), labels.FormatLabels(s.Spec.Selector))
}

// outside is where a Service is reached from outside the cluster.
func outside(s *corev1.Service) string {
	given := strings.Join(s.Spec.ExternalIPs, ",")
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return cmp.Or(given, none)
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		found := sets.New[string]()
		for _, i := range s.Status.LoadBalancer.Ingress {
			if at := cmp.Or(i.IP, i.Hostname); at != "" {
				found.Insert(at)
			}
		}
		all := append(sets.List(found), s.Spec.ExternalIPs...)
		return cmp.Or(strings.Join(all, ","), "<pending>")
	}
	return unknown
}

func eventColumns() []metav1.TableColumnDefinition {
	all := columns(0, "Last Seen", "Type", "Reason", "Object")
	all = append(all, columns(1, "Subobject", "Source")...)
	all = append(all, columns(0, "Message")...)
	all = append(all, columns(1, "First Seen", "Count")...)
	return append(all, metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Priority: 1})
}

func eventRow(e *corev1.Event) metav1.TableRow {
	first := since(e.FirstTimestamp)
	if e.FirstTimestamp.IsZero() {
		first = sinceTime(e.EventTime.Time)
	}
	last := first
	if !e.LastTimestamp.IsZero() {
		last = since(e.LastTimestamp)
	}
	// An event of events.k8s.io that happened once has no count.
	count := cmp.Or(e.Count, 1)
	if e.Series != nil {
		last, count = sinceTime(e.Series.LastObservedTime.Time), e.Series.Count
	}
	about := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		about += "/" + e.InvolvedObject.Name
	}
	source := cmp.Or(e.Source.Component, e.ReportingController)
	if at := cmp.Or(e.Source.Host, e.ReportingInstance); at != "" {
		source += ", " + at
	}
	return cells(last, e.Type, e.Reason, about, e.InvolvedObject.FieldPath, source, strings.TrimSpace(e.Message), first, int64(count), e.Name)
}

func volumeColumns() []metav1.TableColumnDefinition {
	return append(named("Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "VolumeAttributesClass", "Reason", age), columns(1, "VolumeMode")...)
}

func volumeRow(v *corev1.PersistentVolume) metav1.TableRow {
	phase, claim, size := string(v.Status.Phase), "", v.Spec.Capacity[corev1.ResourceStorage]
	if v.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if v.Spec.ClaimRef != nil {
		claim = v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
	}
	return cells(v.Name, size.String(), modes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim,
		volume.GetPersistentVolumeClass(v), orUnset(v.Spec.VolumeAttributesClassName), v.Status.Reason, since(v.CreationTimestamp), orUnset(v.Spec.VolumeMode))
}

func claimColumns() []metav1.TableColumnDefinition {
	return append(named("Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", age), columns(1, "VolumeMode")...)
}

func claimRow(c *corev1.PersistentVolumeClaim) metav1.TableRow {
	phase, size, access := string(c.Status.Phase), "", ""
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if c.Spec.VolumeName != "" {
		capacity := c.Status.Capacity[corev1.ResourceStorage]
		size, access = capacity.String(), modes(c.Status.AccessModes)
	}
	return cells(c.Name, phase, c.Spec.VolumeName, size, access, volume.GetPersistentVolumeClaimClass(c), orUnset(c.Spec.VolumeAttributesClassName),
		since(c.CreationTimestamp), orUnset(c.Spec.VolumeMode))
}

func orUnset[S ~string](s *S) string {
	if s == nil {
		return unset
	}
	return string(*s)
}

// modes are the access modes of a volume, as kubectl abbreviates them.
func modes(of []corev1.PersistentVolumeAccessMode) string {
	var all []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(of, m.mode) {
			all = append(all, m.short)
		}
	}
	return strings.Join(all, ",")
}
