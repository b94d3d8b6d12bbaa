package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// deviceShell makes a directory with the program kubectl, the trial's, and returns the environment
// of a person at work on a device.
func (s *system) deviceShell() []string {
	s.T.Helper()
	dir := s.T.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nTRIAL_EDGE=1 exec %s kubectl \"$@\"\n", filepath.Join(s.Root, "bin", "trial"))
	s.Check(os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o755))
	for d := dir; d != "/"; d = filepath.Dir(d) { // others than root get at it
		s.Check(os.Chmod(d, 0o755|os.ModeSticky))
		if filepath.Dir(d) == os.TempDir() {
			break
		}
	}
	return append(os.Environ(), "HOME="+dir, "TERM=dumb", "PATH="+dir+":"+os.Getenv("PATH"))
}

// onDevice runs edgecore on a host with an environment, and returns its two outputs and
// its exit code.
func (s *system) onDevice(ctx context.Context, host string, env []string, in io.Reader, args ...string) (out, errs string, code int) {
	s.T.Helper()
	var o, e bytes.Buffer
	code, err := s.Trial.Exec(ctx, host, trial.Streams{In: in, Out: &o, Err: &e}, env, filepath.Join(s.Root, "bin", "edgecore"), args...)
	s.Check(err)
	return o.String(), e.String(), code
}

// A device without a link, and root of the device with edgecore's commands alone.
func TestOperate_09_StreamsOfTheDeviceOffline(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	env := s.deviceShell()
	ns := s.Namespace()
	s.Apply(ns, samplePod("local", "edge1"))
	pod := s.WaitPods(ns, "app=local", "edge1", 1)[0]
	s.Cut("edge1")

	// The refusal in the cloud names the command.
	s.refused("logs in the cloud to name the way", []string{"skerry", "logs", "-n", ns, "local"}, []string{"its logs are on the device: edgecore kubectl logs"})

	root := func(args ...string) string {
		t.Helper()
		out, errs, code := s.onDevice(t.Context(), "edge1", env, nil, append([]string{"kubectl"}, args...)...)
		if code != 0 {
			t.Fatalf("edgecore kubectl %s: %d: %s%s", strings.Join(args, " "), code, out, errs)
		}
		return out
	}
	if out := root("get", "pods", "-n", ns); !strings.Contains(out, "local") || !strings.Contains(out, "Running") {
		t.Errorf("get pods: %s", out)
	}
	if out := root("logs", "-n", ns, "local"); !strings.Contains(out, "listening on") {
		t.Errorf("logs: %q", out)
	}
	s.followsOffline(env, ns, "local")

	// exec: its output, its exit code, its input, and a terminal, which ends lines by CR LF.
	if out := root("exec", "-n", ns, "local", "--", "/app", "get", "http://127.0.0.1:8080/healthz"); out != "ok\n" {
		t.Errorf("exec: %q", out)
	}
	if _, errs, code := s.onDevice(t.Context(), "edge1", env, nil, "kubectl", "exec", "-n", ns, "local", "--", "/app", "nonsense"); code != 1 || !strings.Contains(errs, "exit code 1") {
		t.Errorf("exec of what fails: %d: %s", code, errs)
	}
	terminal := s.terminal(env, filepath.Join(s.Root, "bin", "edgecore")+" kubectl exec -it -n "+ns+" local -- /app get http://127.0.0.1:8080/healthz")
	if !strings.Contains(terminal, "ok\r\n") {
		t.Errorf("exec -it: %q", terminal)
	}

	// cp, both ways.
	dir := t.TempDir()
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(content)
	s.Check(os.WriteFile(filepath.Join(dir, "there"), content, 0o600))
	root("cp", "-n", ns, filepath.Join(dir, "there"), "local:/tmp/there")
	if got := strings.TrimSpace(root("exec", "-n", ns, "local", "--", "/app", "sum", "/tmp/there")); got != fmt.Sprintf("%x", sha256.Sum256(content)) {
		t.Errorf("what arrived has the sum %s", got)
	}
	root("cp", "-n", ns, "local:/tmp/there", filepath.Join(dir, "back"))
	back, err := os.ReadFile(filepath.Join(dir, "back"))
	if s.Check(err); !bytes.Equal(back, content) {
		t.Errorf("what came back has %d bytes, and they are others", len(back))
	}
	s.forwardsOffline(env, ns, "local")

	// Events, also of a device whose edgecore is stopped.
	if out, errs, code := s.onDevice(t.Context(), "edge1", env, nil, "events", "-n", ns); code != 0 || !strings.Contains(out, "Started") || !strings.Contains(out, ns+"/Pod/local") {
		t.Errorf("events: %d: %s%s", code, out, errs)
	}
	s.refusedToOthers(env, ns)
	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore"))
	if out, errs, code := s.onDevice(t.Context(), "edge1", env, nil, "events", "-n", ns); code != 0 || !strings.Contains(out, "Started") {
		t.Errorf("events of a stopped edgecore: %d: %s%s", code, out, errs)
	}
	s.Start("edge1", "edgecore")
	s.Heal("edge1")
	s.WaitFor("the page of the pod", func(ctx context.Context) error { _, err := s.Page(ctx, pod); return err })
}

// followsOffline is logs -f, and attach, whose output is the same.
func (s *system) followsOffline(env []string, ns, pod string) {
	s.T.Helper()
	for _, args := range [][]string{{"logs", "-f", "-n", ns, pod}, {"attach", "-n", ns, pod}} {
		ctx, stop := context.WithCancel(s.T.Context())
		r, w := io.Pipe()
		go func() {
			_, _ = s.Trial.Exec(ctx, "edge1", trial.Streams{Out: w, Err: w}, env, filepath.Join(s.Root, "bin", "edgecore"), append([]string{"kubectl"}, args...)...)
			_ = w.Close()
		}()
		lines := make(chan string, 1000)
		go func() {
			defer close(lines)
			for b := bufio.NewScanner(r); b.Scan(); {
				select {
				case lines <- b.Text():
				default:
				}
			}
		}()
		s.WaitFor("a line that is written now to come through "+args[0], func(ctx context.Context) error {
			_, _, _ = s.onDevice(ctx, "edge1", env, nil, "kubectl", "exec", "-n", ns, pod, "--", "/app", "get", "http://127.0.0.1:8080/from-"+args[0])
			for {
				select {
				case line, ok := <-lines:
					if strings.Contains(line, "GET /from-"+args[0]) {
						return nil
					}
					if !ok {
						return errors.New("it has ended")
					}
				default:
					return errors.New("not yet")
				}
			}
		})
		stop()
		_ = r.Close()
	}
}

// terminal runs a command line on edge1 in a terminal of its own.
func (s *system) terminal(env []string, line string) string {
	s.T.Helper()
	var out bytes.Buffer
	code, err := s.Trial.Exec(s.T.Context(), "edge1", trial.Streams{Out: &out, Err: &out}, env, "script", "--quiet", "--return", "--command", line, "/dev/null")
	if s.Check(err); code != 0 {
		s.T.Errorf("%s in a terminal: %d: %s", line, code, out.String())
	}
	return out.String()
}

// forwardsOffline is port-forward on the device.
func (s *system) forwardsOffline(env []string, ns, pod string) {
	s.T.Helper()
	ctx, stop := context.WithCancel(s.T.Context())
	defer stop()
	r, w := io.Pipe()
	go func() {
		_, _ = s.Trial.Exec(ctx, "edge1", trial.Streams{Out: w, Err: w}, env, filepath.Join(s.Root, "bin", "edgecore"), "kubectl", "port-forward", "-n", ns, pod, ":8080")
		_ = w.Close()
	}()
	defer r.Close()
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`)
	b := bufio.NewScanner(r)
	for b.Scan() {
		address := at.FindString(b.Text())
		if address == "" {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		h, err := s.Trial.Host("edge1")
		s.Check(err)
		res, err := (&http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}, Timeout: time.Minute}).Get("http://" + address + "/healthz")
		s.Check(err)
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "ok\n" {
			s.T.Errorf("through the forwarded port: %v: %q", err, body)
		}
		return
	}
	s.T.Error("port-forward ended without an address")
}

// refusedToOthers: neither another user of the device nor a pod gets a stream.
func (s *system) refusedToOthers(env []string, ns string) {
	s.T.Helper()
	var out bytes.Buffer
	code, err := s.Trial.Exec(s.T.Context(), "edge1", trial.Streams{Out: &out, Err: &out}, env, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		filepath.Join(s.Root, "bin", "edgecore"), "kubectl", "logs", "-n", ns, "local")
	if s.Check(err); code != 1 || !strings.Contains(out.String(), "only root of this device may use its API") {
		s.T.Errorf("another user: %d: %s", code, out.String())
	}
	for _, user := range []string{"0", "65534"} { // even root needs the certificate, and no other user has it
		out.Reset()
		_, err = s.Trial.Exec(s.T.Context(), "edge1", trial.Streams{Out: &out, Err: &out}, env, "setpriv", "--reuid="+user, "--clear-groups",
			"curl", "-sk", "--max-time", "20", "https://127.0.0.1:10550/api/v1/namespaces/"+ns+"/pods/local/log")
		if s.Check(err); !strings.Contains(out.String(), `"code":401`) && !strings.Contains(out.String(), `"code": 401`) {
			s.T.Errorf("user %s without a certificate: %s", user, out.String())
		}
	}
	out.Reset()
	code, err = s.Trial.Exec(s.T.Context(), "edge1", trial.Streams{Out: &out, Err: &out}, env, "setpriv", "--reuid=65534", "--clear-groups",
		"curl", "-s", "--max-time", "20", "--unix-socket", "/run/skerry/edge.sock", "http://edge/api/v1/namespaces/"+ns+"/pods/local/log")
	if s.Check(err); code == 0 {
		s.T.Errorf("another user at the socket: %s", out.String())
	}
	if out := s.onHost("edge1", "curl", "-s", "--max-time", "20", "--unix-socket", "/run/skerry/edge.sock", "http://edge/api/v1/namespaces/"+ns+"/pods/local/log"); !strings.Contains(out, "listening on") {
		s.T.Errorf("root at the socket: %s", out)
	}
	if out := s.onHost("edge1", "curl", "-s", "--max-time", "20", "--unix-socket", "/run/skerry/edge.sock", "-H", "Authorization: Bearer x.y.z",
		"http://edge/api/v1/namespaces/"+ns+"/pods/local/log"); strings.Contains(out, "listening on") {
		s.T.Errorf("a token at the socket: %s", out)
	}
}

// The log of the host, through the link, for a user that may read it.
func TestOperate_16_NodeLogQueryThroughTheLink(t *testing.T) {
	s := newSystem(t)
	s.Check(os.WriteFile(s.path("edge1", "/var/log/operate16.log"), []byte("the fan stands still\n"), 0o644))
	t.Cleanup(func() { _ = os.Remove(s.path("edge1", "/var/log/operate16.log")) })
	const path = "/api/v1/nodes/edge1/proxy/logs/?query=operate16"
	if out := s.Kubectl("get", "--raw", path); !strings.Contains(out, "the fan stands still") {
		t.Errorf("the administrator reads %q", out)
	}
	// As Kubernetes' RBAC allows: nodes/proxy, no less.
	roles, bindings := s.Client.RbacV1().ClusterRoles(), s.Client.RbacV1().ClusterRoleBindings()
	_, err := roles.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "operate-16"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	s.Check(err)
	t.Cleanup(func() { _ = roles.Delete(context.WithoutCancel(t.Context()), "operate-16", metav1.DeleteOptions{}) })
	if out, err := s.Run(t.Context(), "kubectl", "--as", "stranger", "get", "--raw", path); err == nil || !strings.Contains(err.Error(), "nodes/proxy") && !strings.Contains(err.Error(), "orbidden") {
		t.Errorf("a stranger: %v: %s", err, out)
	}
	_, err = bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operate-16"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "operate-16"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
	}, metav1.CreateOptions{})
	s.Check(err)
	t.Cleanup(func() { _ = bindings.Delete(context.WithoutCancel(t.Context()), "operate-16", metav1.DeleteOptions{}) })
	s.WaitFor("the one who may to read it", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "--as", "stranger", "get", "--raw", path)
		if err != nil || !strings.Contains(out, "the fan stands still") {
			return fmt.Errorf("got %w: %s", err, out)
		}
		return nil
	})
}
