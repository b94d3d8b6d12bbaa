package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// TestClaims_17_RestoredClusterHearsEverythingAgain: etcd's data is put back to a copy in which no
// device had reported yet of a StaticRoute, a virtual IP and an operation that has ended since. All
// three have their reports again.
func TestClaims_17_RestoredClusterHearsEverythingAgain(t *testing.T) {
	s := newSystem(t)
	s.drains()
	edges := []string{"edge1", "edge2"}
	for _, n := range edges {
		s.Cut(n)
	}
	for _, n := range edges {
		s.WaitReady(n, false)
	}
	s.staticRoute("fresh", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.makeShop("sample", "sample")
	s.Apply("default", nodeOperation("fresh", "edge1", "ImageUpdate", `, image: "/var/lib/skerry/none.img@0"`))
	s.WaitFor("the virtual IP to be there", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "get", "virtualip", shopVIP)
		return err
	})
	dir := s.path("cloud", "/var/lib/kubeplane")
	plane := func(do func() error) {
		t.Helper()
		s.Check(s.Trial.Stop(t.Context(), "cloud", "kubeplane"))
		s.Check(do())
		s.Start("cloud", "kubeplane")
	}
	var copied cluster.Backup
	plane(func() (err error) { copied, err = cluster.CopyEtcd(dir); return err })
	defer func() { s.Check(cluster.RemoveBackup(copied)) }()
	for _, n := range edges {
		s.Heal(n)
	}
	reported := func() {
		t.Helper()
		s.waitStaticRoute("fresh", "2/2 True Applied edge1,edge2")
		s.waitShop(2)
		s.waitOperation("fresh", "done", isDone("PrefetchFailed"))
	}
	reported()
	epochs := map[string]uint64{}
	for _, n := range edges {
		s.waitLinked(n)
		d, err := s.deviceStatus(t.Context(), n)
		s.Check(err)
		epochs[n] = d.Link.Epoch
	}
	plane(func() error { return cluster.PutEtcd(dir, copied) })
	s.WaitFor("the cluster to answer as it was", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "get", "nodeoperation", "fresh")
		return err
	})
	reported()
	for n, epoch := range epochs {
		if d, err := s.deviceStatus(t.Context(), n); err != nil || d.Link.Epoch != epoch {
			t.Logf("the link of %s was opened again: epoch %d, then %d, %v", n, epoch, d.Link.Epoch, err)
		}
	}
}

// TestClaims_18_EmptyStoreIsNamedAsLoss: the store of a device that is cut off becomes empty, and
// then goes: the status names each as a loss, pods stay, and all comes again with a link.
func TestClaims_18_EmptyStoreIsNamedAsLoss(t *testing.T) {
	s := newSystem(t)
	before := s.Containers("edge1")
	for how, lose := range map[string]func(string) error{"empty": func(f string) error { return os.Truncate(f, 0) }, "gone": os.Remove} {
		s.Cut("edge1")
		s.Kill("edge1", "edgecore")
		s.Check(lose(s.path("edge1", storeFile)))
		s.Start("edge1", "edgecore")
		s.WaitFor("the loss of a store that is "+how+" to be named", func(ctx context.Context) error {
			out, _, complaint := s.edgecore("edge1", "status")
			if !strings.Contains(out, "lost") {
				return errors.New(out + complaint)
			}
			return nil
		})
		s.Check(s.same("edge1", before))
		s.Heal("edge1")
		s.WaitReady("edge1", true)
		s.waitLinked("edge1")
	}
	s.WaitPods("sample", "app=sample", "edge1", 1)
	s.waitKept("edge1")
	s.Check(s.same("edge1", before))
}

// TestClaims_21_DeletedPodWithAFinalizerStaysVisible: a pod that somebody holds by a finalizer is
// deleted. Its containers end, and the device's own API shows it, with a link and without, until
// the finalizer is taken away.
func TestClaims_21_DeletedPodWithAFinalizerStaysVisible(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := s.pod(ns, "held", "edge1")
	pods := s.Client.CoreV1().Pods(ns)
	finalizers := func(list string) {
		t.Helper()
		_, err := pods.Patch(context.WithoutCancel(t.Context()), pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	finalizers(`["example.com/held"]`)
	defer finalizers("null")
	s.WaitFor("the device to know the finalizer", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", ns, pod.Name, "-o", "jsonpath={.metadata.finalizers}")
		if err == nil && !strings.Contains(out, "example.com/held") {
			err = errors.New(out)
		}
		return err
	})
	s.Check(pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	phase := func(ctx context.Context) (string, error) {
		return s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", ns, pod.Name, "-o", "jsonpath={.status.phase} {.metadata.deletionTimestamp}")
	}
	s.WaitFor("its containers to end", func(ctx context.Context) error {
		out, err := phase(ctx)
		if apierrors.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "NotFound") {
			t.Fatalf("the device does not show it: %v", err)
		}
		if err == nil && (strings.HasPrefix(out, "Running") || !strings.Contains(out, "T")) {
			err = errors.New(out)
		}
		return err
	})
	s.WaitFor("the cluster to know that too", func(ctx context.Context) error {
		p, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && p.Status.Phase == "Running" {
			err = errors.New("it runs")
		}
		return err
	})
	s.Cut("edge1")
	if out, err := phase(t.Context()); err != nil {
		t.Errorf("without a link the device does not show it: %s %v", out, err)
	}
	s.Heal("edge1")
	s.waitLinked("edge1")
	if out, err := phase(t.Context()); err != nil {
		t.Errorf("with a new link the device does not show it: %s %v", out, err)
	}
	finalizers("null")
	s.WaitFor("it to go", func(ctx context.Context) error {
		if out, err := phase(ctx); err == nil {
			return errors.New(out)
		}
		return nil
	})
}

// TestClaims_22_PathThatDropsLargePackets: a router on the way drops packets of more than 1,200
// bytes, both ways, without a word. The device links all the same, by small TCP segments, and names
// the cause.
func TestClaims_22_PathThatDropsLargePackets(t *testing.T) {
	s := newSystem(t)
	const rules = "table ip hole { chain forward { type filter hook forward priority -10; policy accept; iifname \"up1\" meta length > 1200 drop; oifname \"up1\" meta length > 1200 drop; }; }"
	for host, device := range map[string]string{"edge1": "wan0", "cloud": "eth0", "cloud2": "eth0"} { // else the kernel sends several segments as one
		s.onHost(host, "ip", "link", "set", device, "gso_max_segs", "1")
		defer s.onHostIn(context.WithoutCancel(t.Context()), host, "ip", "link", "set", device, "gso_max_segs", "65535")
	}
	s.onHost("router", "sh", "-c", "echo '"+rules+"' | nft -f -")
	defer func() {
		s.onHostIn(context.WithoutCancel(t.Context()), "router", "nft", "delete", "table", "ip", "hole")
	}()
	s.Cut("edge1") // a new link, not the one that is open
	s.WaitReady("edge1", false)
	s.Heal("edge1")
	s.WaitFor("the path's limit to be named", func(context.Context) error {
		log, err := os.ReadFile(s.Trial.LogPath("edge1", "edgecore"))
		if err == nil && !strings.Contains(string(log), "large packets may be lost on the way (its MTU)") {
			err = errors.New("the log has no word of it")
		}
		return err
	})
	s.waitLinked("edge1")
	s.WaitReady("edge1", true)
	// More than one packet's worth comes down.
	ns := s.Namespace()
	s.Apply(ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: large}\ndata: {v: "+strings.Repeat("x", 100_000)+"}\n---\n"+
		samplePod("reads", "edge1")+"    envFrom: [{configMapRef: {name: large, optional: true}}]\n    volumeMounts: [{name: v, mountPath: /v}]\n  volumes: [{name: v, configMap: {name: large}}]\n")
	s.WaitPods(ns, "app=reads", "edge1", 1)
}

// onHostIn is onHost for the end of a test.
func (s *system) onHostIn(ctx context.Context, host, command string, args ...string) {
	s.T.Helper()
	if _, err := s.Run(ctx, append([]string{"exec", host, "--", command}, args...)...); err != nil {
		s.T.Error(err)
	}
}

// TestClaims_15_PageOpensNoStreamThroughAProxy: an administrator runs `kubectl proxy`, and a web
// page asks it for a stream into a pod of a device, by WebSocket, which needs no permission of the
// page that answers. kubectl itself, which names no origin, gets its stream by the same proxy.
func TestClaims_15_PageOpensNoStreamThroughAProxy(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	address := s.proxy()
	path := "/apis/subresources.skerry.io/v1alpha1/namespaces/sample/pods/" + pod.Name + "/exec?command=id&stdout=true&container=" + pod.Spec.Containers[0].Name
	upgrade := func(ctx context.Context, origin string) (int, string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return 0, "", err
		}
		for key, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
		} {
			r.Header.Set(key, value)
		}
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		answer, err := (&http.Client{Timeout: 30 * time.Second}).Do(r)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		if answer.StatusCode == http.StatusSwitchingProtocols {
			return answer.StatusCode, "", nil
		}
		body, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return answer.StatusCode, string(body), err
	}
	s.WaitFor("a stream for who names no origin", func(ctx context.Context) error {
		code, body, err := upgrade(ctx, "")
		if err == nil && code != http.StatusSwitchingProtocols {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	for _, origin := range []string{"https://evil.example", "http://127.0.0.1:8001", "null"} {
		if code, body, err := upgrade(t.Context(), origin); err != nil || code != http.StatusForbidden {
			t.Errorf("a page of %s got %d %s, %v", origin, code, body, err)
		}
	}
}

// proxy runs `kubectl proxy` as the administrator, with what it refuses by default, until the test
// ends.
func (s *system) proxy() (address string) {
	s.T.Helper()
	address = cluster.FreeAddress(s.T, "tcp")
	_, port, err := net.SplitHostPort(address)
	s.Check(err)
	ctx, cancel := context.WithCancel(s.T.Context())
	ended := make(chan struct{})
	s.T.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		_, _ = s.Run(ctx, "kubectl", "proxy", "--address=127.0.0.1", "--port="+port)
	}()
	return "127.0.0.1:" + port
}

// TestClaims_39_ReadOnlyDiskAndStoppedProcess: the kernel meets an error of the file system that a
// device's data is on, and refuses writes from then on: the status names that, and the remedy, of
// the edgecore that runs, whose containers continue, and of one that can't start. One that is
// stopped by a signal is told from one that does not run.
func TestClaims_39_ReadOnlyDiskAndStoppedProcess(t *testing.T) {
	s := newSystem(t)
	s.realDisk("edge1")
	before := s.Containers("edge1")
	names := func(when string, words ...string) {
		t.Helper()
		s.WaitFor(when, func(context.Context) error {
			out, _, complaint := s.edgecore("edge1", "status")
			for _, w := range words {
				if !strings.Contains(out+complaint, w) {
					return errors.New(out + complaint)
				}
			}
			return nil
		})
	}
	s.Check(s.Trial.Signal(t.Context(), "edge1", "edgecore", syscall.SIGSTOP))
	names("a stopped process to be told from none", "does not answer")
	s.Check(s.Trial.Signal(t.Context(), "edge1", "edgecore", syscall.SIGCONT))
	s.waitLinked("edge1")
	s.onHost("edge1", "mount", "-o", "remount,abort", "/run/small") // as after an error: ext4(5)
	names("an edgecore that runs to name the disk", "PROBLEM", "is read-only", "fsck")
	s.Check(s.same("edge1", before))
	s.Kill("edge1", "edgecore")
	_ = s.Trial.Start(t.Context(), "edge1", "edgecore") // it can't
	names("an edgecore that can't start to name the disk", "is read-only")
	s.Check(s.same("edge1", before))
	if s.running("edge1", "edgecore") { // it tries for 30 s
		s.Kill("edge1", "edgecore")
	}
	s.onHost("edge1", "sh", "-c", "umount "+dataDir+" && umount /run/small && { e2fsck -p /run/small.img >/dev/null || [ $? = 1 ]; } && "+mountRealDisk+" && mount --bind /run/small "+dataDir)
	s.Start("edge1", "edgecore")
	s.WaitReady("edge1", true)
	s.Check(s.same("edge1", before))
}

// TestClaims_36_SlowAnswersCloseNoWatch: each read at kube-apiserver takes six seconds, for half a
// minute: no watch of a cloudcore is opened again, and its devices stay Ready.
func TestClaims_36_SlowAnswersCloseNoWatch(t *testing.T) {
	s := newSystem(t)
	proxy := s.faultProxy()
	edges := []string{"edge1", "edge2"}
	for _, n := range edges {
		s.waitLinked(n)
	}
	var mu sync.Mutex
	var opened []string // collections that cloudcore itself watches
	var latest = time.Now()
	var slow bool
	reads := 0
	proxy.Set(func(r *http.Request) faultproxy.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Method != http.MethodGet:
		case !faultproxy.Watch(r) && !slow:
		case !faultproxy.Watch(r):
			reads++
			return faultproxy.Fault{Delay: 6 * time.Second}
		case r.Header.Get("Impersonate-User") == "" && r.URL.Query().Get("fieldSelector") == "":
			opened, latest = append(opened, r.URL.Path), time.Now()
		}
		return faultproxy.Fault{}
	})
	// A cloudcore that has just started opens watches when devices declare interests.
	s.WaitFor("cloudcore to open no watch for ten seconds", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if age := time.Since(latest); age < 10*time.Second {
			return fmt.Errorf("the latest was opened %v ago", age.Round(time.Second))
		}
		slow, opened = true, nil
		return nil
	})
	s.lasts("devices are Ready", 30*time.Second, func() error {
		for _, n := range edges {
			node, err := s.Client.CoreV1().Nodes().Get(t.Context(), n, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				return errors.New(n + " is not")
			}
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	// A watch ends by itself after 5 to 10 minutes, and is opened again without a list: some of
	// them in half a minute, while a cloudcore that loses its watches opens all.
	if reads < 2 || len(opened) > 10 {
		t.Errorf("%d reads were slow, and watches were opened again: %v", reads, opened)
	}
}
