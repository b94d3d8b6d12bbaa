package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// TestIsland_01: a cut of ten minutes: no container is touched, then or when the link is back, and
// the device's own API answers all the time.
func TestIsland_01_CutForTenMinutesTouchesNoPod(t *testing.T) {
	s := newSystem(t)
	before := s.Containers("edge1")
	s.Cut("edge1")
	device := s.device("edge1")
	s.lasts("pods are untouched", minutes(t, 10), func() error {
		list, err := device.CoreV1().Pods("sample").List(t.Context(), metav1.ListOptions{LabelSelector: "app=sample"})
		if err == nil && (len(list.Items) != 1 || !suite.PodReady(list.Items[0])) {
			err = fmt.Errorf("the device sees %d pods of the sample, or one that is not ready", len(list.Items))
		}
		return errors.Join(err, s.same("edge1", before))
	})
	s.WaitReady("edge1", false)
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.Check(s.same("edge1", before))
}

// TestIsland_02: while the link is cut, a container crashes and another's probe fails: both are
// restarted. It is reported to the cloud later.
func TestIsland_02_CrashedContainerRestartsWhileCut(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	crashes := s.pod(ns, "crashes", "edge1")
	// The startup probe gives a busy machine the time to start it: only the requested failure
	// occurs.
	s.Apply(ns, islander("fails", "edge1")+"    startupProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 60}\n"+
		"    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 20}\n")
	fails := &s.WaitPods(ns, "app=fails", "edge1", 1)[0]
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.post(crashes, "/crash")
	s.post(fails, "/fail")
	restarted := func(p *corev1.Pod) error {
		if st := p.Status.ContainerStatuses; len(st) != 1 || st[0].RestartCount != 1 || st[0].State.Running == nil || !suite.PodReady(*p) {
			return fmt.Errorf("its containers are %+v", st)
		}
		return nil
	}
	for _, p := range []*corev1.Pod{crashes, fails} {
		s.waitDevice("edge1", ns, p.Name, restarted)
	}
	s.Heal("edge1")
	for _, p := range []*corev1.Pod{crashes, fails} {
		s.WaitFor("the report of "+p.Name, func(ctx context.Context) error {
			p, err := s.Client.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return restarted(p)
		})
	}
}

// A node is Ready when its link is back, and not when its kubelet looks at its Node the next time:
// here that is in an hour. The kubelet's other conditions are as it reported them too.
func TestReadyWithTheLink(t *testing.T) {
	s := newSystem(t)
	s.set("edge2", "modules.edged.kubelet.nodeStatusUpdateFrequency=1h", "modules.edged.kubelet.nodeStatusUpdateFrequency=10s")
	s.WaitReady("edge2", true)
	s.Cut("edge2")
	s.WaitReady("edge2", false)
	s.Heal("edge2")
	s.WaitReady("edge2", true)
	n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge2", metav1.GetOptions{})
	s.Check(err)
	for _, c := range n.Status.Conditions {
		if c.Status == corev1.ConditionUnknown {
			t.Errorf("%s is %s: %s", c.Type, c.Status, c.Reason)
		}
	}
}

// A device that comes back without its kubelet, here because containerd does not run, is NotReady
// like any other that is silent, though its session has written its Lease.
func TestNotReadyWithoutAKubelet(t *testing.T) {
	s := newSystem(t)
	t.Cleanup(func() { _ = s.Trial.Start(context.Background(), "edge2", "containerd") })
	s.Kill("edge2", "containerd")
	s.Kill("edge2", "edgecore")
	s.Start("edge2", "edgecore")
	s.waitLinked("edge2")
	s.WaitReady("edge2", false)
	s.Start("edge2", "containerd")
	s.WaitReady("edge2", true)
}

// TestIsland_06: a ConfigMap and a Secret change while the link is cut; the pod's volumes follow
// when it is back.
func TestIsland_06_VolumesFollowConfigChangesOfACut(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	config := func(value string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {level: %[1]s}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: settings}\nstringData: {word: %[1]s}\n", value)
	}
	s.Apply(ns, config("low"))
	s.Apply(ns, islander("reader", "edge1")+`    volumeMounts:
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret}
  volumes:
  - {name: config, configMap: {name: settings}}
  - {name: secret, secret: {secretName: settings}}
`)
	pod := s.WaitPods(ns, "app=reader", "edge1", 1)[0]
	shows := func(value string) func(context.Context) error {
		return func(ctx context.Context) error {
			page, err := s.Page(ctx, pod)
			if err == nil && (!strings.Contains(page, "config level = "+value) || !strings.Contains(page, "secret word = "+value)) {
				err = errors.New(page)
			}
			return err
		}
	}
	s.WaitFor("the page", shows("low"))
	before := s.Containers("edge1")
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.Apply(ns, config("high"))
	s.Check(shows("low")(t.Context()))
	s.Heal("edge1")
	s.WaitFor("the volumes to follow", shows("high"))
	s.Check(s.same("edge1", before))
}

// TestIsland_12: kube-apiserver is down for two minutes while the link is up: pods stay, a crashed
// container is restarted, and everything is reported to the cloud later.
func TestIsland_12_PodsStayWhileTheAPIServerIsDown(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	pod := s.pod(ns, "crashes", "edge1")
	f := s.flood(pod)
	before := s.Containers("edge1")
	s.Kill(trial.Cloud, "kubeplane")
	s.Check(f.write(t.Context(), 100))
	s.post(pod, "/crash")
	s.WaitFor("the crashed container to run again", func(context.Context) error { return s.replaced("edge1", before) })
	now := s.Containers("edge1")
	linked := 0
	s.lasts("pods stay", minutes(t, 2), func() error {
		d, err := s.deviceStatus(t.Context(), "edge1")
		if d.Link.Linked {
			linked++
		}
		return errors.Join(err, s.same("edge1", now))
	})
	if linked == 0 {
		t.Error("the link was down all the time: nothing was shown")
	}
	s.Start(trial.Cloud, "kubeplane")
	f.waitArrived()
	s.WaitFor("the restart to be reported", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && (len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount != 1) {
			err = fmt.Errorf("its containers are %+v", p.Status.ContainerStatuses)
		}
		return err
	})
	s.WaitReady("edge1", true)
	s.Check(s.same("edge1", now))
}

// TestIsland_13: kubectl on the device, while the link is cut: get, describe, events and watch.
func TestIsland_13_KubectlOnTheDeviceWhileCut(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := s.pod(ns, "seen", "edge1")
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"get", "nodes", "-o", "wide"}, []string{"NAME", "edge1", "v1."}},
		{[]string{"get", "pods", "-n", ns, "-o", "wide"}, []string{"READY", "seen", "1/1", "Running", pod.Status.PodIP}},
		{[]string{"get", "pod", "-n", ns, "seen", "-o", "yaml"}, []string{"uid: " + string(pod.UID)}},
		{[]string{"get", "pods", "-A", "-l", "app=seen", "-o", "name"}, []string{"pod/seen"}},
		{[]string{"describe", "pod", "-n", ns, "seen"}, []string{"skerry.local/sample:1", "Started", "Ready"}},
		{[]string{"get", "events", "-n", ns}, []string{"Started", "pod/seen"}},
		{[]string{"api-resources"}, []string{"pods", "configmaps"}},
	} {
		out := s.EdgeKubectl("edge1", c.args...)
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("kubectl %s lacks %q:\n%s", strings.Join(c.args, " "), w, out)
			}
		}
	}
	// A watch shows the kubelet's report, here of a crash.
	ctx, stop := context.WithCancel(t.Context())
	watch := exec.CommandContext(ctx, filepath.Join(s.Root, "bin", "trial"), "edge", "edge1", "kubectl", "get", "pods", "-n", ns, "--watch", "--no-headers")
	watch.Env = append(os.Environ(), "TRIAL_DIR="+s.Dir)
	watch.WaitDelay = 5 * time.Second
	out, err := watch.StdoutPipe()
	s.Check(err)
	s.Check(watch.Start())
	defer func() {
		stop()
		_ = watch.Wait() // it was killed
	}()
	var seen []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		seen = append(seen, lines.Text())
		if len(seen) == 1 {
			go s.post(pod, "/crash")
		}
		if fields := strings.Fields(lines.Text()); len(fields) > 3 && fields[1] == "1/1" && fields[3] == "1" {
			break // Ready again after one restart
		}
	}
	if len(seen) < 2 {
		t.Errorf("the watch showed no restart: %q", seen)
	}
	// A resource that is not held, and can't be fetched now, is no empty list.
	if out, err := s.TryEdgeKubectl(t.Context(), "edge1", "get", "deployments", "-n", ns); err == nil {
		t.Errorf("deployments without a link: %q", out)
	}
}

// settle waits for the traffic of a new link, and for silence after it.
func (s *system) settle(node string) {
	s.T.Helper()
	s.WaitReady(node, true)
	s.waitLinked(node)
	s.waitDelivered(node)
	last, quiet := s.linkBytes(node), 0
	s.WaitFor("silence on the link", func(context.Context) error {
		now := s.linkBytes(node)
		if now-last < 512 { // keepalives continue
			quiet++
		} else {
			quiet = 0
		}
		last = now
		if quiet < 4 {
			return errors.New("there is traffic")
		}
		return nil
	})
}

// linkBytes is the traffic of a node's uplink, both ways, everything included.
func (s *system) linkBytes(node string) int64 {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	links, err := h.Netlink()
	s.Check(err)
	defer links.Close()
	wan, err := links.LinkByName("wan0")
	s.Check(err)
	counted := wan.Attrs().Statistics
	return int64(counted.RxBytes + counted.TxBytes)
}

// reconnect cuts and heals a node's uplink and returns how many bytes crossed it until all was
// quiet again: the lesser of two, as a periodic report may fall into one.
func (s *system) reconnect(node string) int64 {
	s.T.Helper()
	var least int64
	for range 2 {
		s.settle(node)
		s.Cut(node)
		s.waitUnlinked(node)
		before := s.linkBytes(node)
		s.Heal(node)
		s.settle(node)
		if n := s.linkBytes(node) - before; least == 0 || n < least {
			least = n
		}
	}
	return least
}

// TestIsland_15: a pod uses 500 ConfigMaps, all unchanged: the bytes to be in step again after a
// cut are those for 50.
func TestIsland_15_ConstantBytesOnReconnect(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	use := func(name string, first, count int) {
		var objects, sources strings.Builder
		for i := first; i < first+count; i++ {
			fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%03d}\ndata: {k%03d: %s}\n", i, i, strings.Repeat("v", 200))
			fmt.Fprintf(&sources, "      - configMap: {name: c%03d}\n", i)
		}
		s.Apply(ns, objects.String())
		s.Apply(ns, islander(name, "edge1")+"    volumeMounts: [{name: all, mountPath: /config}]\n  volumes:\n  - name: all\n    projected:\n      sources:\n"+sources.String())
		s.WaitPods(ns, "app="+name, "edge1", 1)
	}
	use("fifty", 0, 50)
	few := s.reconnect("edge1")
	use("many", 50, 450)
	many := s.reconnect("edge1")
	// An attempt over the other transport, or a report that was due, may fall into each of them:
	// the cost of the objects is in every one.
	for range 6 {
		if many > few+2048 {
			many = min(many, s.reconnect("edge1"))
		}
	}
	t.Logf("bytes of a reconnect, everything on the wire: %d with 50 ConfigMaps, %d with 500", few, many)
	// 450 names alone would be some 2 kB, and 450 digests 7 kB.
	if many > few+2048 {
		t.Errorf("a reconnect takes %d bytes with 50 ConfigMaps and %d with 500", few, many)
	}
}

// TestIsland_11: two replicas of cloudcore behind one address. The one that serves the node is
// killed under load and stays away: the edge moves over. Then both are restarted in turn, again
// under load. No write is lost, and the last session is the one that the Lease names.
func TestIsland_11_EdgeMovesToTheOtherReplica(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	pod := s.pod(s.Namespace(), "moves", "edge1")
	before := s.Containers("edge1")
	serving := func() string {
		d, err := s.deviceStatus(t.Context(), "edge1")
		s.Check(err)
		for _, replica := range options().Replicas() {
			if strings.HasPrefix(d.Link.Instance, replica+"-") {
				return replica
			}
		}
		t.Fatalf("no replica is called %q", d.Link.Instance)
		return ""
	}
	s.waitLinked("edge1")
	first := serving()
	f := s.flood(pod)
	wait := f.in(2000)
	f.waitFor(100)
	s.Kill(first, "cloudcore")
	s.WaitFor("the edge to move over", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, "edge1")
		if err == nil && (!d.Link.Linked || strings.HasPrefix(d.Link.Instance, first+"-")) {
			err = fmt.Errorf("linked: %t, to %s", d.Link.Linked, d.Link.Instance)
		}
		return err
	})
	wait()
	f.waitArrived()
	s.Start(first, "cloudcore")

	wait = f.in(2000)
	for _, replica := range options().Replicas() {
		s.Check(s.Trial.Stop(t.Context(), replica, "cloudcore"))
		s.Start(replica, "cloudcore")
	}
	wait()
	f.waitArrived()
	s.WaitReady("edge1", true)
	s.Check(s.same("edge1", before))

	s.WaitFor("the Lease to name the session", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, "edge1")
		if err != nil {
			return err
		}
		l, err := s.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, "edge1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := l.Annotations["skerry.io/epoch"]; got != fmt.Sprint(d.Link.Epoch) {
			return fmt.Errorf("it names %s, the device has %d", got, d.Link.Epoch)
		}
		if age := time.Since(l.Spec.RenewTime.Time); age > time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second {
			return fmt.Errorf("it was renewed %v ago", age)
		}
		return nil
	})
}
