package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// reasons are those of the events about a pod.
func reasons(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) (map[string]corev1.Event, error) {
	list, err := client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	if err != nil {
		return nil, err
	}
	all := map[string]corev1.Event{}
	for _, e := range list.Items {
		all[e.Reason] = e
	}
	return all, nil
}

// waitReasons waits until an API has events about a pod for all these reasons.
func (s *system) waitReasons(client kubernetes.Interface, pod *corev1.Pod, want ...string) map[string]corev1.Event {
	s.T.Helper()
	var got map[string]corev1.Event
	s.WaitFor(fmt.Sprintf("events %v about %s", want, pod.Name), func(ctx context.Context) error {
		var err error
		if got, err = reasons(ctx, client, pod); err != nil {
			return err
		}
		for _, w := range want {
			if _, ok := got[w]; !ok {
				return fmt.Errorf("there is none for %s", w)
			}
		}
		return nil
	})
	return got
}

// TestEvents_01: events are not reported: the device shows the kubelet's, the cloud has no events.
func TestEvents_01_SwitchedOffTheDeviceShowsThem(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", false)
	ns := s.Namespace()
	pod := s.pod(ns, "quiet", "edge1")
	s.waitReasons(s.device("edge1"), pod, "Pulled", "Created", "Started")
	// The device's events went up with the status Ready, or after it: one more round trip shows
	// that no other came.
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	s.WaitFor("the pod to go", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
	s.waitDelivered("edge1")
	got, err := reasons(t.Context(), s.Client, pod)
	s.Check(err)
	for reason, e := range got {
		if e.Source.Host == "edge1" || e.ReportingInstance == "edge1" {
			t.Errorf("the cloud has an event %s of the device", reason)
		}
	}
}

// TestEvents_02: events are reported: the kubelet's own of a pod's life are in the cloud, from this
// node, and kubectl describe shows them.
func TestEvents_02_SwitchedOnKubectlDescribeShowsThem(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	s.Apply(ns, `apiVersion: v1
kind: Pod
metadata:
  name: eventful
spec:
  nodeName: edge1
  dnsPolicy: Default
  terminationGracePeriodSeconds: 1
  containers:
  - name: sample
    image: skerry.local/sample:1
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
  - name: fails
    image: skerry.local/sample:1
    args: ["no such argument"]
`)
	var pod *corev1.Pod
	s.WaitFor("the pod to run", func(ctx context.Context) error {
		var err error
		pod, err = s.Client.CoreV1().Pods(ns).Get(ctx, "eventful", metav1.GetOptions{})
		if err == nil && (pod.Status.PodIP == "" || pod.Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return err
	})
	s.post(pod, "/fail")
	want := []string{"Pulled", "Created", "Started", "BackOff", "Unhealthy", "Killing"}
	got := s.waitReasons(s.Client, pod, want...)
	for _, reason := range want {
		if e := got[reason]; e.Source.Host != "edge1" || e.Source.Component != "kubelet" || e.InvolvedObject.UID != pod.UID {
			t.Errorf("%s: from %+v about %s", reason, e.Source, e.InvolvedObject.UID)
		}
	}
	described := s.Kubectl("describe", "pod", "-n", ns, "eventful")
	for _, reason := range want {
		if !strings.Contains(described, reason) {
			t.Errorf("kubectl describe does not show %s:\n%s", reason, described)
		}
	}
}

// TestEvents_03: a thousand events while the link is cut; all are there when it is back.
func TestEvents_03_AThousandWhileCut(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	f := s.flood(s.pod(s.Namespace(), "island", "edge1"))
	s.Cut("edge1")
	s.Check(f.write(t.Context(), 1000))
	got, err := f.events(t.Context(), s.Client)
	s.Check(err)
	if len(got) != 0 {
		t.Errorf("%d events crossed a cut link", len(got))
	}
	s.Heal("edge1")
	f.waitArrived()
}

// TestEvents_04: edgecore is killed twice while the link is cut, once in the middle of the writing.
func TestEvents_04_EdgecoreKilledWhileCut(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	f := s.flood(s.pod(s.Namespace(), "island", "edge1"))
	s.Cut("edge1")
	wait := f.in(1000)
	f.waitFor(300)
	s.Kill("edge1", "edgecore")
	s.Start("edge1", "edgecore")
	wait()
	s.Kill("edge1", "edgecore")
	s.Start("edge1", "edgecore")
	s.Heal("edge1")
	f.waitArrived()
}

// TestEvents_05: cloudcore is killed while events flow, again and again, whichever replica
// has the node.
func TestEvents_05_CloudcoreKilledInMidFlood(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	f := s.flood(s.pod(s.Namespace(), "stream", "edge1"))
	wait := f.in(1500)
	for i, replica := range append(options().Replicas(), options().Replicas()...) {
		f.waitFor(200 * (i + 1))
		s.Kill(replica, "cloudcore")
		s.Start(replica, "cloudcore")
	}
	wait()
	f.waitArrived()
}

// TestEvents_07: one node storms; another one's Lease, which the same replica of cloudcore renews,
// is renewed before it runs out, each time.
func TestEvents_07_AStormDelaysNoOtherLease(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	pod := s.pod(s.Namespace(), "storm", "edge1")
	replica := s.atOneReplica()
	leases := s.Client.CoordinationV1().Leases("kube-node-lease")
	var before *coordinationv1.Lease
	begin := time.Now()
	s.WaitFor("a renewal before the storm", func(ctx context.Context) (err error) { // a session that takes a Lease over does not renew it with that
		if before, err = leases.Get(ctx, "edge2", metav1.GetOptions{}); err == nil && before.Spec.RenewTime.Time.Before(begin) {
			err = fmt.Errorf("the last was at %v", before.Spec.RenewTime)
		}
		return err
	})
	watch, err := leases.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=edge2", ResourceVersion: before.ResourceVersion})
	s.Check(err)
	defer watch.Stop()
	f := s.flood(pod)
	s.Check(f.write(t.Context(), 4000))
	f.waitArrived()
	for _, node := range []string{"edge1", "edge2"} {
		if now, err := s.servingReplica(t.Context(), node); err != nil || now != replica {
			t.Errorf("%s is served by %q, %v; it began at %s", node, now, err, replica)
		}
	}
	// Up to the first renewal after the storm.
	var renewed []time.Time
	for end := time.Now(); len(renewed) == 0 || renewed[len(renewed)-1].Before(end); {
		e, ok := <-watch.ResultChan()
		lease, is := e.Object.(*coordinationv1.Lease)
		if !ok || !is {
			t.Fatalf("the watch of the Lease ended: %v", e.Object)
		}
		renewed = append(renewed, lease.Spec.RenewTime.Time)
	}
	last := before.Spec.RenewTime.Time
	allowed := time.Duration(*before.Spec.LeaseDurationSeconds) * time.Second
	for _, at := range renewed {
		if gap := at.Sub(last); gap > allowed {
			t.Errorf("no renewal for %v, the Lease lasts %v", gap, allowed)
		}
		last = at
	}
}

// atOneReplica stops all replicas of cloudcore but one, until the test ends, and waits for
// both edges there.
func (s *system) atOneReplica() (replica string) {
	s.T.Helper()
	replicas := options().Replicas()
	replica = replicas[0]
	for _, other := range replicas[1:] {
		s.Check(s.Trial.Stop(s.T.Context(), other, "cloudcore")) // the next test starts it again
	}
	for _, node := range []string{"edge1", "edge2"} {
		s.WaitFor(node+" to be at "+replica, func(ctx context.Context) error {
			if now, err := s.servingReplica(ctx, node); err != nil || now != replica {
				return fmt.Errorf("it is at %q: %w", now, err)
			}
			return nil
		})
		s.waitLinked(node)
	}
	return replica
}

// TestEvents_08: the outbox is full: the oldest events are gone, the newest arrive, and the cloud
// gets the number of missing ones.
func TestEvents_08_FullOutboxDropsTheOldest(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	s.set("edge1", "modules.metaManager.eventLimit.entries=300", "modules.metaManager.eventLimit.entries=10000")
	f := s.flood(s.pod(s.Namespace(), "island", "edge1"))
	s.waitDelivered("edge1")
	s.Cut("edge1")
	s.waitUnlinked("edge1") // events that are under way are never dropped
	for range 500 {         // one after another, so that their order is known
		s.Check(f.write(t.Context(), 1))
	}
	status, err := s.deviceStatus(t.Context(), "edge1")
	s.Check(err)
	dropped := status.Data.Outbox.Dropped
	if dropped < 200 {
		t.Errorf("%d events were dropped, want 200 at least: %d were written and 300 have room", dropped, f.acknowledged())
	}
	s.Heal("edge1")
	s.waitDelivered("edge1")
	got, err := f.events(t.Context(), s.Client)
	s.Check(err)
	// Events of the kubelet may have had a place among the 300.
	if len(got) > 300 || len(got) < 280 {
		t.Errorf("%d events arrived, want about 300", len(got))
	}
	names := make([]string, 0, len(got))
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		if want := fmt.Sprintf("island.flood-%05d", 500-len(names)+i); name != want {
			t.Errorf("event %s arrived in the place of %s: the newest should have stayed", name, want)
			break
		}
	}
	s.WaitFor("the event about the missing ones", func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=edge1,reason=EventsDropped"})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, fmt.Sprint(dropped)) {
				return nil
			}
		}
		return fmt.Errorf("no event reports %d", dropped)
	})
}

// TestEvents_09: a node writes another node's objects: its pod's status, its Lease, an event about
// its pod. The cloud refuses, and the device is notified.
func TestEvents_09_WritesOfAnothersObjectsAreRefused(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	theirs := s.pod(ns, "theirs", "edge2")
	device := s.device("edge1")

	_, err := device.CoreV1().Pods(ns).Patch(t.Context(), theirs.Name, types.StrategicMergePatchType, []byte(`{"status":{"reason":"Forged"}}`),
		metav1.PatchOptions{}, "status")
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		t.Errorf("patching another's pod: %v", err)
	}
	leases := s.Client.CoordinationV1().Leases("kube-node-lease")
	lease, err := leases.Get(t.Context(), "edge2", metav1.GetOptions{})
	s.Check(err)
	forged := lease.DeepCopy()
	forged.Labels = map[string]string{"forged": "yes"}
	if _, err := device.CoordinationV1().Leases("kube-node-lease").Update(t.Context(), forged, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("updating another's Lease: %v", err)
	}
	// An event is taken by the device, as the kubelet's are, and refused by the cloud.
	f := s.flood(theirs)
	e := f.event(0, metav1.Now())
	_, err = device.CoreV1().Events(ns).Create(t.Context(), e, metav1.CreateOptions{})
	s.Check(err)
	s.waitDelivered("edge1")
	s.WaitFor("the device to be notified", func(ctx context.Context) error {
		list, err := device.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=WriteRefused"})
		if err != nil {
			return err
		}
		for _, refused := range list.Items {
			if strings.Contains(refused.Message, e.Name) {
				return nil
			}
		}
		return fmt.Errorf("%d refusals, none of them of this", len(list.Items))
	})
	got, err := f.events(t.Context(), s.Client)
	s.Check(err)
	if len(got) != 0 {
		t.Errorf("the cloud has the forged event: %v", got)
	}
	now, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), theirs.Name, metav1.GetOptions{})
	s.Check(err)
	if now.Status.Reason != "" {
		t.Errorf("another's pod was written: %q", now.Status.Reason)
	}
}

// TestEvents_06: kube-apiserver is in trouble: for a while it answers every other request with 429
// or 500, not at all, or carries it out and loses the answer; then it is away. Later everything is
// there, once.
func TestEvents_06_APIServerInTroubleLosesNothing(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	namespace := s.Namespace()
	var floods []*flood // of several pods: events about one are written one after another
	for i := range 8 {
		floods = append(floods, s.flood(s.pod(namespace, fmt.Sprintf("patient-%d", i), "edge1")))
	}
	proxy := s.faultProxy()
	s.waitLinked("edge1")

	var asked, met atomic.Int64
	proxy.Set(func(r *http.Request) faultproxy.Fault {
		// Writes as a node: cloudcore's own reads have tests of their own.
		if r.Method == http.MethodGet || r.Header.Get("Impersonate-User") == "" {
			return faultproxy.Fault{}
		}
		f := [...]faultproxy.Fault{
			{}, {Code: 429, RetryAfter: 1}, {}, {Code: 500}, {}, {Break: true}, {}, {Lose: true}, {}, {Code: 504}, {}, {Lose: true}, {}, {Code: 503},
		}
		n := asked.Add(1)
		fault := f[n%int64(len(f))]
		if n == 100 { // one is enough: each waits for a time-out
			fault = faultproxy.Fault{Hang: true}
		}
		if fault != (faultproxy.Fault{}) {
			met.Add(1)
		}
		return fault
	})
	for _, f := range floods {
		s.Check(f.write(t.Context(), 50))
	}
	for _, many := range []int64{50, 100} { // events about one pod wait for each other, and each fault is waited out
		s.WaitFor("the faults to be met", func(context.Context) error {
			if n := met.Load(); n < many {
				return fmt.Errorf("%d were", n)
			}
			return nil
		})
	}
	proxy.Set(func(*http.Request) faultproxy.Fault { return faultproxy.Fault{Break: true} })
	for _, f := range floods {
		s.Check(f.write(t.Context(), 25))
	}
	s.lasts("everything waits", minutes(t, 1), func() error {
		d, err := s.deviceStatus(t.Context(), "edge1")
		if err == nil && d.waiting() == 0 {
			err = errors.New("nothing waits: kube-apiserver was not away")
		}
		return err
	})
	proxy.Set(nil)
	for _, f := range floods {
		f.waitArrived()
	}
	t.Logf("%d of %d writes met a fault", met.Load(), asked.Load())
}

// TestEvents_10: the disk is full: a client that writes an event gets that error; the kubelet works
// on, and so does everything when there is room.
func TestEvents_10_FullDiskIsAnErrorAndGoesOn(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	pod := s.pod(ns, "tight", "edge1")
	before := s.Containers("edge1")
	s.smallDisk("edge1", 8)
	f := s.flood(pod)
	s.Check(f.write(t.Context(), 50))
	s.Cut("edge1") // so that all writes stay in the store
	s.fill("edge1")
	device := s.device("edge1")
	create := func(e *corev1.Event) error { // once: a client would by itself try for a minute, as the answer asks it to
		return device.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(ns).Resource("events").Body(e).Do(t.Context()).Error()
	}
	// Free pages inside of the store are used up first.
	var refusal error
	for i := 0; refusal == nil; i++ {
		if i == 5000 {
			t.Fatal("the store takes 5000 events on a full disk")
		}
		e := f.event(10_000+i, metav1.Unix(1_700_000_000, 0))
		e.Annotations = map[string]string{"ballast": strings.Repeat("b", 50_000)}
		if refusal = create(e); refusal == nil {
			f.want[e.Name] = tell(e)
		}
	}
	t.Logf("refused after %d events", f.acknowledged())
	if !strings.Contains(refusal.Error(), "disk of this node is full") {
		t.Errorf("the refusal does not name its cause: %v", refusal)
	}
	s.Check(s.same("edge1", before))
	s.post(pod, "/crash")
	s.WaitFor("the crashed container to run again", func(context.Context) error { return s.replaced("edge1", before) })
	// Those that retry get through once there is room.
	wait := f.in(200)
	s.makeRoom("edge1")
	wait()
	s.Heal("edge1")
	f.waitArrived()
	s.WaitFor("the restart to be reported", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && (len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount == 0) {
			err = errors.New("no restart is known")
		}
		return err
	})
}
