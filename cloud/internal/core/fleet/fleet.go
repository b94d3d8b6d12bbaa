package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// LinkState is the state of a device's link.
type LinkState string

// The states.
const (
	Up   LinkState = "Up"
	Down LinkState = "Down"
	// NoKubelet: the kubelet has not renewed its Lease since the last session began. The Lease does
	// not show whether the link is up.
	NoKubelet LinkState = "NoKubelet"
	Never     LinkState = "Never" // there is a Node, and there was no session
)

// Problem is a problem of a device, and the command that shows more or fixes it.
type Problem struct {
	Reason  string `json:"reason"` // one word
	Message string `json:"message"`
	Action  string `json:"action"`
}

// Pod is a pod that is not running.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitempty"`
}

// Operation is a NodeOperation that is not completed.
type Operation struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	State string `json:"state"`
}

// Node is the status of a device, as known to the cloud.
type Node struct {
	Name  string    `json:"name"`
	Pool  string    `json:"pool,omitempty"`
	Ready string    `json:"ready,omitempty"` // True, False or Unknown; empty: there is no Node
	Link  LinkState `json:"link"`
	// Since is when the link got its present state, LastContact the last renewal of the Lease.
	// While the link is up the Lease is renewed within 23 s.
	Since       *metav1.Time `json:"since,omitempty"`
	LastContact *metav1.Time `json:"lastContact,omitempty"`
	Session
	Cloudcore  string      `json:"cloudcore,omitempty"` // the replica with the link, or with the last one
	Kubelet    string      `json:"kubelet,omitempty"`   // its version
	Operations []Operation `json:"operations,omitempty"`
	Pods       int         `json:"pods"`    // that should run
	Running    int         `json:"running"` // with all their containers
	NotRunning []Pod       `json:"notRunning,omitempty"`
	Problems   []Problem   `json:"problems,omitempty"`
}

// Facts are the objects that the status is computed from.
type Facts struct {
	Nodes      []*corev1.Node
	Leases     []*coordinationv1.Lease // of kube-node-lease
	Pods       []*corev1.Pod
	Operations []*v1alpha1.NodeOperation
	// Selected leaves out devices without a Node in Nodes.
	Selected bool
}

// Limits are the thresholds of problems.
type Limits struct {
	Backlog     time.Duration // age of the oldest write in the backlog
	Certificate time.Duration // time left until it expires
	Start       time.Duration // time for a pod to start
}

// DefaultLimits are those of `kubectl skerry status`.
func DefaultLimits() Limits {
	return Limits{Backlog: 5 * time.Minute, Certificate: 7 * 24 * time.Hour, Start: 5 * time.Minute}
}

// Of returns the status of the devices at a time, sorted by name.
func Of(f Facts, limits Limits, now time.Time) []Node {
	all := map[string]*Node{}
	names := []string{}
	at := func(name string) *Node {
		if all[name] == nil {
			all[name] = &Node{Name: name, Link: Never}
			names = append(names, name)
		}
		return all[name]
	}
	nodes := map[string]*corev1.Node{}
	for _, n := range f.Nodes {
		if IsEdge(n) {
			nodes[n.Name] = n
			at(n.Name)
		}
	}
	for _, l := range f.Leases {
		if _, edge := l.Annotations[fence.EpochAnnotation]; edge && (nodes[l.Name] != nil || !f.Selected) {
			at(l.Name).take(l, now)
		}
	}
	for _, p := range f.Pods {
		if n := all[p.Spec.NodeName]; n != nil {
			n.takePod(p, limits, now)
		}
	}
	for _, o := range f.Operations {
		if n := all[o.Spec.NodeName]; n != nil && o.Status.CompletedAt == nil {
			n.Operations = append(n.Operations, OperationOf(o))
		}
	}
	slices.Sort(names)
	result := make([]Node, 0, len(names))
	for _, name := range names {
		n := all[name]
		n.judge(nodes[name], limits, now)
		result = append(result, *n)
	}
	if !f.Selected {
		allDown(result)
	}
	return result
}

// allDown has the actions begin with the cloud, if no link of several is known to be up: a
// cloudcore that ended soon after its start leaves devices as NoKubelet.
func allDown(nodes []Node) {
	down := 0
	for i := range nodes {
		switch nodes[i].Link {
		case Up:
			return
		case Down, NoKubelet:
			down++
		case Never:
		}
	}
	for i := range nodes {
		for p := range nodes[i].Problems {
			problem := &nodes[i].Problems[p]
			if down > 1 && (problem.Reason == "LinkDown" || problem.Reason == "NoKubelet") {
				problem.Action = "no device is known to be in contact: is cloudcore running, and its address reached? kubectl get pods -n skerry-system; if so, " + problem.Action
			}
		}
	}
}

// IsEdge reports whether a Node is a device's.
func IsEdge(n *corev1.Node) bool {
	_, role := n.Labels[v1alpha1.EdgeLabel]
	_, own := n.Labels[v1alpha1.EdgeOwnLabel]
	return role || own
}

// OperationOf sums up an operation.
func OperationOf(o *v1alpha1.NodeOperation) Operation {
	s := Operation{Name: o.Name, Type: string(o.Spec.Operation), State: "New"}
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone); c != nil {
		s.State = Printable(c.Reason, 40)
	}
	return s
}

// take reads a Lease.
func (n *Node) take(l *coordinationv1.Lease, now time.Time) {
	n.Session, _ = SessionOf(l.Annotations)
	n.Cloudcore = Printable(l.Annotations[fence.InstanceAnnotation], maxVersion)
	if l.Spec.RenewTime == nil {
		return
	}
	renewed := metav1.NewTime(l.Spec.RenewTime.UTC().Truncate(time.Second))
	valid := 40 * time.Second
	if l.Spec.LeaseDurationSeconds != nil {
		valid = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	began := n.Session.Since
	n.LastContact = &renewed
	switch {
	case began != nil && renewed.Before(began):
		// The start of a session does not renew the Lease, and the kubelet has not since.
		n.Link, n.Since, n.LastContact = NoKubelet, began, began
	case now.Sub(renewed.Time) <= valid:
		n.Link, n.Since = Up, began
	default:
		n.Link, n.Since = Down, &renewed
	}
}

func (n *Node) takePod(p *corev1.Pod, limits Limits, now time.Time) {
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if p.DeletionTimestamp != nil || ended && p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		return
	}
	n.Pods++
	if reason, message, starts := whyNot(p); reason == "" {
		n.Running++
	} else if !starts || now.Sub(p.CreationTimestamp.Time) > limits.Start {
		n.NotRunning = append(n.NotRunning, Pod{
			Namespace: p.Namespace, Name: p.Name, Reason: Printable(reason, 60), Message: Printable(message, 300),
		})
	}
}

// whyNot returns the reason a pod is not running, or "" if it is. starts reports whether the pod
// may only need more time.
func whyNot(p *corev1.Pod) (reason, message string, starts bool) {
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return cmp.Or(p.Status.Reason, string(p.Status.Phase)), p.Status.Message, false
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch w := c.State.Waiting; {
		case w == nil:
		case w.Reason == "", w.Reason == "ContainerCreating", w.Reason == "PodInitializing":
			reason, message, starts = cmp.Or(w.Reason, "Waiting"), w.Message, true
		default:
			return w.Reason, w.Message, false
		}
	}
	if reason == "" && p.Status.Phase != corev1.PodRunning {
		return cmp.Or(string(p.Status.Phase), string(corev1.PodPending)), p.Status.Message, true
	}
	return reason, message, starts
}

// bad returns the Node conditions that are problems if True, with the command that shows more or
// fixes them.
func bad() map[corev1.NodeConditionType]string {
	return map[corev1.NodeConditionType]string{
		corev1.NodeDiskPressure:       "free disk space on the device; `kubectl skerry node %s` shows what the kubelet evicted",
		corev1.NodeMemoryPressure:     "`kubectl top pods -A --field-selector spec.nodeName=%s` shows what uses the memory",
		corev1.NodePIDPressure:        "`kubectl skerry node %s`; on the device: ps -e | wc -l",
		corev1.NodeNetworkUnavailable: "`kubectl describe node %s` names the network plugin's reason",
		"SkerryDataDiskFull":          "free disk space on the device: `kubectl describe node %s` names the directory",
		"SkerryVersionSkew":           "update the older of the two: `kubectl describe node %s` names both versions",
		"SkerryNodeSettingsLost":      "`kubectl describe node %s` names the labels and taints to set again",
	}
}

// podNetwork is the Node's condition of the pod network, which edgecore's package podnet writes.
const podNetwork corev1.NodeConditionType = "SkerryPodNetwork"

// podNetworkActions returns the reasons of the condition podNetwork with which pods are
// unreachable, and the command that shows more or fixes them. The other reasons are configuration
// (Off, Foreign), or Ready.
func podNetworkActions() map[string]string {
	return map[string]string{
		"PodCIDRConflict": "`kubectl describe node %s` names the range and who else has it: give one of the two another range, or correct podSubnets of the NodePool",
		"NotOnLink":       "`kubectl skerry node %s` shows which devices it has reached: allow UDP port 10553 between them, and load the kernel module wireguard on both",
		"NoWireGuard":     "load the kernel module wireguard on the devices that `kubectl describe node %s` names, and allow UDP port 10553 between them",
		"PodsInOldRange":  "delete the pods that `kubectl describe node %s` names, so that their controllers recreate them",
		"NoPodCIDR":       "set podSubnets in its NodePool; `kubectl describe node %s` names the reason",
	}
}

// podNetworkProblem returns the problem that a Node's condition of the pod network reports. A
// device that has just joined has no podCIDR yet.
func podNetworkProblem(c corev1.NodeCondition, node string, limits Limits, now time.Time) (p Problem, found bool) {
	action := podNetworkActions()[c.Reason]
	young := c.Reason == "NoPodCIDR" && now.Sub(c.LastTransitionTime.Time) <= limits.Start
	if c.Type != podNetwork || c.Status != corev1.ConditionFalse || action == "" || young {
		return p, false
	}
	return Problem{c.Reason, Printable("pod network: "+cmp.Or(c.Message, c.Reason), 500), fmt.Sprintf(action, node)}, true
}

// judge finds the problems. node may be nil.
func (n *Node) judge(node *corev1.Node, limits Limits, now time.Time) {
	wrong := func(reason, action, format string, args ...any) {
		n.Problems = append(n.Problems, Problem{reason, Printable(fmt.Sprintf(format, args...), 500), action})
	}
	show := "kubectl skerry node " + n.Name
	switch n.Link {
	case Down:
		wrong("LinkDown", "on the device: edgecore status, then edgecore check", "link down, last contact %s ago", age(n.LastContact, now))
	case NoKubelet:
		wrong("NoKubelet", "`"+show+"` asks the device; there: edgecore status, systemctl status containerd",
			"the kubelet has not reported since the session began %s ago", age(n.Since, now))
	case Never:
		wrong("NeverLinked", "on the device: edgecore check", "has a Node and never had a link")
	case Up:
	}
	if node != nil {
		n.Pool, n.Kubelet = node.Labels[v1alpha1.NodePoolLabel], Printable(node.Status.NodeInfo.KubeletVersion, maxVersion)
		actions := bad()
		for _, c := range node.Status.Conditions {
			action := actions[c.Type]
			switch {
			case c.Type == corev1.NodeReady:
				n.Ready = Printable(string(c.Status), 10)
				if c.Status != corev1.ConditionTrue && n.Link == Up {
					wrong("NotReady", "`"+show+"` asks the device for the reason; if the container runtime is down: systemctl restart containerd there", "node NotReady: %s", cmp.Or(c.Message, c.Reason))
				}
			case action != "" && c.Status == corev1.ConditionTrue:
				wrong(string(c.Type), fmt.Sprintf(action, n.Name), "%s", c.Type)
			}
			if p, found := podNetworkProblem(c, n.Name, limits, now); found {
				n.Problems = append(n.Problems, p)
			}
		}
	}
	if n.Backlog > 0 && n.Oldest != nil && now.Sub(n.Oldest.Time) > limits.Backlog && n.Link != Down {
		wrong("BacklogOld", "`"+show+"` shows what waits; `kubectl get --raw /readyz?verbose` whether kube-apiserver takes writes",
			"%d writes wait, the oldest for %s", n.Backlog, age(n.Oldest, now))
	}
	if end := n.CertificateEnd; end != nil {
		switch left := end.Sub(now); {
		case left <= 0:
			wrong("CertificateEnded", "for 90 days it gets another one once it reaches the cloud; then cloudcore token create --node "+n.Name+", and there edgecore join --force --token-file FILE HOST", "its certificate ended %s ago", age(end, now))
		case left < limits.Certificate:
			wrong("CertificateEnds", "kubectl get csr: is its request there, and approved?", "its certificate ends in %s", duration.HumanDuration(left))
		}
	}
	if len(n.NotRunning) > 0 {
		first := n.NotRunning[0]
		wrong("PodsNotRunning", fmt.Sprintf("kubectl describe pod -n %s %s", first.Namespace, first.Name), "%s", podsLine(n.NotRunning))
	}
}

// podsLine is "3 pods don't run (2 ImagePullBackOff, CrashLoopBackOff)".
func podsLine(pods []Pod) string {
	count := map[string]int{}
	var order []string
	for _, p := range pods {
		if count[p.Reason]++; count[p.Reason] == 1 {
			order = append(order, p.Reason)
		}
	}
	slices.Sort(order)
	for i, reason := range order {
		if n := count[reason]; n > 1 {
			order[i] = fmt.Sprintf("%d %s", n, reason)
		}
	}
	text := fmt.Sprintf("%d pods don't run", len(pods))
	if len(pods) == 1 {
		text = "1 pod doesn't run"
	}
	return text + " (" + strings.Join(order, ", ") + ")"
}

// age is the time since t.
func age(t *metav1.Time, now time.Time) string {
	if t == nil {
		return "unknown time"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}
