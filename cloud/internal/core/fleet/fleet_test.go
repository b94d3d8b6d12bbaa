package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(-d)} }

// lease is a device's, renewed some time ago in a session that began some time ago.
func lease(name string, renewed, began time.Duration, change func(*fleet.Session)) *coordinationv1.Lease {
	s := fleet.Session{Transport: "quic", Since: before(began), Version: "v1.2.3", CertificateEnd: before(-80 * 24 * time.Hour)}
	if change != nil {
		change(&s)
	}
	valid := int32(40)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"skerry.io/epoch": "7", "skerry.io/cloudcore": "cloud-1", fleet.SessionAnnotation: s.Annotation(),
		}},
		Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-renewed)}, LeaseDurationSeconds: &valid},
	}
}

func node(name string, ready corev1.ConditionStatus, more ...corev1.NodeConditionType) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.EdgeOwnLabel: "", v1alpha1.NodePoolLabel: "plant"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Message: "container runtime is down"}}
	for _, c := range more {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c, Status: corev1.ConditionTrue})
	}
	return n
}

// podNetwork is a Node whose pod network has had a state for some time.
func podNetwork(status corev1.ConditionStatus, reason string, since time.Duration) *corev1.Node {
	n := node("e", "True")
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "SkerryPodNetwork", Status: status, Reason: reason, LastTransitionTime: *before(since)})
	return n
}

func pod(node, name, waiting string, age time.Duration) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: *before(age)}, Spec: corev1.PodSpec{NodeName: node}}
	p.Status.Phase = corev1.PodRunning
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	if waiting != "" {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting}}}}
	}
	return p
}

func TestOf(t *testing.T) {
	const hour = time.Hour
	for name, test := range map[string]struct {
		facts fleet.Facts
		want  string // link since, contact, problems
	}{
		"well": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "True")}, Leases: []*coordinationv1.Lease{lease("e", 20*time.Second, hour, nil)}},
			"Up 1h0m0s 20s",
		},
		"cut": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "Unknown")}, Leases: []*coordinationv1.Lease{lease("e", 3*hour, 5*hour, nil)}},
			"Down 3h0m0s 3h0m0s LinkDown",
		},
		"a kubelet that never lived, without a Node": {
			fleet.Facts{Leases: []*coordinationv1.Lease{lease("e", hour+40*time.Second, hour, nil)}},
			"NoKubelet 1h0m0s 1h0m0s NoKubelet",
		},
		"never linked": {fleet.Facts{Nodes: []*corev1.Node{node("e", "Unknown")}}, "Never - - NeverLinked"},
		"an old backlog": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "True")}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, func(s *fleet.Session) { s.Backlog, s.Oldest = 3, before(6*time.Minute) })}},
			"Up 1h0m0s 5s BacklogOld",
		},
		"a young backlog": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "True")}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, func(s *fleet.Session) { s.Backlog, s.Oldest = 3, before(4*time.Minute) })}},
			"Up 1h0m0s 5s",
		},
		"the runtime is down": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "False")}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s NotReady",
		},
		"disks": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "True", "DiskPressure", "SkerryDataDiskFull", "SkerryPodNetwork")}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s DiskPressure SkerryDataDiskFull",
		},
		"its range is another's too": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "PodCIDRConflict", time.Minute)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s PodCIDRConflict",
		},
		"a device of its site is on another network": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "NotOnLink", time.Minute)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s NotOnLink",
		},
		"no WireGuard where the pool requires it": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "NoWireGuard", time.Minute)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s NoWireGuard",
		},
		"pods of before the range": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "PodsInOldRange", time.Minute)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s PodsInOldRange",
		},
		"no range for long": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "NoPodCIDR", 6*time.Minute)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s NoPodCIDR",
		},
		"no range yet": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "NoPodCIDR", 4*time.Minute)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s",
		},
		"the pod network of another": {
			fleet.Facts{Nodes: []*corev1.Node{podNetwork("False", "Foreign", hour)}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}},
			"Up 1h0m0s 5s",
		},
		"certificates": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "True")}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, func(s *fleet.Session) { s.CertificateEnd = before(-6 * 24 * hour) })}},
			"Up 1h0m0s 5s CertificateEnds",
		},
		"a certificate that ended": {
			fleet.Facts{Nodes: []*corev1.Node{node("e", "Unknown")}, Leases: []*coordinationv1.Lease{lease("e", 5*hour, 6*hour, func(s *fleet.Session) { s.CertificateEnd = before(hour) })}},
			"Down 5h0m0s 5h0m0s LinkDown CertificateEnded",
		},
		"pods": {
			fleet.Facts{
				Nodes: []*corev1.Node{node("e", "True")}, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)},
				Pods: []*corev1.Pod{
					pod("e", "good", "", hour), pod("e", "young", "ContainerCreating", time.Minute), pod("e", "image", "ImagePullBackOff", time.Minute),
					pod("other", "image", "ImagePullBackOff", time.Minute),
				},
			},
			"Up 1h0m0s 5s PodsNotRunning",
		},
		"no edge":            {fleet.Facts{Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "server"}}}, Leases: []*coordinationv1.Lease{{ObjectMeta: metav1.ObjectMeta{Name: "server"}}}}, ""},
		"selected, no Node":  {fleet.Facts{Selected: true, Leases: []*coordinationv1.Lease{lease("e", 5*time.Second, hour, nil)}}, ""},
		"an older cloudcore": {fleet.Facts{Leases: []*coordinationv1.Lease{{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: map[string]string{"skerry.io/epoch": "1"}}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now}}}}}, "Up - 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, n := range fleet.Of(test.facts, fleet.DefaultLimits(), now) {
				ago := func(at *metav1.Time) string {
					if at == nil {
						return "-"
					}
					return now.Sub(at.Time).String()
				}
				got = fmt.Sprint(n.Link, " ", ago(n.Since), " ", ago(n.LastContact))
				for _, p := range n.Problems {
					got += " " + p.Reason
					if p.Action == "" || strings.Contains(p.Action, "%!") || strings.Contains(p.Message, "%!") {
						t.Errorf("the problem %+v has no good action", p)
					}
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	nodes := fleet.Of(fleet.Facts{
		Nodes: []*corev1.Node{node("a", "True"), node("b", "Unknown")},
		Leases: []*coordinationv1.Lease{
			lease("a", 5*time.Second, time.Hour, nil),
			lease("b", 3*time.Hour, 5*time.Hour, func(s *fleet.Session) { s.Backlog, s.Oldest = 2, before(4*time.Hour) }),
		},
		Pods:       []*corev1.Pod{pod("b", "x", "CrashLoopBackOff", time.Hour)},
		Operations: []*v1alpha1.NodeOperation{{Spec: v1alpha1.NodeOperationSpec{NodeName: "a", Operation: "Reboot"}}},
	}, fleet.DefaultLimits(), now)
	var rows []string
	for _, r := range fleet.Table(fleet.Worst(nodes), now).Rows {
		rows = append(rows, strings.TrimSuffix(fmt.Sprintln(r.Cells...), "\n"))
	}
	want := []string{
		"b Down 3h quic 3h 2 (4h) v1.2.3 80d - 0/1 Unknown plant - cloud-1 link down, last contact 3h ago; 1 pod doesn't run (CrashLoopBackOff)",
		"a Up 60m quic 5s 0 v1.2.3 80d Reboot New 0/0 True plant - cloud-1 ",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if got, want := fleet.Summary(nodes), "2 devices: 1 up, 1 down; 1 with problems; 1 operations in progress"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

// Below the table each kind of problem has one line, whatever the number of devices that have it.
func TestRemedies(t *testing.T) {
	facts := fleet.Facts{Nodes: []*corev1.Node{node("a-pressed", "True", "DiskPressure")}, Leases: []*coordinationv1.Lease{lease("a-pressed", 5*time.Second, time.Hour, nil)}}
	for i := range 500 {
		name := fmt.Sprintf("e-%03d", i)
		facts.Nodes = append(facts.Nodes, node(name, "Unknown"))
		facts.Leases = append(facts.Leases, lease(name, 3*time.Hour, 5*time.Hour, nil))
	}
	want := []string{
		"-> LinkDown (e-000 and 499 more): on the device: edgecore status, then edgecore check",
		"-> DiskPressure (a-pressed): free disk space on the device; `kubectl skerry node a-pressed` shows what the kubelet evicted",
	}
	if diff := cmp.Diff(want, fleet.Remedies(fleet.Of(facts, fleet.DefaultLimits(), now))); diff != "" {
		t.Errorf("remedies (-want +got):\n%s", diff)
	}
	var many fleet.Node
	for i := range 12 {
		many.Problems = append(many.Problems, fleet.Problem{Reason: fmt.Sprint("R", i), Action: "act"})
	}
	if got := fleet.Remedies([]fleet.Node{many}); len(got) != 9 || got[8] != "-> 4 more kinds of problems: -o json" {
		t.Errorf("of many kinds: %q", got)
	}
	if got := fleet.Remedies([]fleet.Node{{Name: "well"}}); len(got) > 0 {
		t.Errorf("of a device that is well: %q", got)
	}
}

// A device chooses its version: it can't send commands to a terminal, and no Lease grows by it.
func TestSession_OfADeviceThatLies(t *testing.T) {
	s := fleet.Session{Version: "\x1b]0;owned\a\u202ev1" + strings.Repeat("x", 20_000)}
	text := s.Annotation()
	got, ok := fleet.SessionOf(map[string]string{fleet.SessionAnnotation: text})
	if !ok || len(text) > 200 || strings.ContainsAny(got.Version, "\x1b\a\u202e") || len(got.Version) > 64 {
		t.Errorf("%d bytes: %q", len(text), got.Version)
	}
}

// With no link up the actions name the cloud; with one that is up, the device.
func TestOf_AllLinksDown(t *testing.T) {
	down := func(name string) *coordinationv1.Lease { return lease(name, 3*time.Hour, 5*time.Hour, nil) }
	noKubelet := func(name string) *coordinationv1.Lease { return lease(name, 3*time.Hour, 2*time.Hour, nil) }
	cloud := func(selected bool, leases ...*coordinationv1.Lease) (named int) {
		f := fleet.Facts{Leases: leases, Selected: selected}
		for _, l := range leases {
			f.Nodes = append(f.Nodes, node(l.Name, "Unknown"))
		}
		for _, n := range fleet.Of(f, fleet.DefaultLimits(), now) {
			for _, p := range n.Problems {
				if strings.Contains(p.Action, "skerry-system") {
					named++
				}
			}
		}
		return named
	}
	for _, c := range []struct {
		got, want int
	}{
		{cloud(false, down("a"), down("b"), down("c")), 3},
		{cloud(false, down("a"), noKubelet("b")), 2},
		{cloud(false, noKubelet("a"), lease("b", 5*time.Second, time.Hour, nil)), 0},
		{cloud(false, down("a")), 0},
		{cloud(true, down("a"), down("b")), 0},
		{cloud(false, down("a"), down("b"), lease("c", 5*time.Second, time.Hour, nil)), 0},
	} {
		if c.got != c.want {
			t.Errorf("%d actions name the cloud, want %d", c.got, c.want)
		}
	}
}

// The traffic of a link comes back from the annotation, and its table adds it up.
func TestTraffic(t *testing.T) {
	s := fleet.Session{Transport: "quic", Since: before(time.Hour), Traffic: &fleet.Traffic{
		Wire: fleet.Bytes{Up: 5000, Down: 1_500_000}, Classes: []fleet.Class{{UpMessages: 360, UpBytes: 1800}, {}, {DownMessages: 3, DownBytes: 1_400_000}},
	}}
	back, ok := fleet.SessionOf(map[string]string{fleet.SessionAnnotation: s.Annotation()})
	if diff := cmp.Diff(s.Traffic, back.Traffic); !ok || diff != "" {
		t.Error(diff)
	}
	l := lease("e", 0, time.Hour, func(own *fleet.Session) { own.Traffic = s.Traffic })
	table := fleet.TrafficTable(fleet.Of(fleet.Facts{Nodes: []*corev1.Node{node("e", "True"), node("silent", "True")}, Leases: []*coordinationv1.Lease{l}}, fleet.DefaultLimits(), now), now)
	var rows []string
	for _, r := range table.Rows {
		rows = append(rows, strings.TrimSpace(fmt.Sprintln(r.Cells...)))
	}
	want := []string{"e Up 60m 5kB 1.5MB 1.5MB/h 1.8kB 0B 1.4MB 0B 0B 360 0 3 0 0", "(all)   5kB 1.5MB 1.5MB/h 1.8kB 0B 1.4MB 0B 0B 360 0 3 0 0"}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{`{"traffic":{"classes":[[1,2,3,4],[],[],[],[],[]]}}`, `{"traffic":{"classes":[[-1]]}}`} {
		if s, _ := fleet.SessionOf(map[string]string{fleet.SessionAnnotation: bad}); s.Traffic != nil {
			t.Errorf("%s became %+v", bad, s.Traffic)
		}
	}
}
