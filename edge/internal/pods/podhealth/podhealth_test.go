package podhealth_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/tests/golden"
)

func pod(name string, phase corev1.PodPhase, containers ...corev1.ContainerState) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{}}}, Status: corev1.PodStatus{Phase: phase},
	}
	for _, c := range containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{State: c})
	}
	return p
}

func waits(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// Each pod that does not run is listed with the reason and the action.
func TestOf(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	once := pod("job", corev1.PodSucceeded)
	once.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	over := pod("over", corev1.PodFailed)
	over.Status.Reason, over.Status.Message = "Evicted", "Pod was rejected: The node had condition: [DiskPressure]. "
	leaves := pod("leaves", corev1.PodRunning)
	leaves.DeletionTimestamp = &metav1.Time{}
	f := podhealth.Facts{
		Pods: []*corev1.Pod{
			pod("runs", corev1.PodRunning, running), pod("runs-too", corev1.PodRunning, running), once, over, leaves,
			pod("evicted", corev1.PodFailed), pod("again", corev1.PodSucceeded), pod("plugin", corev1.PodPending),
			pod("image", corev1.PodPending, waits("ImagePullBackOff", `Back-off pulling image "registry/x:1"`)),
			pod("secret", corev1.PodPending, waits("CreateContainerConfigError", `secret "s" not found`)),
			pod("name", corev1.PodRunning, waits("CreateContainerError", "failed to reserve container name")),
			pod("crash", corev1.PodRunning, waits("CrashLoopBackOff", "back-off 5m0s restarting failed container")),
			pod("volume", corev1.PodPending, waits("ContainerCreating", "")), pod("new", corev1.PodPending),
			pod("nothing", corev1.PodRunning), // reported as running, without a container
		},
		Withheld: map[types.UID]string{"plugin": "waits for a device plugin: island.example/thing", "evicted": "ended", "again": "ended"},
		Restarts: map[types.UID]podhealth.Restart{
			"evicted": {Reason: "Evicted: The node was low on resource: ephemeral-storage.", For: []string{"DiskPressure"}, Ends: 1},
			"again":   {Reason: "Evicted: low on memory", Ends: 3, NotBefore: time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)},
		},
		Warnings: map[types.UID]*corev1.Event{"volume": {Reason: "FailedMount", Message: `MountVolume.SetUp failed for volume "v"`}},
	}
	s := podhealth.Of(f)
	var out strings.Builder
	fmt.Fprintln(&out, s)
	for _, p := range s.NotRunning {
		fmt.Fprintf(&out, "%s\n\t%s, %s: %s\n\t-> %s\n", p.Name, p.State, p.Reason, p.Message, p.Action)
	}
	golden.Check(t, "testdata/status.golden", out.String())
}

func TestNodeProblems(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "container runtime is down"},
	}}}
	if got := fmt.Sprint(podhealth.NodeProblems(node, time.Now())); got != "[node NotReady: container runtime is down DiskPressure, pods are evicted and none starts: free space on the disk (crictl rmi --prune, journalctl --vacuum-size=100M)]" {
		t.Error(got)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if got := podhealth.NodeProblems(node, time.Now()); got != nil {
		t.Error(got)
	}
	node.Status.NodeInfo.KubeletVersion = "v1.37.2"
	if got := podhealth.NodeProblems(node, time.Now()); len(got) != 1 || !strings.Contains(got[0], "modules.edged.nodeIP") {
		t.Errorf("without an address: %q", got)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.17"}}
	if got := podhealth.NodeProblems(node, time.Now()); got != nil {
		t.Errorf("with one: %q", got)
	}
}

// A pod network with which pods are unreachable is a problem; one that is chosen, or of a device
// that has just joined, is not.
func TestNodeProblems_OfThePodNetwork(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		status corev1.ConditionStatus
		reason string
		age    time.Duration
		want   string
	}{
		{"False", podnet.ReasonConflict, time.Minute, "pod network: edge3 has 10.1.0.0/24 too (PodCIDRConflict), "},
		{"False", podnet.ReasonNotOnLink, time.Minute, "(NotOnLink), "},
		{"False", podnet.ReasonNoTunnel, time.Minute, "(NoWireGuard), "},
		{"False", podnet.ReasonOldRange, time.Minute, "(PodsInOldRange), "},
		{"False", podnet.ReasonNoPodCIDR, 6 * time.Minute, "(NoPodCIDR), "},
		{"False", podnet.ReasonNoPodCIDR, 4 * time.Minute, ""},
		{"True", podnet.ReasonReady, time.Hour, ""}, {"True", podnet.ReasonForeign, time.Hour, ""}, {"True", podnet.ReasonOff, time.Hour, ""},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: podnet.ConditionType, Status: c.status, Reason: c.reason, Message: "edge3 has 10.1.0.0/24 too", LastTransitionTime: metav1.NewTime(now.Add(-c.age)),
		}}}}
		got := podhealth.NodeProblems(node, now)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s, %s for %v: %q", c.status, c.reason, c.age, got)
		}
	}
}
