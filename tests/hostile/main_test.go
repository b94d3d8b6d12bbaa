package hostile_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/hostile"
)

// plane's kube-apiserver goes to kubelets, webhooks and Services through cloudcore (an
// EgressSelectorConfiguration), where the test's cloudcore has a tunnel. Services have addresses of
// the loopback interface, so that they can be dialled here without kube-proxy.
var plane *cluster.ControlPlane

// tunnelAddress is where cloudcore listens for kube-apiserver's way to nodes, for the tests that
// have one.
var tunnelAddress string

// balancer is the address of the control plane's load balancer: where edges reach the cloud.
const balancer = "127.97.0.1"

const serviceCIDR = "127.96.0.0/16"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if testing.Short() {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "skerry-hostile-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	if plane, err = newPlane(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plane.Kill(ctx)
	return m.Run()
}

// newPlane starts a control plane that trusts cloudcore's CA before cloudcore is there, as an
// administrator sets it up.
func newPlane(ctx context.Context, dir string) (*cluster.ControlPlane, error) {
	cert, key, err := ca.New("skerry serving CA")
	if err != nil {
		return nil, err
	}
	caFile, egressFile := filepath.Join(dir, "egress-ca.crt"), filepath.Join(dir, "egress.yaml")
	free, err := cluster.FreeAddresses("tcp", "tcp")
	if err != nil {
		return nil, err
	}
	egress := free[0]
	tunnelAddress = free[1]
	planeDir := filepath.Join(dir, "plane")
	identity := filepath.Join(planeDir, "pki", "apiserver-kubelet-client")
	config := fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp:
        url: https://%s
        tlsConfig: {caBundle: %s, clientCert: %s.crt, clientKey: %s.key, tlsServerName: 127.0.0.1}
`, egress, caFile, identity, identity)
	if err := errors.Join(os.Mkdir(planeDir, 0o700), os.WriteFile(caFile, cert, 0o600), os.WriteFile(egressFile, []byte(config), 0o600)); err != nil {
		return nil, err
	}
	c, err := cluster.New(ctx, planeDir, "--egress-selector="+egressFile, "--egress-listen="+egress, "--egress-to="+tunnelAddress, "--service-cidr="+serviceCIDR,
		"--apiserver-arg=--kubelet-preferred-address-types=Hostname,InternalIP")
	if err != nil {
		return nil, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "skerry-system"}}
	if _, err := c.Client().CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return c, err
	}
	_, err = c.Client().CoreV1().Secrets("skerry-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "skerry-ca"}, Type: corev1.SecretTypeTLS, Immutable: new(true),
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}, metav1.CreateOptions{})
	return c, err
}

// system is the real cloudcore at work, with the rights of its manifests.
type system struct {
	websocket, quic, health string // addresses
	roots                   *x509.CertPool
}

// newSystem runs cloudcore with further lines of cloudcore.yaml.
func newSystem(t *testing.T, further string) *system {
	t.Helper()
	if plane == nil {
		t.Skip("needs a control plane, which -short leaves out")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := binary.Build(t.Context(), root, "cloudcore")
	if err != nil {
		t.Fatal(err)
	}
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	operations := dynamic.NewForConfigOrDie(plane.Admin()).Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
	cluster.Eventually(t, "NodeOperations are served", func(ctx context.Context) error {
		_, err := operations.List(ctx, metav1.ListOptions{})
		return err
	})
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "cloudcore.kubeconfig")
	plane.AccountKubeconfig(t, "cloudcore", kubeconfig)
	approver := filepath.Join(dir, "approver.kubeconfig")
	plane.AccountKubeconfig(t, "cloudcore-approver", approver)
	s := &system{websocket: cluster.FreeAddress(t, "tcp"), quic: cluster.FreeAddress(t, "udp"), health: cluster.FreeAddress(t, "tcp")}
	config := fmt.Sprintf(`apiVersion: config.skerry.io/v1alpha1
kind: CloudCore
kubeconfig: %s
approver: {kubeconfig: %s}
advertise: [127.0.0.1, %s]
devices: {listen: ""}
hub:
  websocket: {listen: "%s"}
  quic: {listen: "%s"}
  idleTimeout: 10m # the devices here say no heartbeats, and some read nothing: on a busy machine a test takes its time
health: {listen: "%s"}
join: {listen: ""}
%s`, kubeconfig, approver, balancer, s.websocket, s.quic, s.health, further)
	file, log := filepath.Join(dir, "cloudcore.yaml"), filepath.Join(dir, "cloudcore.log")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster.StartProgram(t, "cloudcore", process.Spec{Path: programs[0], Args: []string{"--config", file}, Log: log}, 20*time.Second)
	cluster.WaitReady(t, "cloudcore", s.health)
	secret, err := plane.Client().CoreV1().Secrets("skerry-system").Get(t.Context(), "skerry-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])
	return s
}

// metric is the value of a series of cloudcore, 0 without one.
func (s *system) metric(t *testing.T, series string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.health+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
	}
	return 0
}

// epochs grow over all sessions of this process.
var epochs atomic.Uint64

// tls is the client configuration of that node's device: with a certificate that the cluster's CA
// signed.
func (s *system) tls(t *testing.T, node string) *tls.Config {
	t.Helper()
	cert, key, err := plane.Sign(pkix.Name{CommonName: pki.NodeUserPrefix + node, Organization: []string{pki.NodesGroup}})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pki.ClientTLS(pki.Client{Roots: s.roots, Certificate: func() (*tls.Certificate, error) { return &pair, nil }})
}

// dial opens a session of a node, which the test ends.
func (s *system) dial(t *testing.T, transport link.Transport, node string) *hostile.Device {
	t.Helper()
	address := s.websocket
	if transport == link.QUIC {
		address = s.quic
	}
	d, err := hostile.Dial(t.Context(), hostile.Config{Transport: transport, Address: address, TLS: s.tls(t, node), Epoch: epochs.Add(1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}
