package podrestart_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
)

func ended(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways},
		Status:     corev1.PodStatus{Phase: corev1.PodFailed},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// disrupted is the kubelet's mark of an eviction for pressure, a preemption and a shutdown.
func disrupted(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: "low on disk"}}
}

func because(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = reason, message }
}

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func policy(policy corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.RestartPolicy = policy }
}

// rule is of a container that may end its pod.
func rule(p *corev1.Pod) {
	never := corev1.ContainerRestartPolicyNever
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{RestartPolicy: &never})
}

func owned(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &yes}}
}

func TestByNode(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"evicted":                                 {ended(disrupted, because("Evicted", "The node was low on resource: memory.")), true},
		"evicted, its containers exit with 0":     {ended(disrupted, phase(corev1.PodSucceeded)), true},
		"preempted":                               {ended(disrupted, because("Preempting", "Preempted in order to admit critical pod")), true},
		"ended by a shutdown":                     {ended(disrupted, because("Terminated", "Pod was terminated in response to imminent node shutdown.")), true},
		"rejected for pressure":                   {ended(because("Evicted", "Pod was rejected: The node had condition: [DiskPressure]. ")), true},
		"rejected for want of a device":           {ended(because("UnexpectedAdmissionError", "Pod was rejected: Allocate failed")), true},
		"rejected for want of room":               {ended(because("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu")), true},
		"above its own limit, of a controller":    {ended(owned, because("Evicted", `Usage of EmptyDir volume "x" exceeds the limit "1Mi". `)), true},
		"above its own limit, bare":               {ended(because("Evicted", `Usage of EmptyDir volume "x" exceeds the limit "1Mi". `)), false},
		"its own deadline":                        {ended(owned, because("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")), false},
		"ran, rejected by a kubelet that starts":  {ended(phase(corev1.PodSucceeded)), true},
		"its containers decide (rules of theirs)": {ended(owned, phase(corev1.PodSucceeded), rule), false},
		"of rules of its own, evicted":            {ended(disrupted, rule), true},
		"runs":                                    {ended(disrupted, phase(corev1.PodRunning)), false},
		"a Job's":                                 {ended(owned, disrupted, policy(corev1.RestartPolicyOnFailure)), false},
		"Never":                                   {ended(disrupted, policy(corev1.RestartPolicyNever)), false},
		"a mirror": {ended(disrupted, func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}), false},
		"being deleted": {ended(disrupted, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), false},
	} {
		if got := podrestart.ByNode(c.pod); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestBlocks(t *testing.T) {
	prioritized := func(p *corev1.Pod) { critical := int32(2_000_000_000); p.Spec.Priority = &critical }
	burstable := func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSBurstable }
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	}
	for name, c := range map[string]struct {
		pod        *corev1.Pod
		conditions []corev1.NodeConditionType
		want       int
	}{
		"none":                    {ended(), []corev1.NodeConditionType{corev1.NodeReady}, 0},
		"disk":                    {ended(), []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeDiskPressure}, 1},
		"disk, critical":          {ended(prioritized), []corev1.NodeConditionType{corev1.NodeDiskPressure}, 0},
		"memory":                  {ended(), []corev1.NodeConditionType{corev1.NodeMemoryPressure}, 1},
		"memory, Burstable":       {ended(burstable), []corev1.NodeConditionType{corev1.NodeMemoryPressure}, 0},
		"memory, tolerant":        {ended(tolerant), []corev1.NodeConditionType{corev1.NodeMemoryPressure}, 0},
		"memory, PIDs, Burstable": {ended(burstable), []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodePIDPressure}, 2},
	} {
		node := &corev1.Node{}
		for _, kind := range c.conditions {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue})
		}
		if got := podrestart.Blocks(c.pod, node); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Those of the highest priority run first; if that brings the pressure back, the others wait on.
func TestTheHighestPriorityFirst(t *testing.T) {
	at := func(name string, priority int32) *corev1.Pod {
		return ended(disrupted, func(p *corev1.Pod) { p.Name, p.UID, p.Spec.Priority = name, types.UID(name), &priority })
	}
	pods := []*corev1.Pod{at("low", 0), at("high", 1000), at("high-too", 1000), at("lowest", -5)}
	node := func(status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: status}}}}
	}
	q := podrestart.NewQueue()
	start := time.Now()
	var got []string
	for s := 0; s <= 100; s += 2 {
		pressure := corev1.ConditionFalse
		if s < 20 || s >= 36 && s < 60 { // again, after the first have begun
			pressure = corev1.ConditionTrue
		}
		again, waiting := q.Plan(start.Add(time.Duration(s)*time.Second), pods, node(pressure))
		if len(again) > 0 {
			line := fmt.Sprint(s, "s:")
			for _, p := range again {
				line += " " + p.Name
				for i := range pods {
					if pods[i] == p {
						pods = append(pods[:i:i], pods[i+1:]...)
						break
					}
				}
			}
			got = append(got, fmt.Sprint(line, ", ", len(waiting), " wait"))
		}
	}
	want := []string{"20s: high high-too, 2 wait", "30s: low, 1 wait", "60s: lowest, 0 wait"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
