package join_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// holding is a way to a server that holds all connections until they are let go.
func holding(t *testing.T, server string) (address string, waits <-chan struct{}, letGo func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	came, free := make(chan struct{}, 64), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came <- struct{}{}
			go func() {
				defer c.Close()
				select {
				case <-free:
				case <-ctx.Done():
					return
				}
				up, err := new(net.Dialer).DialContext(ctx, "tcp", server)
				if err != nil {
					return
				}
				defer up.Close()
				go func() { _, _ = up.(*net.TCPConn).ReadFrom(c); _ = up.(*net.TCPConn).CloseWrite() }()
				_, _ = c.(*net.TCPConn).ReadFrom(up)
			}()
		}
	}()
	return l.Addr().String(), came, func() { close(free) }
}

// TestHostile_13_TokenFromStdinIsNotInPS: while `edgecore join --token-file -` runs, in the middle
// of its handshake, no information that a user of the machine can read of any process has the
// token: not the list of processes, not their environments. On the command line it can be seen,
// which shows that the check works.
func TestHostile_13_TokenFromStdinIsNotInPS(t *testing.T) {
	s := newSystem(t)
	for name, tc := range map[string]struct {
		arguments func(token string) (args []string, in string)
		seen      bool
	}{
		"by standard input":   {func(token string) ([]string, string) { return []string{"--token-file", "-"}, token + "\n" }, false},
		"on the command line": {func(token string) ([]string, string) { return []string{"--token", token}, "" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			token := s.token(t)
			_, rest, _ := strings.Cut(token, ".")
			secret, _, _ := strings.Cut(rest, "@")
			config, identity := device(t)
			address, waits, letGo := holding(t, s.join)
			args, in := tc.arguments(token)
			join := exec.CommandContext(t.Context(), s.edgecore, append([]string{"join", "--config", config, "--node-name", fmt.Sprintf("edge-ps-%t", tc.seen), address}, args...)...)
			var said bytes.Buffer
			join.Stdin, join.Stdout, join.Stderr = strings.NewReader(in), &said, &said
			if err := join.Start(); err != nil {
				t.Fatal(err)
			}
			<-waits
			list, err := exec.CommandContext(t.Context(), "ps", "-e", "-ww", "-o", "pid=,args=").Output()
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(list), strconv.Itoa(join.Process.Pid)+" "+s.edgecore+" join") {
				t.Errorf("ps does not show the join:\n%s", list)
			}
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", join.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			if seen := bytes.Contains(append(list, environment...), []byte(secret)); seen != tc.seen {
				t.Errorf("the token's secret can be seen: %t, want %t", seen, tc.seen)
			}
			letGo()
			if err := join.Wait(); err != nil {
				t.Errorf("%v: %s", err, said.String())
			}
			if found := filesWith(t, filepath.Dir(filepath.Dir(identity)), secret); len(found) > 0 || strings.Contains(said.String(), secret) {
				t.Errorf("the secret is in %v, or was printed: %s", found, said.String())
			}
		})
	}
}

// filesWith are the files below a directory that hold any of some strings.
func filesWith(t *testing.T, dir string, wanted ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, w := range wanted {
			if bytes.Contains(content, []byte(w)) {
				found = append(found, strings.TrimPrefix(path, dir+"/")+" has "+w[:min(len(w), 40)])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

const deviceAtWork = `apiVersion: config.skerry.io/v1alpha1
kind: EdgeCore
dataDir: %[1]s/data
health: {listen: ""}
modules:
  edgeHub: {transport: websocket, websocket: {port: %[2]s}, backoffMin: 200ms, backoffMax: 2s}
  edged: {enable: false, reportEvent: true}
  edgeAPI: {socket: "%[1]s/edge.sock", listen: "127.0.0.1:0", pods: false}
  route: {enable: false}
  vip: {enable: false, keepalived: {runDir: "%[1]s/keepalived"}}
  drain: {enable: false}
`

// deviceOf is a device by its files, with the stand-in for its kubelet.
type deviceOf struct {
	dir, config, socket string
	machine             string // its hardware's ID; "": this machine's
	kubelet             kubernetes.Interface
}

func newDevice(t *testing.T) *deviceOf {
	t.Helper()
	d := &deviceOf{dir: t.TempDir()}
	d.config = filepath.Join(d.dir, "edgecore.yaml")
	short, err := os.MkdirTemp("", "device-") // a socket's name has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	d.socket = filepath.Join(short, "kubelet.sock")
	if d.kubelet, err = kubernetes.NewForConfig(&rest.Config{
		Host: "http://device", QPS: -1, UserAgent: "kubelet",
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.socket)
		},
	}); err != nil {
		t.Fatal(err)
	}
	return d
}

// configure leads the device to a cloudcore, by the servers that its join found or by others.
func (d *deviceOf) configure(t *testing.T, websocket string, servers ...string) {
	t.Helper()
	_, port, err := net.SplitHostPort(websocket)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(fmt.Sprintf(deviceAtWork, d.dir, port), d.dir+"/edge.sock", filepath.Join(filepath.Dir(d.socket), "edge.sock"))
	if d.machine != "" {
		text = strings.Replace(text, "edgeHub: {", "edgeHub: {machineID: "+d.machine+", ", 1)
	}
	if len(servers) > 0 {
		text = strings.Replace(text, "edgeHub: {", "edgeHub: {servers: ["+strings.Join(servers, ", ")+"], ", 1)
	}
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// work runs the device in its cluster until stop.
func (d *deviceOf) work(t *testing.T, programs []string) (stop func()) {
	t.Helper()
	// In this machine's network, since loopback leads to cloudcore: it is configured to make no
	// change in the kernel.
	child, err := process.Start(process.Spec{Path: programs[2], Args: []string{"--config", d.config, "--socket", d.socket}, Log: filepath.Join(d.dir, "log"), Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		if err := child.Stop(context.Background(), 30*time.Second); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// gives makes the cluster give the device a pod with a Secret and a ConfigMap, and waits until the
// device has them.
func (d *deviceOf) gives(t *testing.T, s *system, node, marker string) (namespace string) {
	t.Helper()
	admin := s.plane.Client()
	ns := s.plane.Namespace(t)
	if _, err := admin.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret-" + marker}, StringData: map[string]string{"k": "value-" + marker}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-" + marker}, Data: map[string]string{"k": "setting-" + marker}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The policies of pods may not be served yet, and the node not be registered.
	cluster.Eventually(t, "the node to be registered", func(ctx context.Context) error {
		_, err := d.kubelet.CoreV1().Nodes().Create(ctx, edgeNode(node), metav1.CreateOptions{})
		if _, there := admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); there == nil {
			return nil
		}
		return errors.Join(err, errors.New("not yet"))
	})
	from := func(name string) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "secret-" + name}}},
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config-" + name}}},
		}
	}
	if _, err := admin.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-" + marker},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none:1", EnvFrom: from(marker)}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "the device to have the pod and what it needs", func(ctx context.Context) error {
		return d.has(ctx, node, ns, marker)
	})
	return ns
}

// has returns why the device does not have its pod and what that needs.
func (d *deviceOf) has(ctx context.Context, node, namespace, marker string) error {
	pods, err := d.kubelet.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Name != "pod-"+marker {
		return errors.Join(err, errors.New("not its pod alone"))
	}
	w, err := d.kubelet.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	defer w.Stop()
	secret, err := d.kubelet.CoreV1().Secrets(namespace).Get(ctx, "secret-"+marker, metav1.GetOptions{})
	if err == nil && string(secret.Data["k"]) != "value-"+marker {
		err = errors.New("another Secret")
	}
	if err != nil {
		return err
	}
	_, err = d.kubelet.CoreV1().ConfigMaps(namespace).Get(ctx, "config-"+marker, metav1.GetOptions{})
	return err
}

// TestHostile_13_ResetLeavesNothingOfTheOldCluster: after `edgecore reset` a device joins another
// cluster, real as the first, under another name. Its files have no data of the first, and its API
// shows no object of it.
func TestHostile_13_ResetLeavesNothingOfTheOldCluster(t *testing.T) {
	first := newSystem(t)
	second := newSystemAt(t, cluster.Run(t))
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	d := newDevice(t)
	joins := func(s *system, node string) {
		t.Helper()
		d.configure(t, s.websocket)
		if _, errs, code := s.edge(t, d.config, s.token(t), node, s.join); code != 0 {
			t.Fatalf("edgecore join: %d: %s", code, errs)
		}
	}

	joins(first, "edge-of-the-first")
	stop := d.work(t, programs)
	d.gives(t, first, "edge-of-the-first", "of-the-first")
	stop()
	ca, err := os.ReadFile(filepath.Join(d.dir, "data", "identity", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(d.dir, "data", "store.key"))
	if err != nil {
		t.Fatal(err)
	}
	old := []string{"of-the-first", strings.TrimSpace(string(ca)), strings.TrimSpace(string(key)), first.join}
	before := filesWith(t, filepath.Join(d.dir, "data"), old...)
	for _, w := range old {
		if !strings.Contains(strings.Join(before, "\n"), w[:min(len(w), 40)]) {
			t.Fatalf("%s is not there to begin with: %v", w, before)
		}
	}

	// In a network of its own: reset undoes edgecore's changes in the kernel.
	if out, errs, code := run(t, "unshare", "--net", "--", first.edgecore, "reset", "--config", d.config, "--yes"); code != 0 {
		t.Fatalf("edgecore reset: %d: %s%s", code, out, errs)
	}
	if left, err := os.ReadDir(filepath.Join(d.dir, "data")); err != nil || len(left) > 0 {
		t.Errorf("reset left %v, %v", left, err)
	}

	joins(second, "edge-of-the-second")
	stop = d.work(t, programs)
	d.gives(t, second, "edge-of-the-second", "of-the-second")
	for _, list := range []func() (any, error){
		func() (any, error) {
			return d.kubelet.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=edge-of-the-second"})
		},
		func() (any, error) {
			return d.kubelet.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=edge-of-the-second"})
		},
	} {
		if all, err := list(); err != nil || strings.Contains(fmt.Sprint(all), "of-the-first") {
			t.Errorf("the device shows %v, %v", all, err)
		}
	}
	stop()
	if found := filesWith(t, filepath.Join(d.dir, "data"), old...); len(found) > 0 {
		t.Errorf("of the first cluster there is: %v", found)
	}
	if found := filesWith(t, filepath.Join(d.dir, "data"), "of-the-second"); len(found) == 0 {
		t.Error("the second cluster is not in the files either: nothing can be found there")
	}
}

// TestRightsOfDevices: a device has a device's rights from its join to its revocation.
func TestRightsOfDevices(t *testing.T) {
	plane := cluster.Shared(t)
	s := newSystem(t)
	allowed := func(ctx context.Context) (bool, error) {
		review, err := plane.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:node:edge-righteous", Groups: []string{"system:nodes", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "skerry.io", Version: "v1alpha1", Resource: "nodeoperations", Verb: "list"},
		}}, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return review.Status.Allowed, nil
	}
	want := func(when string, want bool) {
		t.Helper()
		cluster.Eventually(t, when, func(ctx context.Context) error {
			if got, err := allowed(ctx); err != nil || got != want {
				return errors.Join(err, fmt.Errorf("allowed: %t", got))
			}
			return nil
		})
	}
	if got, err := allowed(t.Context()); err != nil || got {
		t.Errorf("before it has joined: %t, %v", got, err)
	}
	s.mustJoin(t, s.token(t), "edge-righteous")
	want("the rights of a device that has joined", true)
	plane.Apply(t, "manifests/cloudcore") // as an upgrade does
	want("its rights after the manifests were applied again", true)
	if _, errs, code := run(t, s.cloudcore, "node", "revoke", "--kubeconfig", plane.Kubeconfig, "edge-righteous"); code != 0 {
		t.Fatal(errs)
	}
	want("no rights after its revocation", false)
}
