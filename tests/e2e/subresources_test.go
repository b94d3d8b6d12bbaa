package e2e_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// plugin builds kubectl-skerry, which `trial kubectl` finds in its own folder.
func (s *system) plugin() {
	s.T.Helper()
	_, err := binary.Build(s.T.Context(), s.Root, "kubectl-skerry")
	s.Check(err)
}

// carried is how many connections to kubelets a replica has begun, by the way in.
func (s *system) carried(replica, way string) int {
	s.T.Helper()
	h, err := s.Trial.Host(replica)
	s.Check(err)
	client := &http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}, Timeout: 30 * time.Second}
	res, err := client.Get("http://127.0.0.1:10003/metrics")
	s.Check(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	s.Check(err)
	found := regexp.MustCompile(`(?m)^skerry_tunnel_connections_total\{way="` + way + `"\} (\d+)$`).FindSubmatch(body)
	if found == nil {
		s.T.Fatalf("%s has no count of connections by %s", replica, way)
	}
	n, err := strconv.Atoi(string(found[1]))
	s.Check(err)
	return n
}

// askReplica has kube-apiserver ask one replica for subresources.skerry.io, and waits
// until it does.
func (s *system) askReplica(number int) {
	s.T.Helper()
	host := options().Replicas()[number-1]
	patch := fmt.Sprintf(`{"spec":{"externalName":%q}}`, lab.Replica(number))
	_, err := s.Client.CoreV1().Services("skerry-system").Patch(s.T.Context(), "cloudcore-subresources", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.Check(err)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	s.WaitFor("kube-apiserver to ask "+host, func(ctx context.Context) error {
		before := s.carried(host, "subresources")
		if _, err := s.Run(ctx, "kubectl", "skerry", "logs", "-n", "sample", pod.Name); err != nil {
			return err
		}
		if s.carried(host, "subresources") == before {
			return errors.New("another replica answered")
		}
		return nil
	})
}

func TestShip_16_PluginThroughTheReplicaWithoutTheLink(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	s.Apply(ns, samplePod("plugged", "edge1"))
	pod := s.WaitPods(ns, "app=plugged", "edge1", 1)[0]

	// The replica that is asked is the one without the link.
	other := 1
	if s.holder("edge1") == options().Replicas()[0] {
		other = 2
	}
	s.askReplica(other)
	asked, holder := options().Replicas()[other-1], options().Replicas()[2-other]
	before, led := s.carried(asked, "subresources"), s.carried(holder, "peer")

	if out := s.Kubectl("skerry", "logs", "-n", ns, "plugged"); !strings.Contains(out, "listening on") {
		t.Errorf("the log is %q", out)
	}
	follow := s.startKubectl("skerry", "logs", "-f", "-n", ns, "pod/plugged")
	s.expect(follow, "listening on")
	if _, err := s.Page(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.expect(follow, "GET / from")

	if out := s.Kubectl("skerry", "exec", "-n", ns, "plugged", "--", "/app", "get", "http://127.0.0.1:8080/healthz"); out != "ok\n" {
		t.Errorf("exec says %q", out)
	}
	_, err := s.Run(t.Context(), "kubectl", "skerry", "exec", "-n", ns, "plugged", "--", "/app", "nonsense")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(err.Error(), "exit code 1") {
		t.Errorf("got %v, want the program's exit code", err)
	}

	address := s.forwarded(s.startKubectl("skerry", "port-forward", "-n", ns, "pod/plugged", ":8080"))
	res, err := (&http.Client{Timeout: time.Minute}).Get("http://" + address + "/healthz")
	s.Check(err)
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || string(body) != "ok\n" {
		t.Errorf("through the forwarded port: %v: %q", err, body)
	}

	s.copiesBothWays(ns, "plugged")
	s.proxied(ns, "plugged")

	attached := s.startKubectl("skerry", "attach", "-n", ns, "plugged")
	s.WaitFor("what the program says to come through attach", func(ctx context.Context) error {
		_, _ = s.Page(ctx, pod) // lines printed before the stream was open are not repeated
		for {
			select {
			case line := <-attached.lines:
				if strings.Contains(line, "GET / from") {
					return nil
				}
			default:
				return fmt.Errorf("nothing yet: %s", attached.errs.String())
			}
		}
	})
	// All of it went this way: through the replica without the link to the one that has it.
	if began, passed := s.carried(asked, "subresources")-before, s.carried(holder, "peer")-led; began < 8 || passed < began {
		t.Errorf("%s began %d connections, %s led %d to the device", asked, began, holder, passed)
	}
}

// copiesBothWays is kubectl skerry cp.
func (s *system) copiesBothWays(ns, pod string) {
	s.T.Helper()
	dir := s.T.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	content := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{16}).Read(content)
	s.Check(os.WriteFile(there, content, 0o600))
	s.Kubectl("skerry", "cp", "-n", ns, there, pod+":/tmp/big")
	if got, want := strings.TrimSpace(s.Kubectl("skerry", "exec", "-n", ns, pod, "--", "/app", "sum", "/tmp/big")), fmt.Sprintf("%x", sha256.Sum256(content)); got != want {
		s.T.Errorf("what arrived in the pod has the sum %s, want %s", got, want)
	}
	s.Kubectl("skerry", "cp", "-n", ns, pod+":/tmp/big", back)
	got, err := os.ReadFile(back)
	s.Check(err)
	if sha256.Sum256(got) != sha256.Sum256(content) {
		s.T.Errorf("what came back has %d bytes, and they are others", len(got))
	}
}

// proxied has another tool take the same way: here a plain HTTP client, and kubectl itself.
func (s *system) proxied(ns, pod string) {
	s.T.Helper()
	proxy := s.startKubectl("skerry", "proxy", "--port", "0", "--reject-paths", "^$")
	var server string
	select {
	case line := <-proxy.lines:
		server = "http://" + strings.TrimPrefix(line, "Starting to serve on ")
	case <-time.After(time.Minute):
		s.T.Fatalf("kubectl skerry proxy says nothing: %s", proxy.errs.String())
	}
	res, err := (&http.Client{Timeout: time.Minute}).Get(server + "/api/v1/namespaces/" + ns + "/pods/" + pod + "/log")
	s.Check(err)
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(body), "listening on") {
		s.T.Errorf("the log through the proxy: %v: %q", err, body)
	}
	out := s.Kubectl("--server", server, "exec", "-n", ns, pod, "--", "/app", "get", "http://127.0.0.1:8080/healthz")
	if out != "ok\n" {
		s.T.Errorf("kubectl exec through the proxy says %q", out)
	}
}

// refused runs kubectl, which must fail with all of the texts.
func (s *system) refused(what string, args, texts []string) {
	s.T.Helper()
	s.WaitFor(what, func(ctx context.Context) error {
		out, err := s.Run(ctx, append([]string{"kubectl"}, args...)...)
		if err == nil {
			return fmt.Errorf("it is done: %q", out)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				return fmt.Errorf("got %w, want %q", err, text)
			}
		}
		return nil
	})
}

// allowed runs kubectl, which must come to be allowed.
func (s *system) allowed(what string, args ...string) {
	s.T.Helper()
	s.WaitFor(what, func(ctx context.Context) error {
		_, err := s.Run(ctx, append([]string{"kubectl"}, args...)...)
		return err
	})
}

const usersYAML = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: aggregated}
rules:
- {apiGroups: [subresources.skerry.io], resources: [pods/log, pods/exec], verbs: [get, create]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: core}
rules:
- {apiGroups: [""], resources: [pods, pods/log], verbs: [get]}
- {apiGroups: [""], resources: [pods/exec], verbs: [get, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: looks}
rules:
- {apiGroups: [""], resources: [pods/exec], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: aggregated}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: aggregated}
subjects: [{kind: User, name: ship-aggregated}, {kind: User, name: ship-looks}, {kind: Group, name: ship-both}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: core}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: core}
subjects: [{kind: User, name: ship-core}, {kind: Group, name: ship-both}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: looks}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: looks}
subjects: [{kind: User, name: ship-looks}]
`

const webhookYAML = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: ship-connect}
webhooks:
- name: connect.ship.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  timeoutSeconds: 1
  clientConfig: {url: "https://127.0.0.1:1/"}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ${NAMESPACE}}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CONNECT], resources: [pods/exec]}]
`

const policyYAML = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: ship-connect}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ${NAMESPACE}}}
    resourceRules: [{apiGroups: [""], apiVersions: ["*"], operations: ["*"], resources: ["pods/*"]}]
  validations: [{expression: "true"}]
`

func TestShip_17_PluginRefusesWithoutBothRights(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	s.askReplica(1)
	ns := s.Namespace()
	s.Apply(ns, samplePod("guarded", "edge2")+"---\n"+usersYAML)
	pod := s.WaitPods(ns, "app=guarded", "edge2", 1)[0]
	run := []string{"skerry", "exec", "-n", ns, "guarded", "--", "/app", "get", "http://127.0.0.1:8080/healthz"}
	logs := []string{"skerry", "logs", "-n", ns, "guarded"}
	as := func(user string, args []string, more ...string) []string {
		return append(append([]string{}, args[0], args[1], "--as="+user), append(more, args[2:]...)...)
	}

	// Two rights, by user and by group; one of them is not enough.
	s.refused("no core right: logs", as("ship-aggregated", logs), []string{`cannot get resource "pods/log" in API group ""`, "orbidden"})
	s.refused("no core right: exec", as("ship-aggregated", run), []string{`resource "pods/exec" in API group ""`, "orbidden"})
	s.refused("a right to get pods/exec alone", as("ship-looks", run), []string{`cannot create resource "pods/exec" in API group ""`})
	s.refused("no right to this API", as("ship-core", run), []string{`in API group "subresources.skerry.io"`})
	s.allowed("both rights, of a group", as("ship-user", run, "--as-group=ship-both")...)

	// Requests that would have passed an admission.
	s.Apply(ns, webhookYAML)
	t.Cleanup(func() {
		_, _ = s.Run(context.WithoutCancel(t.Context()), "kubectl", "delete", "validatingwebhookconfiguration/ship-connect", "validatingadmissionpolicy/ship-connect", "--ignore-not-found")
	})
	s.refused("a webhook that judges exec", run, []string{"ValidatingWebhookConfiguration ship-connect judges CONNECT to pods/exec"})
	s.allowed("logs, which pass no admission", logs...)
	elsewhere := s.WaitPods("sample", "app=sample", "edge2", 1)[0]
	s.allowed("exec in a namespace that it does not select", "skerry", "exec", "-n", "sample", elsewhere.Name, "--", "/app", "get", "http://127.0.0.1:8080/healthz")
	s.Kubectl("delete", "validatingwebhookconfiguration/ship-connect")
	s.allowed("exec without the webhook", run...)
	s.Apply(ns, policyYAML)
	s.refused("a policy that judges all of a pod", run, []string{"ValidatingAdmissionPolicy ship-connect judges CONNECT to pods/exec"})
	s.Kubectl("delete", "validatingadmissionpolicy/ship-connect")
	s.allowed("exec without the policy", run...)
	binding, err := s.Client.RbacV1().ClusterRoleBindings().Get(t.Context(), "skerry:cloudcore-subresources", metav1.GetOptions{})
	s.Check(err)
	s.Check(s.Client.RbacV1().ClusterRoleBindings().Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
	binding.ResourceVersion, binding.UID = "", ""
	restore := func(ctx context.Context) error {
		_, err := s.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		return err
	}
	t.Cleanup(func() { _ = restore(context.WithoutCancel(t.Context())) })
	s.refused("webhooks that can't be listed", run, []string{"reading whether a ValidatingWebhookConfiguration judges CONNECT"})
	s.Check(restore(t.Context()))
	s.allowed("exec when they can be listed again", run...)

	s.fourPaths(pod)
	s.keyElsewhere()
	s.ownAPIServices()
}

// fourPaths asks a device as cloudcore does, for more than cloudcore ever does.
func (s *system) fourPaths(pod corev1.Pod) {
	s.T.Helper()
	for path, want := range map[string]int{
		"/containerLogs/" + pod.Namespace + "/" + pod.Name + "/sample": http.StatusOK,
		"/pods":                        http.StatusForbidden,
		"/stats/summary":               http.StatusForbidden,
		"/metrics":                     http.StatusForbidden,
		"/configz":                     http.StatusForbidden,
		"/logs/":                       http.StatusForbidden,
		"/exec/../pods":                http.StatusTemporaryRedirect, // to /pods, before any backend is asked
		"/run/" + pod.Namespace + "/x": http.StatusForbidden,
	} {
		conn := s.asReplica(s.holderNumber("edge2"), "edge2", "subresources")
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: edge2\r\nConnection: close\r\n\r\n", path)
		s.Check(err)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			s.T.Errorf("%s: %v", path, err)
		} else if res.StatusCode != want {
			s.T.Errorf("%s: %s, want %d", path, res.Status, want)
		}
		conn.Close()
	}
}

func (s *system) holderNumber(node string) int {
	if s.holder(node) == options().Replicas()[0] {
		return 1
	}
	return 2
}

// asReplica is a stream to a node's kubelet, requested as one replica requests it from another:
// with a certificate of cloudcore's CA, whose key is in the trial.
func (s *system) asReplica(replica int, node, target string) net.Conn {
	s.T.Helper()
	host, err := s.Trial.Host(options().Replicas()[0])
	s.Check(err)
	authority := filepath.Join(host.Root(), "/etc/skerry/egress-ca.crt")
	certPEM, keyPEM, err := ca.Client(authority, strings.TrimSuffix(authority, "crt")+"key", pkix.Name{CommonName: "cloudcore"})
	s.Check(err)
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	s.Check(err)
	pem, err := os.ReadFile(authority)
	s.Check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	raw, err := host.Dial(s.T.Context(), "tcp", net.JoinHostPort(lab.Replica(replica).String(), "10004"))
	s.Check(err)
	s.T.Cleanup(func() { raw.Close() })
	s.Check(raw.SetDeadline(time.Now().Add(time.Minute)))
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: lab.Cloud().String(), Certificates: []tls.Certificate{cert}})
	_, err = fmt.Fprintf(conn, "CONNECT %s:0 HTTP/1.1\r\nHost: %[1]s\r\nSkerry-Stream: %s\r\n\r\n", node, target)
	s.Check(err)
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, b...) {
		_, err := conn.Read(b)
		s.Check(err)
	}
	if !strings.HasPrefix(string(head), "HTTP/1.1 200 ") || !strings.Contains(string(head), "Skerry-Stream: "+target+"\r\n") {
		s.T.Fatalf("asked for a stream to %s: %q", node, head)
	}
	return conn
}

// keyElsewhere shows a certificate like that of a device's own client to its kubelet and to
// kube-apiserver: with the same name, and a key of its own. The real one is in edgecore's memory
// alone; edge/internal/pods/edged shows it to another kubelet.
func (s *system) keyElsewhere() {
	s.T.Helper()
	dir := s.T.TempDir()
	certPEM, keyPEM, err := ca.New("edgecore")
	s.Check(err)
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	s.Check(err)
	file := filepath.Join(dir, "edgecore")
	s.Check(os.WriteFile(file+".crt", certPEM, 0o600))
	s.Check(os.WriteFile(file+".key", keyPEM, 0o600))
	raw := s.asReplica(s.holderNumber("edge2"), "edge2", "kubelet")
	conn := tls.Client(raw, &tls.Config{
		ServerName: "edge2", InsecureSkipVerify: true, //nolint:gosec // who answers does not matter here
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	})
	_, err = io.WriteString(conn, "GET /containerLogs/sample/x/sample HTTP/1.1\r\nHost: edge2\r\nConnection: close\r\n\r\n")
	s.Check(err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	s.Check(err)
	if res.StatusCode != http.StatusUnauthorized {
		s.T.Errorf("the kubelet of edge2 answers a certificate of the same name with %s", res.Status)
	}
	_, err = s.Run(s.T.Context(), "kubectl", "--kubeconfig", s.withCertificate(file), "get", "nodes")
	if err == nil || !strings.Contains(err.Error(), "nauthorized") {
		s.T.Errorf("kube-apiserver answers it with %v", err)
	}
}

// withCertificate is a kubeconfig of the trial with another client certificate.
func (s *system) withCertificate(file string) string {
	s.T.Helper()
	server := s.Kubectl("config", "view", "--raw", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n"+
		"clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]\nusers: [{name: x, user: {client-certificate: %q, client-key: %q}}]\n",
		server, file+".crt", file+".key")
	s.Check(os.WriteFile(file+".kubeconfig", []byte(text), 0o600))
	return file + ".kubeconfig"
}

// ownAPIServices shows that cloudcore has set the CA itself, and may set no other field.
func (s *system) ownAPIServices() {
	s.T.Helper()
	const name = "apiservice/v1alpha1.subresources.skerry.io"
	if got := s.Kubectl("get", name, "-o", "jsonpath={.spec.caBundle}"); got == "" {
		s.T.Error("cloudcore has not set the CA of its APIService")
	}
	host, err := s.Trial.Host(options().Replicas()[0])
	s.Check(err)
	raw, err := os.ReadFile(filepath.Join(host.Root(), "/etc/skerry/cloudcore.kubeconfig"))
	s.Check(err)
	own := filepath.Join(s.T.TempDir(), "cloudcore.kubeconfig")
	server := s.Kubectl("config", "view", "--raw", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
	text := regexp.MustCompile(`server: .*`).ReplaceAllString(string(raw), "server: "+server)
	s.Check(os.WriteFile(own, []byte(text), 0o600))
	for patch, want := range map[string]string{
		`{"spec":{"caBundle":"eA=="}}`:                     "",
		`{"spec":{"service":{"name":"cloudcore-usage"}}}`:  "caBundle alone",
		`{"spec":{"versionPriority":7}}`:                   "caBundle alone",
		`{"metadata":{"labels":{"a":"b"}}}`:                "caBundle alone",
		`{"spec":{"service":{"namespace":"kube-system"}}}`: "caBundle alone",
	} {
		_, err := s.Run(s.T.Context(), "kubectl", "--kubeconfig", own, "patch", name, "--type=merge", "--dry-run=server", "-p", patch)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			s.T.Errorf("as cloudcore, %s: %v, want %q", patch, err, want)
		}
	}
}
