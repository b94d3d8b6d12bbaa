package join

import (
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/pki"
)

func TestOurs(t *testing.T) {
	csr := func(change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
		c := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: Signer, Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", BootstrapGroup, "system:authenticated"},
		}}
		if change != nil {
			change(c)
		}
		return c
	}
	type request = certificatesv1.CertificateSigningRequest
	decided := func(kind certificatesv1.RequestConditionType) func(*request) {
		return func(c *request) {
			c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind}}
		}
	}
	for name, tc := range map[string]struct {
		csr  *request
		want bool
	}{
		"a device's":       {csr(nil), true},
		"another signer's": {csr(func(c *request) { c.Spec.SignerName = certificatesv1.KubeletServingSignerName }), false},
		"kubeadm's token":  {csr(func(c *request) { c.Spec.Groups = []string{"system:bootstrappers:kubeadm:default-node-token"} }), false},
		"a user in our group without a token": {csr(func(c *request) {
			c.Spec.Username = "mallory"
		}), false},
		"a node's": {csr(func(c *request) {
			c.Spec.Username, c.Spec.Groups = "system:node:edge1", []string{"system:nodes", "system:authenticated"}
		}), true},
		"approved": {csr(decided(certificatesv1.CertificateApproved)), false},
		"denied":   {csr(decided(certificatesv1.CertificateDenied)), false},
		"failed":   {csr(decided(certificatesv1.CertificateFailed)), false},
		"issued":   {csr(func(c *request) { c.Status.Certificate = []byte("x") }), false},
	} {
		if got := ours(tc.csr); got != tc.want {
			t.Errorf("%s: ours is %v; want %v", name, got, tc.want)
		}
	}
}

func TestLimiter(t *testing.T) {
	l := newLimiter(Limits{PerSecond: 1e-9, Burst: 10, AddressPerSecond: 1e-9, AddressBurst: 3})
	count := func(remote string) int {
		n := 0
		for range 5 {
			if l.allow(remote) {
				n++
			}
		}
		return n
	}
	got := []int{
		count("192.0.2.1:1000"), count("192.0.2.1:2000"), // another port is the same address
		count("[2001:db8::1]:1"), count("[2001:db8::2]:1"), // the same /64
		count("[2001:db8:0:1::1]:1"), count("[::ffff:192.0.2.1]:1"),
		count("strange"), count("192.0.2.9:1"), // the bound for all is reached
	}
	if diff := cmp.Diff([]int{3, 0, 3, 0, 3, 0, 1, 0}, got); diff != "" {
		t.Errorf("let through (-want +got):\n%s", diff)
	}
	for i := range 2 * addressesKept {
		l.allow(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	if len(l.addresses) != addressesKept || l.order.Len() != addressesKept {
		t.Errorf("%d and %d addresses are kept; want %d", len(l.addresses), l.order.Len(), addressesKept)
	}
}

func TestServingIsRenewed(t *testing.T) {
	secret, err := newCASecret(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := parseCASecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ca.Serving([]string{"cloud.example", "192.0.2.1", "2001:db8::1"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.now = func() time.Time { return now }
	first, err := s.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Leaf.DNSNames) != 1 || len(first.Leaf.IPAddresses) != 2 || !first.Leaf.NotBefore.Equal(ca.Certificate.NotBefore) {
		t.Errorf("names %v, addresses %v, from %v", first.Leaf.DNSNames, first.Leaf.IPAddresses, first.Leaf.NotBefore)
	}
	now = now.Add(servingLifetime / 2)
	if again, err := s.Certificate(); err != nil || again != first {
		t.Errorf("renewed at half its life (%v)", err)
	}
	now = now.Add(servingLifetime/6 + time.Hour)
	if second, err := s.Certificate(); err != nil || second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Errorf("not renewed with a third of its life left (%v)", err)
	}
	if _, err := ca.Serving(nil); err == nil {
		t.Error("a certificate for no name")
	}
}

func TestRevokedList(t *testing.T) {
	secret, err := newCASecret(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := parseCASecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	cert := ca.Certificate // any will do; it began an hour ago
	began := cert.NotBefore.UTC()
	for name, tc := range map[string]struct {
		list map[string]string
		want bool // refused
	}{
		"empty":                 {nil, false},
		"another node":          {map[string]string{"edge2": "2100-01-01T00:00:00Z"}, false},
		"issued before":         {map[string]string{"edge1": began.Add(time.Second).Format(time.RFC3339)}, true},
		"issued since":          {map[string]string{"edge1": began.Format(time.RFC3339)}, false},
		"asked for since":       {map[string]string{"edge1": began.Add(time.Second).Format(time.RFC3339) + " " + keyID(cert.RawSubjectPublicKeyInfo)}, false},
		"another key":           {map[string]string{"edge1": began.Add(time.Second).Format(time.RFC3339) + " " + keyID([]byte("x"))}, true},
		"nothing":               {map[string]string{"edge1": ""}, true},
		"a time that is none":   {map[string]string{"edge1": "yesterday"}, true},
		"by its fingerprint":    {map[string]string{"SHA256." + strings.ToUpper(pki.Fingerprint(cert)): "edge1"}, true},
		"by another's":          {map[string]string{"SHA256." + strings.Repeat("0", 64): "edge1"}, false},
		"a node named like one": {map[string]string{"sha256." + pki.Fingerprint(cert): "2000-01-01T00:00:00Z"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRevoked(nil, nil)
			r.set(t.Context(), &corev1.ConfigMap{Data: tc.list})
			if err := r.Check("edge1", cert); (err != nil) != tc.want {
				t.Errorf("got %v; want refused: %v", err, tc.want)
			}
		})
	}
}

func TestTokenOptions(t *testing.T) {
	bad := TokenOptions{TTL: time.Second, Uses: MaxUses + 1, Node: "Edge_1", Description: "two\nlines"}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, word := range []string{"1m", "1000", "Edge_1", "printed"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not mention %q: %v", word, err)
		}
	}
	if err := (TokenOptions{TTL: DefaultTTL, Uses: DefaultUses}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestRecordRoundTrip(t *testing.T) {
	want := TokenInfo{
		ID: "abcdef", Created: time.Unix(0, 0).UTC(), Expires: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), UsesLeft: 2, Node: "edge1",
		Description: "a site",
	}
	record := newRecord(want)
	record.CreationTimestamp = metav1.NewTime(want.Created)
	got, err := parseRecord(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(TokenInfo{})); diff != "" {
		t.Error(diff)
	}
}

func TestOldTokensAreCleared(t *testing.T) {
	tokens := NewTokens(fake.NewClientset())
	start := time.Now()
	now := start
	tokens.now = func() time.Time { return now }
	for _, age := range []time.Duration{0, 3 * 24 * time.Hour, keptFor + 3*24*time.Hour} {
		now = start.Add(age)
		if _, _, err := tokens.Create(t.Context(), pki.Pin{}, TokenOptions{TTL: DefaultTTL, Uses: 1}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := tokens.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := tokens.client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || len(secrets.Items) != 2 {
		t.Errorf("%d tokens and %d Secrets are left; want the two that expired less than %v ago", len(got), len(secrets.Items), keptFor)
	}
}
