package join_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

// TestHostile_07_RevocationHoldsDuringACSRFlood: a device that is being revoked floods
// kube-apiserver with certificate requests, by itself and through its link, and renews all the
// while; the administrator's clock is an hour off. Every answer about certificate requests is held
// back from the administrator until the links have ended on both replicas: the ban must not depend
// on any. Then no certificate that the device ever got, or gets, opens a link again.
func TestHostile_07_RevocationHoldsDuringACSRFlood(t *testing.T) {
	replicas := []*system{newSystem(t), newSystem(t)}
	selfApproval(t)
	for _, tc := range []struct {
		name, node string
		clock      time.Duration
	}{
		{"the administrator's clock is behind", "edge-thief-1", -time.Hour},
		{"the administrator's clock is ahead", "edge-thief-2", time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := replicas[0]
			cert, ca := read(t, s.mustJoin(t, s.token(t), tc.node))
			client := nodeClient(t, cert)
			makeNodeOf(t, client, tc.node)
			ended := make(chan error, len(replicas))
			for _, r := range replicas {
				conn, err := r.dial(t, cert, ca, 1)
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					for err == nil {
						_, err = conn.Receive(context.Background()) // the test closes the link at the latest
					}
					ended <- err
				}()
			}
			loot := flood(t, tc.node, client)
			held, admin := holdRequests(t)
			revoked := make(chan error, 1)
			go func() { revoked <- revokeAt(t, s, admin, tc.node, tc.clock) }()
			for range replicas {
				err := <-ended
				closed, ok := errors.AsType[*link.CloseError](err)
				if !ok || closed.Code != link.CloseForbidden || !strings.Contains(closed.Reason, "revoked") {
					t.Errorf("a link ended with %v; want %d and a reason", err, link.CloseForbidden)
				}
			}
			close(held) // the links have ended without a word about certificate requests
			if err := <-revoked; err != nil {
				t.Fatal(err)
			}
			certs := loot(t)
			certs = append(certs, cert)
			t.Logf("the device got %d certificates", len(certs))
			for _, c := range certs {
				for _, r := range replicas {
					_, err := r.dial(t, c, ca, 2)
					if closed, ok := errors.AsType[*link.CloseError](err); !ok || closed.Code != link.CloseForbidden {
						t.Errorf("a link with a certificate of the revoked device: %v; want it closed with %d", err, link.CloseForbidden)
					}
				}
			}
			next, ca := read(t, s.mustJoin(t, s.token(t), tc.node))
			for _, r := range replicas {
				if _, err := r.dial(t, next, ca, 3); err != nil {
					t.Errorf("the device that took its place: %v", err)
				}
			}
		})
	}
}

// selfApproval is kubeadm's setup: kube-controller-manager approves the renewals of nodes.
func selfApproval(t *testing.T) {
	t.Helper()
	plane := cluster.Shared(t)
	_, err := plane.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-selfnodeclient"},
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
		},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func nodeClient(t *testing.T, cert tls.Certificate) kubernetes.Interface {
	t.Helper()
	plane := cluster.Shared(t)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(plane.Admin())
	cfg.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	cfg.KeyData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	cfg.QPS = -1
	return kubernetes.NewForConfigOrDie(cfg)
}

// flood asks for certificates as fast as it can, directly and through cloudcore, until it is
// refused both ways. It returns when both are under way. The function that it gives waits for the
// refusals and returns all certificates.
func flood(t *testing.T, node string, direct kubernetes.Interface) func(*testing.T) []tls.Certificate {
	t.Helper()
	plane := cluster.Shared(t)
	cfg := plane.ServiceAccount(t, "skerry-system", "cloudcore")
	cfg.QPS, cfg.Impersonate = -1, rest.ImpersonationConfig{UserName: pki.NodeUserPrefix + node}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewNodeCSR(key, types.NodeName(node))
	if err != nil {
		t.Fatal(err)
	}
	const enough = 100 // before the revocation, on each way
	var g errgroup.Group
	var mu sync.Mutex
	var certs []tls.Certificate
	collect := func(csr *certificatesv1.CertificateSigningRequest) {
		parsed, err := pki.ParseCertificates(csr.Status.Certificate)
		if err != nil {
			return // not issued
		}
		mu.Lock()
		defer mu.Unlock()
		certs = append(certs, tls.Certificate{Certificate: [][]byte{parsed[0].Raw}, PrivateKey: key, Leaf: parsed[0]})
	}
	ctx := t.Context()
	var counts [2]atomic.Int64
	for i, client := range []kubernetes.Interface{direct, kubernetes.NewForConfigOrDie(cfg)} {
		csrs := client.CertificatesV1().CertificateSigningRequests()
		g.Go(func() error {
			for {
				made, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
					ObjectMeta: metav1.ObjectMeta{GenerateName: "flood-"},
					Spec: certificatesv1.CertificateSigningRequestSpec{
						Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
						Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
					},
				}, metav1.CreateOptions{})
				if err != nil {
					if counts[i].Load() >= enough && apierrors.IsForbidden(err) {
						return nil
					}
					return fmt.Errorf("way %d, after %d requests: %w", i, counts[i].Load(), err)
				}
				counts[i].Add(1)
				if i == 1 { // the renewal under way: it looks for its certificate, as edgecore does
					if csr, err := csrs.Get(ctx, made.Name, metav1.GetOptions{}); err == nil {
						collect(csr)
					}
				}
			}
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	cluster.Eventually(t, "the flood is under way", func(context.Context) error {
		if a, b := counts[0].Load(), counts[1].Load(); a < enough || b < enough {
			return fmt.Errorf("%d and %d requests", a, b)
		}
		return nil
	})
	return func(t *testing.T) []tls.Certificate {
		t.Helper()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the device still makes certificate requests a minute after its revocation")
		}
		list, err := plane.Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			csr := &list.Items[i]
			if csr.Spec.Username == pki.NodeUserPrefix+node && bytes.Equal(csr.Spec.Request, request) {
				collect(csr)
				if len(csr.Status.Certificate) == 0 && approved(csr) {
					t.Errorf("%s is approved and waits for its certificate", csr.Name)
				}
			}
		}
		if len(certs) == 0 {
			t.Error("the flood got no certificate: nothing was shown")
		}
		return certs
	}
}

func approved(csr *certificatesv1.CertificateSigningRequest) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved {
			return true
		}
	}
	return false
}

func makeNodeOf(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	cluster.Eventually(t, "the node "+name+" is made", func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().Create(ctx, edgeNode(name), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// holdRequests returns an administrator's kubeconfig whose way to kube-apiserver holds back
// everything about certificate requests until the channel is closed: the effect of a flood, without
// end.
func holdRequests(t *testing.T) (held chan struct{}, kubeconfig string) {
	t.Helper()
	plane := cluster.Shared(t)
	server, err := url.Parse(plane.Server)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(server, plane.CA(), new(net.Dialer).DialContext)
	if err != nil {
		t.Fatal(err)
	}
	held = make(chan struct{})
	proxy.Set(func(r *http.Request) faultproxy.Fault {
		if strings.Contains(r.URL.Path, "certificatesigningrequests") {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
		return faultproxy.Fault{}
	})
	front := httptest.NewTLSServer(proxy)
	t.Cleanup(front.Close)
	cfg := plane.ServiceAccount(t, "kube-system", "test-administrator")
	_, err = plane.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-administrator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "test-administrator"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	cfg.Host = front.URL
	cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	kubeconfig = filepath.Join(t.TempDir(), "admin.kubeconfig")
	if err := cluster.WriteKubeconfig(cfg, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return held, kubeconfig
}

// revokeAt runs `cloudcore node revoke` on a machine whose clock is off.
func revokeAt(t *testing.T, s *system, kubeconfig, node string, clock time.Duration) error {
	program := filepath.Join(t.TempDir(), "cloudcore")
	if err := wrongclock.Copy(program, s.cloudcore); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(t.Context(), self, fmt.Sprint(int64(clock/time.Second)), program, "node", "revoke", "--kubeconfig", kubeconfig, node)
	cmd.Env = append(os.Environ(), launchClock+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("node revoke: %w: %s", err, out)
	}
	return nil
}
