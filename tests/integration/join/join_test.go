// Package join_test tests which devices and users get in: the real cloudcore with exactly the
// rights of its manifests, the real edgecore, a real kube-apiserver.
package join_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

// launchClock is set where this program is started to run another one with another time of day.
const launchClock = "WRONGCLOCK_LAUNCH"

func TestMain(m *testing.M) {
	if os.Getenv(launchClock) != "" {
		code, err := wrongclock.Main(os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// programs are cloudcore and edgecore, brought up to date once.
var programs = sync.OnceValues(func() ([]string, error) {
	root, err := binary.Root()
	if err != nil {
		return nil, err
	}
	return binary.Build(context.Background(), root, "cloudcore", "edgecore", "hollowedge")
})

// system is a cloudcore at work.
type system struct {
	plane               *cluster.ControlPlane
	cloudcore, edgecore string
	join, websocket     string // addresses
	hollowedge          string
}

// newSystem starts it. change is made to its configuration of kube-apiserver.
func newSystem(t *testing.T, change ...func(*rest.Config)) *system {
	t.Helper()
	plane := cluster.Shared(t)
	return newSystemAt(t, plane, change...)
}

// newSystemAt starts it for a control plane.
func newSystemAt(t *testing.T, plane *cluster.ControlPlane, change ...func(*rest.Config)) *system {
	t.Helper()
	return newSystemWith(t, plane, "", change...)
}

// newSystemWith starts it with its ports as a part of cloudcore.yaml sets them; "": one for links
// by websocket and one to join.
func newSystemWith(t *testing.T, plane *cluster.ControlPlane, ports string, change ...func(*rest.Config)) *system {
	t.Helper()
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	plane.Apply(t, "manifests/cloudcore")
	dir := t.TempDir()
	kubeconfig, approver := filepath.Join(dir, "cloudcore.kubeconfig"), filepath.Join(dir, "approver.kubeconfig")
	own := plane.ServiceAccount(t, "skerry-system", "cloudcore")
	for _, f := range change {
		f(own)
	}
	if err := cluster.WriteKubeconfig(own, kubeconfig); err != nil {
		t.Fatal(err)
	}
	plane.AccountKubeconfig(t, "cloudcore-approver", approver)
	s := &system{plane: plane, cloudcore: programs[0], edgecore: programs[1], hollowedge: programs[2], join: cluster.FreeAddress(t, "tcp"), websocket: cluster.FreeAddress(t, "tcp")}
	health := cluster.FreeAddress(t, "tcp")
	if ports == "" {
		ports = fmt.Sprintf("advertise: [127.0.0.1, localhost]\ndevices: {listen: \"\"}\nhub: {websocket: {listen: %q}}\njoin: {listen: %q}\n", s.websocket, s.join)
	}
	config := fmt.Sprintf(`apiVersion: config.skerry.io/v1alpha1
kind: CloudCore
kubeconfig: %s
approver: {kubeconfig: %s}
health: {listen: "%s"}
tunnel: {listen: ""}
%s`, kubeconfig, approver, health, ports)
	file, log := filepath.Join(dir, "cloudcore.yaml"), filepath.Join(dir, "cloudcore.log")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster.StartProgram(t, "cloudcore", process.Spec{Path: s.cloudcore, Args: []string{"--config", file}, Log: log}, 20*time.Second)
	cluster.WaitReady(t, "cloudcore", health)
	return s
}

// run returns a command's output and its exit code.
func run(t *testing.T, path string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runWith(t, "", path, args...)
}

// runWith gives the program something to read on its standard input.
func runWith(t *testing.T, in, path string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(in)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), failed.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), 0
}

func (s *system) token(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := run(t, s.cloudcore, append([]string{"token", "create", "--kubeconfig", s.plane.Kubeconfig}, args...)...)
	if code != 0 {
		t.Fatalf("token create: %d: %s", code, errs)
	}
	return strings.TrimSpace(out)
}

// device is a directory with an edgecore.yaml.
func device(t *testing.T) (config, identity string) {
	t.Helper()
	dir := t.TempDir()
	config = filepath.Join(dir, "edgecore.yaml")
	text := fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\ndataDir: %s/data\nmodules:\n  edgeHub:\n    servers: [127.0.0.1]\n  edged:\n    kubelet: {failCgroupV1: false}\n", dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config, filepath.Join(dir, "data", "identity")
}

func (s *system) edge(t *testing.T, config, token, node, host string, more ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runWith(t, token+"\n", s.edgecore, append([]string{"join", "--config", config, "--token-file", "-", "--node-name", node, host}, more...)...)
}

// The token comes by standard input, by a file, or on the command line, and by one of them.
func TestTokenByFile(t *testing.T) {
	s := newSystem(t)
	tests := map[string]struct {
		args func(token, file string) []string
		code int
		says string
	}{
		"a file":           {func(_, file string) []string { return []string{"--token-file", file} }, 0, ""},
		"the command line": {func(token, _ string) []string { return []string{"--token", token} }, 0, ""},
		"both":             {func(token, file string) []string { return []string{"--token", token, "--token-file", file} }, 2, "give one of them"},
		"neither":          {func(string, string) []string { return nil }, 2, "--token-file is missing"},
		"no such file":     {func(_, file string) []string { return []string{"--token-file", file + ".none"} }, 2, "no such file"},
		"no token":         {func(string, string) []string { return []string{"--token-file", "/proc/self/exe"} }, 2, "more than 4096 bytes"},
	}
	n := 0
	for name, tc := range tests {
		n++
		t.Run(name, func(t *testing.T) {
			config, _ := device(t)
			token := s.token(t)
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"join", "--config", config, "--node-name", fmt.Sprintf("by-file-%d", n), s.join}, tc.args(token, file)...)
			_, errs, code := run(t, s.edgecore, args...)
			if code != tc.code || !strings.Contains(errs, tc.says) || code != 0 && strings.Contains(errs, token) {
				t.Errorf("code %d, %s; want %d, %q", code, errs, tc.code, tc.says)
			}
		})
	}
}

func (s *system) mustJoin(t *testing.T, token, node string) (identity string) {
	t.Helper()
	config, identity := device(t)
	if _, errs, code := s.edge(t, config, token, node, s.join); code != 0 {
		t.Fatalf("edgecore join: %d: %s", code, errs)
	}
	return identity
}

// quiet is the time between two heartbeats, which these devices announce and don't send: they are
// silent for longer than a test takes.
const quiet = 5 * time.Minute

// dial opens a link as the device whose identity is there, past the greeting.
func (s *system) dial(t *testing.T, cert tls.Certificate, ca []byte, epoch uint64) (link.Conn, error) {
	t.Helper()
	roots, err := pki.ParseCertificates(ca)
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := wslink.NewDialer(wslink.DialConfig{
		Link: link.Default(), Table: topic.NewTable(),
		TLS: pki.ClientTLS(pki.Client{Roots: pki.Pool(roots...), Certificate: func() (*tls.Certificate, error) { return &cert, nil }}),
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dialer.Dial(t.Context(), s.websocket)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close(link.CloseShutdown, "the test is over") })
	if err := conn.Send(t.Context(), topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Version: "test", BootId: "test", Epoch: epoch, KeepaliveMillis: quiet.Milliseconds()})); err != nil {
		return nil, err
	}
	_, err = conn.Receive(t.Context())
	return conn, err
}

func read(t *testing.T, identity string) (tls.Certificate, []byte) {
	t.Helper()
	node := filepath.Join(identity, "node.pem")
	cert, err := tls.LoadX509KeyPair(node, node)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(identity, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return cert, ca
}

func TestJoin(t *testing.T) {
	plane := cluster.Shared(t)
	s := newSystem(t)

	t.Run("a device joins, links, and says so the second time", func(t *testing.T) {
		token := s.token(t)
		config, identity := device(t)
		out, errs, code := s.edge(t, config, token, "edge-a", s.join)
		if code != 0 || !strings.Contains(out, "edge-a") {
			t.Fatalf("%d: %s%s", code, out, errs)
		}
		cert, ca := read(t, identity)
		if _, err := s.dial(t, cert, ca, 1); err != nil {
			t.Errorf("no link: %v", err)
		}
		if out, errs, code := s.edge(t, config, token, "edge-a", s.join); code != 0 || !strings.Contains(out, "already") {
			t.Errorf("the second time: %d: %s%s", code, out, errs)
		}
	})

	good := s.token(t, "--uses", "20")
	id, pin, _ := strings.Cut(good, "@")
	id, _, _ = strings.Cut(id, ".")
	usedUp := s.token(t)
	s.mustJoin(t, usedUp, "edge-used")
	expired := s.token(t)
	expire(t, expired)
	bound := s.token(t, "--node", "edge-bound")
	revoked := s.token(t)
	if _, errs, code := run(t, s.cloudcore, "token", "revoke", "--kubeconfig", plane.Kubeconfig, revoked[:6]); code != 0 {
		t.Fatal(errs)
	}
	live := s.mustJoin(t, good, "edge-live")
	makeAlive(t, "edge-live")
	_ = live
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	otherTLS := httptest.NewTLSServer(http.NotFoundHandler())
	otherTLS.Config.ErrorLog = nil
	defer otherTLS.Close()

	for name, tc := range map[string]struct {
		token, node, host string
		code              int
		says              string
	}{
		"wrong secret":           {id + ".0123456789abcdef@" + pin, "edge-x", s.join, 2, "secret is wrong"},
		"unknown token":          {"aaaaaa.0123456789abcdef@" + pin, "edge-x", s.join, 2, "not known here"},
		"no token":               {"hello", "edge-x", s.join, 2, "cloudcore token create"},
		"expired token":          {expired, "edge-x", s.join, 2, "expired at"},
		"used-up token":          {usedUp, "edge-x", s.join, 2, "used up"},
		"revoked token":          {revoked, "edge-x", s.join, 2, "not known here"},
		"token for another node": {bound, "edge-x", s.join, 2, "edge-bound"},
		"wrong CA hash":          {good[:len(good)-4] + "0000", "edge-x", s.join, 2, "not the cloud that the token is for"},
		"live name":              {good, "edge-live", s.join, 2, "is alive"},
		"a name that can't be":   {good, "Edge_X", s.join, 2, "Edge_X"},
		"another TLS server":     {good, "edge-x", strings.TrimPrefix(otherTLS.URL, "https://"), 2, "not the cloud that the token is for"},
		"no cloudcore":           {good, "edge-x", strings.TrimPrefix(plain.URL, "http://"), 2, "does not speak TLS"},
		"kube-apiserver":         {good, "edge-x", strings.TrimPrefix(plane.Server, "https://"), 2, "not the cloud that the token is for"},
		"no listener":            {good, "edge-x", cluster.FreeAddress(t, "tcp"), 1, "can't be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			config, identity := device(t)
			_, errs, code := s.edge(t, config, tc.token, tc.node, tc.host, "--timeout", "5s")
			if code != tc.code || !strings.Contains(errs, tc.says) {
				t.Errorf("exit code %d: %s\nwant %d and %q", code, errs, tc.code, tc.says)
			}
			if _, secret, _ := strings.Cut(tc.token, "."); len(secret) > 16 && strings.Contains(errs, secret[:16]) {
				t.Errorf("the secret is shown: %s", errs)
			}
			if _, err := os.Stat(filepath.Join(identity, "node.pem")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an identity was left behind (%v)", err)
			}
		})
	}
}

func expire(t *testing.T, token string) {
	t.Helper()
	plane := cluster.Shared(t)
	past := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	_, err := plane.Client().CoreV1().ConfigMaps("skerry-system").Patch(t.Context(), "skerry-token-"+token[:6], types.MergePatchType,
		fmt.Appendf(nil, `{"data":{"expires":%q}}`, past), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// edgeNode is a Node as edgecore registers it.
func edgeNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"skerry.io/edge": ""}}}
}

// makeAlive makes the objects of a kubelet at work in the cluster.
func makeAlive(t *testing.T, name string) {
	t.Helper()
	plane := cluster.Shared(t)
	node := kubernetes.NewForConfigOrDie(plane.Node(t, name))
	_, err := node.CoreV1().Nodes().Create(t.Context(), edgeNode(name), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	_, err = node.CoordinationV1().Leases("kube-node-lease").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: new(int32(600)), RenewTime: new(metav1.NowMicro()),
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// TestLink: the certificate is the identity, and can be taken away.
func TestLink(t *testing.T) {
	plane := cluster.Shared(t)
	s := newSystem(t)
	identity := s.mustJoin(t, s.token(t), "edge-linked")
	cert, ca := read(t, identity)

	t.Run("another cluster's certificate", func(t *testing.T) {
		if _, err := s.dial(t, foreign(t, "edge-linked"), ca, 1); err == nil {
			t.Error("another cluster's node has a link")
		}
	})
	t.Run("no node's certificate", func(t *testing.T) {
		certPEM, keyPEM, err := plane.Sign(pkix.Name{CommonName: "stranger", Organization: []string{"system:nodes"}})
		if err != nil {
			t.Fatal(err)
		}
		other, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.dial(t, other, ca, 1)
		closed, ok := errors.AsType[*link.CloseError](err)
		if !ok || closed.Code != link.CloseForbidden {
			t.Errorf("got %v; want the link closed with %d", err, link.CloseForbidden)
		}
	})
	t.Run("revoked: its session ends at once, and it gets no other", func(t *testing.T) {
		conn, err := s.dial(t, cert, ca, 1)
		if err != nil {
			t.Fatal(err)
		}
		out, errs, code := run(t, s.cloudcore, "node", "revoke", "--kubeconfig", plane.Kubeconfig, "edge-linked", "-o", "json")
		if code != 0 {
			t.Fatalf("node revoke: %d: %s", code, errs)
		}
		var done struct{ At time.Time }
		if err := json.Unmarshal([]byte(out), &done); err != nil || done.At.IsZero() {
			t.Errorf("node revoke says %s (%v)", out, err)
		}
		for err == nil {
			_, err = conn.Receive(t.Context())
		}
		closed, ok := errors.AsType[*link.CloseError](err)
		if !ok || closed.Code != link.CloseForbidden || !strings.Contains(closed.Reason, "revoked") {
			t.Errorf("the link ended with %v; want %d and a reason", err, link.CloseForbidden)
		}
		_, err = s.dial(t, cert, ca, 2)
		if closed, ok := errors.AsType[*link.CloseError](err); !ok || closed.Code != link.CloseForbidden {
			t.Errorf("the next link: %v; want it closed with %d", err, link.CloseForbidden)
		}
		next, ca := read(t, s.mustJoin(t, s.token(t), "edge-linked"))
		if _, err := s.dial(t, next, ca, 3); err != nil {
			t.Errorf("the device that took its place: %v", err)
		}
	})
}
