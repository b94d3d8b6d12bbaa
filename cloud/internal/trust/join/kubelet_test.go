package join_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/pki"
)

func addressedNode(name string, edge bool, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if edge {
		n.Labels = map[string]string{"skerry.io/edge": ""}
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// The names and addresses that a kubelet may have a serving certificate for.
func TestKubeletApprover(t *testing.T) {
	serving := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for name, test := range map[string]struct {
		requester, subject string
		names, ips         []string
		usages             []certificatesv1.KeyUsage
		want               certificatesv1.RequestConditionType // "": no decision
	}{
		"its own":                  {requester: "edge1", names: []string{"edge1"}, ips: []string{"10.0.0.1"}, want: certificatesv1.CertificateApproved},
		"as other edges have":      {requester: "edge1", names: []string{"edge1"}, ips: []string{"192.168.1.10"}, want: certificatesv1.CertificateApproved},
		"another node's subject":   {requester: "edge1", subject: "edge2", names: []string{"edge1"}, want: certificatesv1.CertificateDenied},
		"another node's name":      {requester: "edge1", names: []string{"edge2"}, want: certificatesv1.CertificateDenied},
		"kube-apiserver's name":    {requester: "edge1", names: []string{"kubernetes.default.svc"}, want: certificatesv1.CertificateDenied},
		"an ordinary node's":       {requester: "edge1", ips: []string{"172.16.0.1"}, want: certificatesv1.CertificateDenied},
		"a service's address":      {requester: "edge1", ips: []string{"10.96.0.1"}, want: certificatesv1.CertificateDenied},
		"in the Services' range":   {requester: "edge1", ips: []string{"10.96.7.7"}, want: certificatesv1.CertificateDenied},
		"in a pods' range":         {requester: "edge1", ips: []string{"10.244.1.7"}, want: certificatesv1.CertificateDenied},
		"a load balancer's":        {requester: "edge1", ips: []string{"198.51.100.9"}, want: certificatesv1.CertificateDenied},
		"a virtual IP elsewhere":   {requester: "edge1", ips: []string{"192.168.1.30"}, want: certificatesv1.CertificateApproved},
		"an external IP":           {requester: "edge1", ips: []string{"198.51.100.10"}, want: certificatesv1.CertificateDenied},
		"kube-apiserver's address": {requester: "edge1", ips: []string{"203.0.113.5"}, want: certificatesv1.CertificateDenied},
		"loopback":                 {requester: "edge1", ips: []string{"127.0.0.1"}, want: certificatesv1.CertificateDenied},
		"nothing":                  {requester: "edge1", want: certificatesv1.CertificateDenied},
		"a client's":               {requester: "edge1", names: []string{"edge1"}, usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, want: certificatesv1.CertificateDenied},
		"not said yet":             {requester: "edge1", ips: []string{"10.0.0.99"}},
		"no edge":                  {requester: "plain1", names: []string{"plain1"}},
	} {
		t.Run(name, func(t *testing.T) {
			subject, usages := test.subject, test.usages
			if subject == "" {
				subject = test.requester
			}
			if usages == nil {
				usages = serving
			}
			key, err := pki.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + subject, Organization: []string{"system:nodes"}}, DNSNames: test.names}
			for _, ip := range test.ips {
				request.IPAddresses = append(request.IPAddresses, net.ParseIP(ip))
			}
			der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
			if err != nil {
				t.Fatal(err)
			}
			// Last in the queue, so that its decision shows that the one before was reviewed too.
			last := csr(t, "z-last", "edge2", serving)
			client := fake.NewClientset(
				addressedNode("edge1", true, "10.0.0.1", "192.168.1.10", "172.16.0.1", "10.96.0.1", "203.0.113.5", "127.0.0.1",
					"10.96.7.7", "10.244.1.7", "198.51.100.9", "198.51.100.10", "192.168.1.30"),
				&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}},
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain2"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}},
				&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "balanced"}, Spec: corev1.ServiceSpec{ExternalIPs: []string{"198.51.100.10"}},
					Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
						{IP: "198.51.100.9"}, {Hostname: "shop-17", IP: "192.168.1.30"},
					}}},
				},
				addressedNode("edge2", true, "192.168.1.10"), addressedNode("plain1", false, "172.16.0.1"),
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}},
				&discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
					Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"203.0.113.5"}}},
				},
				&certificatesv1.CertificateSigningRequest{
					ObjectMeta: metav1.ObjectMeta{Name: "a-first"},
					Spec: certificatesv1.CertificateSigningRequestSpec{
						Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
						SignerName: certificatesv1.KubeletServingSignerName, Username: "system:node:" + test.requester, Groups: []string{"system:nodes"}, Usages: usages,
					},
				},
			)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			done := make(chan error, 1)
			go func() { done <- join.NewKubeletApprover(client, nil).Run(ctx) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			if test.want != "" {
				if got := decided(t, client, "a-first"); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				return
			}
			if _, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, last, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			decided(t, client, "z-last")
			got, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, "a-first", metav1.GetOptions{})
			if err != nil || len(got.Status.Conditions) > 0 {
				t.Errorf("it was decided: %v, %v", got.Status.Conditions, err)
			}
		})
	}
}

func csr(t *testing.T, name, node string, usages []certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: []string{node},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: certificatesv1.KubeletServingSignerName, Username: "system:node:" + node, Groups: []string{"system:nodes"}, Usages: usages,
	}}
}

// decided waits for the decision on a request.
func decided(t *testing.T, client *fake.Clientset, name string) certificatesv1.RequestConditionType {
	t.Helper()
	for t.Context().Err() == nil {
		got, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(got.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
		})
		if i >= 0 {
			return got.Status.Conditions[i].Type
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	return ""
}
