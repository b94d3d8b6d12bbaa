package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Remembered has the settings of a Node by an administrator, or by cloudcore for one, that are lost
// with the Node. The other fields are set by the kubelet or the control plane.
type Remembered struct {
	UID    types.UID         `json:"uid"`
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// PodCIDRs are the address ranges of this device's pods.
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	Cordoned bool     `json:"cordoned,omitempty"`
	CordonOf string   `json:"cordonOf,omitempty"` // whose cordon it is (v1alpha1.CordonAnnotation)
	// Lost are labels ("key=value") and taints ("taint key=value:effect") of the Node before, which
	// this one has not.
	Lost []string `json:"lost,omitempty"`
}

// Follow returns the settings to remember once a Node has been seen.
func (r Remembered) Follow(n *corev1.Node) Remembered {
	now := Remembered{UID: n.UID, Labels: map[string]string{}, PodCIDRs: n.Spec.PodCIDRs, Cordoned: n.Spec.Unschedulable, CordonOf: n.Annotations[v1alpha1.CordonAnnotation]}
	for k, v := range n.Labels {
		if !ephemeral(k) {
			now.Labels[k] = v
		}
	}
	for _, t := range n.Spec.Taints {
		if !strings.HasPrefix(t.Key, "node.kubernetes.io/") && !strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/") { // the control plane's
			now.Taints = append(now.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	if n.Annotations[v1alpha1.LostSettingsAnnotation] != "" {
		return now
	}
	if r.UID != "" && r.UID != n.UID {
		now.Lost = r.settings()
	} else {
		now.Lost = slices.Clone(r.Lost)
	}
	now.Lost = slices.DeleteFunc(now.Lost, now.has)
	slices.Sort(now.Lost)
	return now
}

// ephemeral reports whether a label is set automatically.
func ephemeral(key string) bool {
	switch key {
	case corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
		v1alpha1.EdgeOwnLabel, v1alpha1.EdgeLabel:
		return true
	}
	return false
}

const taintPrefix = "taint "

// settings are labels and taints, and those that were lost before.
func (r Remembered) settings() []string {
	all := slices.Clone(r.Lost)
	for k, v := range r.Labels {
		all = append(all, k+"="+v)
	}
	for _, t := range r.Taints {
		all = append(all, taintPrefix+t.ToString())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// has reports whether a setting exists; a label may have another value.
func (r Remembered) has(setting string) bool {
	if taint, ok := strings.CutPrefix(setting, taintPrefix); ok {
		return slices.ContainsFunc(r.Taints, func(t corev1.Taint) bool { return t.ToString() == taint })
	}
	key, _, _ := strings.Cut(setting, "=")
	_, ok := r.Labels[key]
	return ok
}

// Amend adds the previous settings to a Node that registers. Labels that a node may not set itself,
// by NodeRestriction or by Skerry's own policies, are skipped; withLabels false skips all.
func (r Remembered) Amend(n *corev1.Node, withLabels bool) {
	if withLabels {
		labels := maps.Clone(r.Labels)
		maps.DeleteFunc(labels, func(k, _ string) bool { return !ownToSet(k) })
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, n.Labels) // the kubelet's word counts
		n.Labels = labels
	}
	for _, t := range r.Taints {
		if !slices.ContainsFunc(n.Spec.Taints, func(o corev1.Taint) bool { return o.MatchTaint(&t) }) {
			n.Spec.Taints = append(n.Spec.Taints, t)
		}
	}
	if len(n.Spec.PodCIDRs) == 0 && len(r.PodCIDRs) > 0 {
		n.Spec.PodCIDRs, n.Spec.PodCIDR = slices.Clone(r.PodCIDRs), r.PodCIDRs[0]
	}
	if r.Cordoned {
		n.Spec.Unschedulable = true
		if r.CordonOf != "" {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[v1alpha1.CordonAnnotation] = r.CordonOf
		}
	}
}

// ownToSet reports whether a node may give itself a label: as NodeRestriction judges
// (plugin/pkg/admission/noderestriction), and the policy skerry-node-labels. That a NodePool
// chooses its nodes by another label is known in the cloud alone.
func ownToSet(key string) bool {
	switch key {
	case v1alpha1.NodePoolLabel, v1alpha1.OpenYurtNodePoolLabel, v1alpha1.AutonomyLabel:
		return false
	}
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return true
	}
	in := func(suffix string) bool { return domain == suffix || strings.HasSuffix(domain, "."+suffix) }
	switch {
	case in("node-restriction.kubernetes.io"):
		return false
	case in("kubernetes.io"), in("k8s.io"):
		return kubeletapis.IsKubeletLabel(key)
	}
	return true
}

// Problem describes the settings that an administrator has to restore; "" if there are none.
func (r Remembered) Problem(node string) string {
	if len(r.Lost) == 0 {
		return ""
	}
	const most = 20 // a condition's message is read by people
	lost := r.Lost
	more := ""
	if len(lost) > most {
		more = fmt.Sprintf(" and %d more", len(lost)-most)
		lost = lost[:most]
	}
	return fmt.Sprintf("the Node was deleted, and is another one now; set again what it should have, or annotate it with %s=accepted: %s%s",
		v1alpha1.LostSettingsAnnotation, strings.Join(lost, ", "), more)
}
