// Package podhealth lists which pods of a device run, why the others don't, and the action needed.
//
// It owns the messages. It does not ask the kubelet, the runtime or the cloud: its only source is
// metamanager's cache, so the result is the same with a link and without. Its functions are
// stateless and may be used by many goroutines; a History belongs to one.
package podhealth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is how a pod is that does not run.
type State string

const (
	Ended    State = "ended"    // its phase is terminal
	Withheld State = "withheld" // the kubelet is not shown it yet
	Waiting  State = "waiting"  // the kubelet can't start it
	Starting State = "starting" // no known reason why it does not run
	Failing  State = "failing"  // a container of it ends again and again
)

// Pod is a pod that does not run.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	State     State     `json:"state"`
	Reason    string    `json:"reason,omitempty"` // one word
	Message   string    `json:"message,omitempty"`
	Action    string    `json:"action,omitempty"` // suggested action for the user
	// Again: the device runs it again by itself. Controlled: a controller in the cloud owns it.
	Again      bool `json:"again,omitempty"`
	Controlled bool `json:"controlled,omitempty"`
}

// Status is how the pods of a device are.
type Status struct {
	Total      int   `json:"total"`              // that should run
	Running    int   `json:"running"`            // with all their containers
	Finished   int   `json:"finished,omitempty"` // completed: Jobs' and others that run once
	NotRunning []Pod `json:"notRunning,omitempty"`
	// Phases counts all pods by their phase, Restarts the restarts of their containers.
	Phases   map[corev1.PodPhase]int `json:"-"`
	Restarts int                     `json:"-"`
}

// Restart has the state of a pod that waits to run again after the kubelet ended it.
type Restart struct {
	Reason    string
	For       []string // conditions of the Node
	Ends      int
	NotBefore time.Time
}

// Facts are the cached objects concerning the device's pods.
type Facts struct {
	Pods     []*corev1.Pod
	Withheld map[types.UID]string // why the kubelet is not shown a pod
	Restarts map[types.UID]Restart
	Warnings map[types.UID]*corev1.Event // the newest of each pod
}

// Of summarizes them.
func Of(f Facts) Status {
	s := Status{Phases: map[corev1.PodPhase]int{}}
	for _, pod := range f.Pods {
		s.Phases[pod.Status.Phase]++
		for i := range pod.Status.ContainerStatuses {
			s.Restarts += int(pod.Status.ContainerStatuses[i].RestartCount)
		}
		terminal := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		switch {
		case pod.DeletionTimestamp != nil:
			continue // is to end
		case terminal && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways:
			s.Finished++
			continue
		}
		s.Total++
		if f.Withheld[pod.UID] == "" && !terminal && runs(pod) {
			s.Running++
			continue
		}
		s.NotRunning = append(s.NotRunning, f.why(pod, terminal))
	}
	slices.SortFunc(s.NotRunning, byName)
	return s
}

func byName(a, b Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func runs(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) >= len(pod.Spec.Containers) &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			// One that ends and is started again at once is no trouble.
			return c.State.Running == nil
		})
}

func (f Facts) why(pod *corev1.Pod, terminal bool) Pod {
	p := Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Controlled: metav1.GetControllerOfNoCopy(pod) != nil}
	restart, restarts := f.Restarts[pod.UID]
	switch {
	case restarts:
		p.State, p.Reason, p.Message = Ended, cmp.Or(pod.Status.Reason, "EndedByKubelet"), restart.Reason
		p.Again, p.Action = true, "runs again on this device "+restart.when()
		if restart.Ends > 1 {
			p.Message += fmt.Sprintf("; for the %d. time in a row", restart.Ends)
		}
	case f.Withheld[pod.UID] != "":
		p.State, p.Reason, p.Message = Withheld, "Withheld", f.Withheld[pod.UID]
		p.Action = "starts by itself when the reason has passed"
	case terminal:
		p.State, p.Reason, p.Message = Ended, cmp.Or(pod.Status.Reason, string(pod.Status.Phase)), pod.Status.Message
		p.Action = "only the cloud can replace it: its controller does so when the link is there; a pod without a controller must be made again"
	default:
		f.whyNotStarted(pod, &p)
	}
	p.Message = strings.TrimSpace(p.Message)
	return p
}

// when describes when a pod will run again.
func (r Restart) when() string {
	var remedies []string
	for _, c := range r.For {
		switch corev1.NodeConditionType(c) {
		case corev1.NodeDiskPressure:
			remedies = append(remedies, "disk (DiskPressure): free space on it")
		case corev1.NodeMemoryPressure:
			remedies = append(remedies, "memory (MemoryPressure): stop what uses it")
		case corev1.NodePIDPressure:
			remedies = append(remedies, "process IDs (PIDPressure): stop what uses them")
		}
	}
	if len(remedies) > 0 {
		return "once there is enough " + strings.Join(remedies, "; ")
	}
	return "at " + r.NotBefore.UTC().Format(time.RFC3339)
}

// actions are suggested actions, by the kubelet's reason.
var actions = map[string]string{
	"ImagePullBackOff":           "the registry is asked, as the image is not on this device or imagePullPolicy is Always: check that it can be reached from here; `ctr -n k8s.io images import` loads an image",
	"ErrImagePull":               "the registry is asked, as the image is not on this device or imagePullPolicy is Always: check that it can be reached from here; `ctr -n k8s.io images import` loads an image",
	"ErrImageNeverPull":          "imagePullPolicy is Never and the image is not on this device: load it with `ctr -n k8s.io images import`",
	"InvalidImageName":           "correct the image's name in the pod's template",
	"CreateContainerConfigError": "make what the message names, in the cloud",
	"CreateContainerError":       "see the container runtime's log: journalctl -u containerd",
	"RunContainerError":          "see the container runtime's log: journalctl -u containerd",
	"CrashLoopBackOff":           "see its last output: kubectl logs --previous",
	"FailedMount":                "make what the message names, in the cloud, or look for the volume's driver on this device",
	"FailedCreatePodSandBox":     "see the container runtime's log, and the network plugin: journalctl -u containerd",
	"NetworkNotReady":            "the network plugin is not ready: look for its configuration in /etc/cni/net.d",
}

// whyNotStarted takes the reason from the first container that has one, else from the newest
// warning.
func (f Facts) whyNotStarted(pod *corev1.Pod, p *Pod) {
	p.State = Starting
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" {
			continue
		}
		p.State, p.Reason, p.Message = Waiting, w.Reason, w.Message
		if w.Reason == "CrashLoopBackOff" {
			p.State = Failing
		}
		p.Action = actions[w.Reason]
		return
	}
	if e := f.Warnings[pod.UID]; e != nil {
		p.State, p.Reason, p.Message, p.Action = Waiting, e.Reason, e.Message, actions[e.Reason]
		return
	}
	p.Reason = string(cmp.Or(pod.Status.Phase, corev1.PodPending))
}

// String is the summary in a line, such as "5 of 7 running, 2 ended (Evicted)".
func (s Status) String() string {
	if s.Total == 0 && s.Finished == 0 {
		return "none"
	}
	text := fmt.Sprintf("%d of %d running", s.Running, s.Total)
	type group struct{ state, reason string }
	count := map[group]int{}
	var order []group
	for _, p := range s.NotRunning {
		g := group{string(p.State), p.Reason}
		if p.State == Withheld || p.State == Starting {
			g.reason = ""
		}
		if count[g]++; count[g] == 1 {
			order = append(order, g)
		}
	}
	for _, g := range order {
		text += fmt.Sprintf(", %d %s", count[g], g.state)
		if g.reason != "" {
			text += " (" + g.reason + ")"
		}
	}
	if s.Finished > 0 {
		text += fmt.Sprintf("; %d finished", s.Finished)
	}
	return text
}

// conditionRemedies are by the condition of a Node.
var conditionRemedies = map[corev1.NodeConditionType]string{
	corev1.NodeDiskPressure:       "pods are evicted and none starts: free space on the disk (crictl rmi --prune, journalctl --vacuum-size=100M)",
	corev1.NodeMemoryPressure:     "pods are evicted and none starts: stop what uses the memory (ps -eo rss,args --sort=-rss | head)",
	corev1.NodePIDPressure:        "no pod starts: stop what has most processes (ps -eo user= | sort | uniq -c)",
	corev1.NodeNetworkUnavailable: "no pod is scheduled here: see the network plugin's log, and /etc/cni/net.d",
}

// podNetwork is the condition that package podnet writes to the Node.
const podNetwork corev1.NodeConditionType = "SkerryPodNetwork"

// podNetworkRemedies are by the reason of the condition podNetwork: those with which pods are
// unreachable.
var podNetworkRemedies = map[string]string{
	"PodCIDRConflict": "pods there are unreachable: give one of the two another range, or correct podSubnets of the NodePool",
	"NotOnLink":       "its pods are unreachable: modprobe wireguard on both devices, and allow UDP port 10553 between them",
	"NoWireGuard":     "its pods are unreachable: modprobe wireguard on both devices, and allow UDP port 10553 between them",
	"PodsInOldRange":  "until then only this device reaches them",
	"NoPodCIDR":       "until then no pod starts",
}

// rangeTimeout is the time in which a device that joins gets a podCIDR.
const rangeTimeout = 5 * time.Minute

// NodeProblems returns the problems in a Node's conditions at a time, the most important first: its
// readiness in the kubelet's own words, pressure, a pod network that does not reach other devices,
// and a missing address, which leaves the node Ready. Empty: no problem.
func NodeProblems(node *corev1.Node, now time.Time) (problems []string) {
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeReady:
			if c.Status != corev1.ConditionTrue {
				problems = slices.Insert(problems, 0, "node NotReady: "+cmp.Or(c.Message, c.Reason))
			}
		case corev1.NodeDiskPressure, corev1.NodeMemoryPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable:
			if c.Status == corev1.ConditionTrue {
				problems = append(problems, string(c.Type)+", "+conditionRemedies[c.Type])
			}
		case podNetwork:
			young := c.Reason == "NoPodCIDR" && now.Sub(c.LastTransitionTime.Time) <= rangeTimeout
			if remedy := podNetworkRemedies[c.Reason]; c.Status == corev1.ConditionFalse && remedy != "" && !young {
				problems = append(problems, fmt.Sprintf("pod network: %s (%s), %s", c.Message, c.Reason, remedy))
			}
		}
	}
	reported := node.Status.NodeInfo.KubeletVersion != ""
	if reported && !slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP }) {
		problems = append(problems, "the Node has no address, and pods of the host network don't start: add a default route, or set modules.edged.nodeIP")
	}
	return problems
}
