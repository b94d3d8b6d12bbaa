package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/suite"
)

// command is a kubectl that is still running.
type command struct {
	cmd   *exec.Cmd
	errs  text
	lines chan string
	done  chan error
}

// text is output that is read while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// startKubectl runs kubectl in the background until it ends or the test does. Its output, of both
// kinds, comes line by line.
func (s *system) startKubectl(args ...string) *command {
	s.T.Helper()
	c := &command{lines: make(chan string, 1000), done: make(chan error, 1)}
	c.cmd = exec.CommandContext(s.T.Context(), filepath.Join(s.Root, "bin", "trial"), append([]string{"kubectl"}, args...)...)
	c.cmd.Dir = s.Root
	c.cmd.Env = append(os.Environ(), "TRIAL_DIR="+s.Dir)
	r, w := io.Pipe()
	c.cmd.Stdout, c.cmd.Stderr = w, io.MultiWriter(&c.errs, w)
	c.cmd.WaitDelay = 5 * time.Second
	s.Check(c.cmd.Start())
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			select {
			case c.lines <- lines.Text():
			default: // more than is looked at
			}
		}
	}()
	go func() {
		err := c.cmd.Wait()
		_ = w.Close()
		c.done <- err
	}()
	s.T.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// expect waits for a line that contains text.
func (s *system) expect(c *command, text string) {
	s.T.Helper()
	limit := time.After(suite.Patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				s.T.Fatalf("%s ended before it said %q: %s", strings.Join(c.cmd.Args, " "), text, c.errs.String())
			}
			if strings.Contains(line, text) {
				return
			}
		case <-limit:
			s.T.Fatalf("waited %v for %q from %s", suite.Patience, text, strings.Join(c.cmd.Args, " "))
		}
	}
}

// ended waits for the end of a command.
func (s *system) ended(c *command, within time.Duration) error {
	s.T.Helper()
	select {
	case err := <-c.done:
		return err
	case <-time.After(within):
		s.T.Fatalf("%s goes on after %v", strings.Join(c.cmd.Args, " "), within)
		return nil
	}
}

// holder is the host of the cloudcore that holds a node's link, by the node's Lease.
func (s *system) holder(node string) string {
	s.T.Helper()
	var name string
	s.WaitFor("the Lease of "+node+" to name a cloudcore", func(ctx context.Context) error {
		lease, err := s.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i, host := range options().Replicas() {
			if strings.HasPrefix(lease.Annotations["skerry.io/tunnel"], net.JoinHostPort(lab.Replica(i+1).String(), "10004")+" ") {
				name = host
				return nil
			}
		}
		return fmt.Errorf("its annotations are %v", lease.Annotations)
	})
	return name
}

func TestTunnel_01_LogsOfPodsBehindNAT(t *testing.T) {
	s := newSystem(t)
	for _, node := range []string{"edge1", "edge2"} {
		pod := s.WaitPods("sample", "app=sample", node, 1)[0]
		// A replica of cloudcore may still hold a session that the test before has killed, until it
		// has been silent for too long.
		s.WaitFor("the log of "+pod.Name, func(ctx context.Context) error {
			out, err := s.Run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
			if err == nil && !strings.Contains(out, "listening on") {
				err = fmt.Errorf("it is %q", out)
			}
			return err
		})
	}
	// The way of kubectl get --raw, through the same link.
	if out := s.Kubectl("get", "--raw", "/api/v1/nodes/edge1/proxy/healthz"); out != "ok" {
		t.Errorf("the kubelet's /healthz says %q", out)
	}
}

func TestTunnel_02_LogsFollowedAcrossARestart(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("talks", "edge1"))
	pod := s.WaitPods(ns, "app=talks", "edge1", 1)[0]
	first := s.startKubectl("logs", "-f", "-n", ns, "talks")
	s.expect(first, "listening on")
	if _, err := s.Page(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.expect(first, "GET / from")
	s.crash(ns, "talks")
	if err := s.ended(first, suite.Patience); err != nil {
		t.Errorf("following the log did not end with the container: %v: %s", err, first.errs.String())
	}
	s.WaitFor("the container to run again", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, "talks", metav1.GetOptions{})
		if err == nil && (len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount != 1 || !suite.PodReady(*p)) {
			err = errors.New("it has not restarted yet")
		}
		return err
	})
	s.expect(s.startKubectl("logs", "-f", "-n", ns, "talks"), "listening on")
	if out := s.Kubectl("logs", "--previous", "-n", ns, "talks"); !strings.Contains(out, "GET / from") {
		t.Errorf("the log of the container before is %q", out)
	}
}

// crash ends a pod's container with an error, by a port that is forwarded.
func (s *system) crash(namespace, pod string) {
	s.T.Helper()
	forward := s.startKubectl("port-forward", "-n", namespace, "pod/"+pod, ":8080")
	address := s.forwarded(forward)
	res, err := http.Post("http://"+address+"/crash", "", nil)
	if err == nil {
		res.Body.Close()
	}
}

// forwarded is the local address of a port-forward.
func (s *system) forwarded(c *command) string {
	s.T.Helper()
	select {
	case line := <-c.lines:
		// Forwarding from 127.0.0.1:40123 -> 8080
		fields := strings.Fields(line)
		if len(fields) != 5 || fields[0] != "Forwarding" {
			s.T.Fatalf("port-forward says %q: %s", line, c.errs.String())
		}
		return fields[2]
	case <-time.After(suite.Patience):
		s.T.Fatalf("port-forward says nothing: %s", c.errs.String())
		return ""
	}
}

func TestTunnel_03_ExecWithExitCode(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge2", 1)[0]
	if out := s.Kubectl("exec", "-n", "sample", pod.Name, "--", "/app", "get", "http://127.0.0.1:8080/healthz"); out != "ok\n" {
		t.Errorf("it says %q", out)
	}
	_, err := s.Run(t.Context(), "kubectl", "exec", "-n", "sample", pod.Name, "--", "/app", "nonsense")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(err.Error(), "exit code 1") {
		t.Errorf("got %v, want the program's exit code", err)
	}
}

func TestTunnel_06_PortForwardCarries50Connections(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	address := s.forwarded(s.startKubectl("port-forward", "-n", "sample", "pod/"+pod.Name, ":8080"))
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: suite.Patience}
			res, err := client.Get("http://" + address + "/")
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil || !strings.Contains(string(body), "on node edge1") {
				t.Errorf("connection %d: %v: %q", i, err, body)
			}
		})
	}
	all.Wait()
}

// connect asks a replica of cloudcore for a target, with a certificate of the control plane (or a
// node's), and returns its answer's status line.
func (s *system) connect(replica int, target, certificate, key string) (string, error) {
	conn, answer, err := s.connectTo(replica, target, certificate, key)
	if conn != nil {
		_ = conn.Close()
	}
	return answer, err
}

// connectTo is connect that leaves the connection open; it is nil where there is an error.
func (s *system) connectTo(replica int, target, certificate, key string) (_ net.Conn, answer string, err error) {
	host, err := s.Trial.Host(options().Replicas()[0])
	if err != nil {
		return nil, "", err
	}
	cert, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, "", err
	}
	ca, err := os.ReadFile(filepath.Join(host.Root(), "/etc/skerry/egress-ca.crt"))
	if err != nil {
		return nil, "", err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	ctx, cancel := context.WithTimeout(s.T.Context(), 30*time.Second)
	defer cancel()
	raw, err := host.Dial(ctx, "tcp", net.JoinHostPort(lab.Replica(replica).String(), "10004"))
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			_ = raw.Close()
		}
	}()
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: lab.Cloud().String(), Certificates: []tls.Certificate{cert}})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, "", err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, "", err
		}
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", target); err != nil {
		return nil, "", err
	}
	// Byte by byte: the bytes after the head are the target's.
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b...) {
		if _, err := conn.Read(b); err != nil {
			return nil, "", err
		}
	}
	answer, _, _ = strings.Cut(string(head), "\r\n")
	return conn, answer, conn.SetDeadline(time.Time{})
}

func (s *system) planeIdentity() (certificate, key string) {
	host, err := s.Trial.Host(options().Replicas()[0])
	s.Check(err)
	at := filepath.Join(host.Root(), "/var/lib/kubeplane/pki/apiserver-kubelet-client")
	return at + ".crt", at + ".key"
}

func TestTunnel_09_EachCloudcoreLeadsToEachNode(t *testing.T) {
	s := newSystem(t)
	cert, key := s.planeIdentity()
	for n := range options().Replicas() {
		for _, node := range []string{"edge1", "edge2"} {
			s.holder(node) // is named
			if answer, err := s.connect(n+1, node+":10250", cert, key); err != nil || !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
				t.Errorf("replica %d, asked for %s: %q, %v", n+1, node, answer, err)
			}
		}
	}
}

// attach follows the output of a pod's container as it comes. Unlike kubectl logs, which ends
// without a word whatever happens to the kubelet, it reports a broken connection.
func (s *system) attach(pod corev1.Pod) *command {
	s.T.Helper()
	c := s.startKubectl("attach", "-n", pod.Namespace, pod.Name)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // lines printed before the stream was open are not repeated
		for {
			_, _ = s.Page(s.T.Context(), pod)
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	s.expect(c, "GET / from")
	return c
}

func TestTunnel_05_AttachShowsOutput(t *testing.T) {
	s := newSystem(t)
	s.attach(s.WaitPods("sample", "app=sample", "edge2", 1)[0])
}

func TestTunnel_10_CloudcoreKilledEndsStreamsAndTheOtherServes(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	follow := s.attach(pod)
	holder := s.holder("edge1")
	s.Kill(holder, "cloudcore")
	if err := s.ended(follow, suite.Patience); err == nil {
		t.Error("the end looks like a proper one")
	}
	// The other replica takes the link over.
	s.WaitFor("logs through the other replica", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
		if err == nil && !strings.Contains(out, "listening on") {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	s.Start(holder, "cloudcore")
}

func TestTunnel_11_LinkCutEndsStreams(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	follow := s.attach(pod)
	s.Kubectl("logs", "-n", "sample", pod.Name) // kube-apiserver keeps that connection
	s.CutSilently("edge1")
	// No client waits for the link to be given up: neither on the connection that was kept nor on a
	// new one.
	for range 2 {
		began := time.Now()
		_, err := s.Run(t.Context(), "kubectl", "logs", "-n", "sample", pod.Name)
		if err == nil {
			t.Error("the log is read over a link that is cut")
		}
		t.Logf("after %v: %v", time.Since(began).Round(10*time.Millisecond), err)
	}
	if err := s.ended(follow, suite.Patience); err == nil {
		t.Error("the end looks like a proper one")
	}
	s.WaitFor("an answer that says since when there is no link", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
		if err == nil || !strings.Contains(err.Error(), "edge1 has had no link since ") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	s.Heal("edge1")
	s.WaitFor("logs after the link is back", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
		return err
	})
}

func TestTunnel_12_OnlyTheAPIServerOpensStreams(t *testing.T) {
	s := newSystem(t)
	// A node's own certificate, which the cluster's CA has signed too, opens no stream.
	edge, err := s.Trial.Host("edge1")
	s.Check(err)
	pem := filepath.Join(edge.Root(), "/var/lib/skerry/identity")
	files, err := filepath.Glob(filepath.Join(pem, "*"))
	s.Check(err)
	cert := s.clientPair(files)
	if answer, err := s.connect(1, "edge2:10250", cert, cert); err != nil || !strings.HasPrefix(answer, "HTTP/1.1 403 ") {
		t.Errorf("with a node's certificate: %q, %v", answer, err)
	}
	// Only the kubelet's port can be reached.
	plane, key := s.planeIdentity()
	if answer, err := s.connect(1, "edge2:22", plane, key); err != nil || !strings.HasPrefix(answer, "HTTP/1.1 502 ") {
		t.Errorf("another port: %q, %v", answer, err)
	}
	pod := s.WaitPods("sample", "app=sample", "edge2", 1)[0]
	_, err = s.Run(t.Context(), "kubectl", "--as=stranger", "exec", "-n", "sample", pod.Name, "--", "/app", "get", "http://127.0.0.1:8080/healthz")
	if err == nil || !strings.Contains(err.Error(), "orbidden") {
		t.Errorf("a user without pods/exec got %v", err)
	}
}

// clientPair finds the file that holds a certificate and its key.
func (s *system) clientPair(files []string) string {
	s.T.Helper()
	for _, f := range files {
		if _, err := tls.LoadX509KeyPair(f, f); err == nil {
			return f
		}
	}
	s.T.Fatalf("no identity among %v", files)
	return ""
}
