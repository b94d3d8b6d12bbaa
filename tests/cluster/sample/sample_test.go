package sample

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMissing(t *testing.T) {
	pod := func(app, node, id string, ready corev1.ConditionStatus) corev1.Pod {
		var p corev1.Pod
		p.Labels = map[string]string{"app": app}
		p.Spec.NodeName = node
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "containerd://" + id}}
		return p
	}
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	for name, c := range map[string]struct {
		pods []corev1.Pod
		edge bool
		want string
	}{
		"nothing yet":                    {nil, false, "its pod of the application sample is not scheduled yet"},
		"an ordinary node":               {[]corev1.Pod{pod("sample", "a", "here", yes)}, false, ""},
		"an edge without a store":        {[]corev1.Pod{pod("sample", "a", "here", yes)}, true, "its pod of the application store is not scheduled yet"},
		"an edge":                        {[]corev1.Pod{pod("sample", "a", "here", yes), pod("store", "a", "here", yes)}, true, ""},
		"that of another node":           {[]corev1.Pod{pod("sample", "b", "here", yes)}, false, "its pod of the application sample is not scheduled yet"},
		"not Ready":                      {[]corev1.Pod{pod("sample", "a", "here", no)}, false, "its pod of the application sample is Running"},
		"Ready, by what the cloud knows": {[]corev1.Pod{pod("sample", "a", "before the boot", yes)}, false, "its pod of the application sample does not run on the node, which has not reported that yet"},
		"an old one and its successor":   {[]corev1.Pod{pod("sample", "a", "before the boot", yes), pod("sample", "a", "here", yes)}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Missing(c.pods, "a", c.edge, func(id string) bool { return id == "here" }); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
