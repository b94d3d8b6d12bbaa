package hostile_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/hostile"
)

var plane *cluster.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(m, func(c *cluster.ControlPlane) { plane = c }))
}

// system is the real cloudcore at work, with the rights of its manifests.
type system struct {
	websocket, quic, health string // addresses
	roots                   *x509.CertPool
}

// start runs cloudcore with further lines of cloudcore.yaml.
func start(t *testing.T, further string) *system {
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
	writeKubeconfig(t, plane.ServiceAccount(t, "skerry-system", "cloudcore"), kubeconfig)
	s := &system{websocket: free(t, "tcp"), quic: free(t, "udp"), health: free(t, "tcp")}
	config := fmt.Sprintf(`apiVersion: config.skerry.io/v1alpha1
kind: CloudCore
kubeconfig: %s
advertise: [127.0.0.1]
hub:
  websocket: {listen: "%s"}
  quic: {listen: "%s"}
health: {listen: "%s"}
join: {listen: ""}
%s`, kubeconfig, s.websocket, s.quic, s.health, further)
	file, log := filepath.Join(dir, "cloudcore.yaml"), filepath.Join(dir, "cloudcore.log")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	child, err := process.Start(process.Spec{Path: programs[0], Args: []string{"--config", file}, Log: log, Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			raw, _ := os.ReadFile(log)
			t.Logf("end of cloudcore's log:\n%s", raw[max(0, len(raw)-8000):])
		}
		if err := child.Stop(context.Background(), 20*time.Second); err != nil {
			t.Error(err)
		}
	})
	cluster.Eventually(t, "cloudcore is ready", func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.health+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	secret, err := plane.Client().CoreV1().Secrets("skerry-system").Get(t.Context(), "skerry-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])
	return s
}

// free is a loopback address at which nothing listens now.
func free(t *testing.T, network string) string {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.LocalAddr().String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func writeKubeconfig(t *testing.T, cfg *rest.Config, file string) {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: cfg.BearerToken}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
}

// epochs grow over all sessions of this process.
var epochs atomic.Uint64

// tls is what a device of that node dials with: a certificate that the cluster's CA signed.
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
