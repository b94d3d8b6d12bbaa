package shutdown_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/shutdown"
)

const critical = 2_000_000_000

// pod has one ordinary container for each name, and a sidecar for each that begins with "side".
func pod(name string, priority int32, grace int64, containers ...string) corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace}}
	for _, c := range containers {
		if strings.HasPrefix(c, "side") {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: c, RestartPolicy: &always})
		} else {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
		}
	}
	return p
}

func running(pod, name string, annotations map[string]string) *runtimev1.Container {
	return &runtimev1.Container{Id: pod + "/" + name, PodSandboxId: "box", Annotations: annotations, Labels: map[string]string{
		"io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.name": pod, "io.kubernetes.pod.uid": pod, "io.kubernetes.container.name": name,
	}}
}

// text is a plan as one reads it: a group a line.
func text(groups []shutdown.Group) string {
	var b strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&b, "%d %v:", g.Priority, g.Length)
		for _, p := range g.Pods {
			fmt.Fprintf(&b, " %s(%v", p.Name, p.Grace)
			for _, c := range p.Containers {
				fmt.Fprintf(&b, " %s", c.Name)
				if c.PreStop != nil {
					b.WriteString("+hook")
				}
				if len(c.After) > 0 {
					fmt.Fprintf(&b, ">%s", strings.Join(c.After, ","))
				}
			}
			b.WriteString(")")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestPlan(t *testing.T) {
	two := []shutdown.Period{{0, 20 * time.Second}, {critical, 10 * time.Second}}
	hooked := pod("hooked", 0, 30, "c")
	hooked.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
	mirror := pod("mirror", critical, 5, "c")
	mirror.Annotations = map[string]string{"kubernetes.io/config.hash": "static", corev1.MirrorPodAnnotationKey: "static"}
	going := pod("going", 0, 30, "c")
	going.DeletionGracePeriodSeconds = new(int64)
	for name, test := range map[string]struct {
		running   []*runtimev1.Container
		pods      []corev1.Pod
		periods   []shutdown.Period
		available time.Duration
		want      string
	}{
		"nothing runs": {nil, []corev1.Pod{pod("a", 0, 30, "c")}, two, time.Minute, ""},
		"no periods":   {[]*runtimev1.Container{running("a", "c", nil)}, nil, nil, time.Minute, ""},
		"critical ones last, no grace beyond the group's": {
			[]*runtimev1.Container{running("dns", "c", nil), running("a", "c", nil), running("b", "c", nil)},
			[]corev1.Pod{pod("a", 0, 30, "c"), pod("b", 100, 5, "c"), pod("dns", critical+1000, 30, "c")}, two, time.Minute,
			"0 20s: a(20s c) b(5s c)\n2000000000 10s: dns(10s c)\n",
		},
		"periods by priority, also below the lowest": {
			[]*runtimev1.Container{running("a", "c", nil), running("b", "c", nil), running("c", "c", nil)},
			[]corev1.Pod{pod("a", -5, 30, "c"), pod("b", 10, 30, "c"), pod("c", 99, 30, "c")},
			[]shutdown.Period{{100, time.Second}, {10, 2 * time.Second}, {0, 3 * time.Second}}, time.Minute,
			"0 3s: a(3s c)\n10 2s: b(2s c) c(2s c)\n",
		},
		"less time than is configured": {
			[]*runtimev1.Container{running("a", "c", nil), running("dns", "c", nil)},
			[]corev1.Pod{pod("a", 0, 30, "c"), pod("dns", critical, 30, "c")}, two, 15 * time.Second,
			"0 10s: a(10s c)\n2000000000 5s: dns(5s c)\n",
		},
		"sidecars after what they serve, in the reverse order of their start": {
			[]*runtimev1.Container{running("a", "side1", nil), running("a", "side2", nil), running("a", "main", nil)},
			[]corev1.Pod{pod("a", 0, 30, "side1", "side2", "side3", "main", "done")}, two, time.Minute,
			"0 20s: a(20s main side1>main,side2 side2>main)\n",
		},
		"an init container that is not a sidecar waits for nothing": {
			[]*runtimev1.Container{running("a", "init", nil)}, []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}, Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "main"}},
			}}}, two, time.Minute, "0 20s: a(20s init)\n",
		},
		"hooks, a static pod, and one that is being deleted": {
			[]*runtimev1.Container{running("hooked", "c", nil), running("static", "c", nil), running("going", "c", nil)},
			[]corev1.Pod{hooked, mirror, going}, two, time.Minute,
			"0 20s: going(0s c) hooked(20s c+hook)\n2000000000 10s: static(5s c)\n",
		},
		"a pod that is not known any more": {
			[]*runtimev1.Container{running("gone", "c", map[string]string{
				"io.kubernetes.pod.terminationGracePeriod": "3", "io.kubernetes.container.preStopHandler": `{"exec":{"command":["/bye"]}}`,
			})}, nil, two, time.Minute, "0 20s: gone(3s c+hook)\n",
		},
		"a container that no kubelet made": {[]*runtimev1.Container{{Id: "x"}}, nil, two, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, text(shutdown.Plan(test.running, test.pods, test.periods, test.available))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
