package join_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/tests/cluster"
)

// system is a cloudcore's identity parts, with the rights of its manifests and no others.
type system struct {
	admin   kubernetes.Interface
	tokens  *join.Tokens
	ca      *join.CA
	url     string
	linked  atomic.Pointer[types.NodeName]
	revoked *join.Revoked
	changes atomic.Int64
}

func newSystem(t *testing.T) *system {
	t.Helper()
	plane := cluster.Shared(t)
	c := &system{admin: plane.Client(), tokens: join.NewTokens(plane.Client())}
	plane.Apply(t, "manifests/cloudcore") // a test that passes with more rights would not show the missing ones
	cfg := plane.ServiceAccount(t, join.Namespace, "cloudcore")
	client := kubernetes.NewForConfigOrDie(cfg)

	var err error
	if c.ca, err = join.LoadCA(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	serving, err := c.ca.Serving([]string{"localhost", "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	clientCA, err := join.NewClientCA(client)
	if err != nil {
		t.Fatal(err)
	}
	c.revoked = join.NewRevoked(client, func(context.Context) { c.changes.Add(1) })
	server := join.NewServer(join.ServerConfig{
		Client: client, Requester: join.RequesterFor(cfg), Verifier: join.VerifierFor(cfg), Tokens: join.NewTokens(client), CA: c.ca, Serving: serving, ClientCA: clientCA,
		WebSocket: []string{"cloud.example:10000"}, QUIC: []string{"cloud.example:10001"},
		Limits: join.Limits{AddressPerSecond: 1000, AddressBurst: 1000, PerSecond: 1000, Burst: 1000},
	})
	approving := kubernetes.NewForConfigOrDie(plane.ServiceAccount(t, join.Namespace, "cloudcore-approver"))
	approver := join.NewApprover(join.ApproverConfig{
		Client: approving, Tokens: join.NewTokens(approving), Revoked: join.NewRevoked(approving, nil),
		Linked: func(n types.NodeName) bool { l := c.linked.Load(); return l != nil && *l == n },
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.url = "https://" + l.Addr().String()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return clientCA.Run(ctx) })
	g.Go(func() error { return c.revoked.Run(ctx) })
	g.Go(func() error { return approver.Run(ctx) })
	g.Go(func() error { return server.Run(ctx, l) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	cluster.Eventually(t, "the client CA is known", func(context.Context) error {
		if clientCA.Pool() == nil {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	return c
}

func (c *system) token(t *testing.T, o join.TokenOptions) pki.Token {
	t.Helper()
	if o.TTL == 0 {
		o.TTL = time.Hour
	}
	if o.Uses == 0 {
		o.Uses = 1
	}
	token, _, err := c.tokens.Create(t.Context(), c.ca.Pin(), o)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// ask joins on the wire; it returns the answer or the refusal, and the HTTP status.
func (c *system) ask(t *testing.T, bearer string, node types.NodeName, key crypto.Signer) (*pki.JoinAnswer, *pki.Refusal, int) {
	t.Helper()
	csr, err := pki.NewNodeCSR(key, node)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(pki.JoinRequest{NodeName: node, CSR: string(csr), Version: "v0.0.0-test", Protocol: topic.Protocol})
	if err != nil {
		t.Fatal(err)
	}
	return c.post(t, bearer, body)
}

func (c *system) post(t *testing.T, bearer string, body []byte) (*pki.JoinAnswer, *pki.Refusal, int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: pki.ClientTLS(pki.Client{Roots: pki.Pool(c.ca.Certificate)}), DisableKeepAlives: true,
	}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+pki.JoinPath, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		var refusal pki.Refusal
		if err := json.Unmarshal(data, &refusal); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		return nil, &refusal, response.StatusCode
	}
	var answer pki.JoinAnswer
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatal(err)
	}
	return &answer, nil, response.StatusCode
}

func (c *system) mustJoin(t *testing.T, token pki.Token, node types.NodeName, key crypto.Signer) (*pki.JoinAnswer, *x509.Certificate) {
	t.Helper()
	answer, refusal, _ := c.ask(t, token.Bearer(), node, key)
	if refusal != nil {
		t.Fatal(refusal)
	}
	certs, err := pki.ParseCertificates([]byte(answer.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	return answer, certs[0]
}

func (c *system) mustRefuse(t *testing.T, bearer string, node types.NodeName, reason pki.Reason, words ...string) {
	t.Helper()
	_, refusal, status := c.ask(t, bearer, node, newKey(t))
	if refusal == nil {
		t.Fatalf("%s joined; want a refusal for %s", node, reason)
	}
	if refusal.Reason != reason || status != reason.Status() {
		t.Errorf("refused with %d %v; want %d %s", status, refusal, reason.Status(), reason)
	}
	for _, w := range words {
		if !strings.Contains(refusal.Message, w) {
			t.Errorf("the message %q does not say %q", refusal.Message, w)
		}
	}
}

// as is a client of kube-apiserver with the node's new certificate.
func as(t *testing.T, cert *x509.Certificate, key crypto.Signer) kubernetes.Interface {
	t.Helper()
	return kubernetes.NewForConfigOrDie(nodeConfig(t, cert, key))
}

func nodeConfig(t *testing.T, cert *x509.Certificate, key crypto.Signer) *rest.Config {
	t.Helper()
	plane := cluster.Shared(t)
	keyPEM, err := pki.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(plane.Admin())
	cfg.TLSClientConfig.CertData, cfg.TLSClientConfig.KeyData = pki.EncodeCertificates(cert), keyPEM
	return cfg
}

// edgeNode is a Node as edgecore registers it.
func edgeNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.EdgeOwnLabel: ""}}}
}

func makeNode(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	cluster.Eventually(t, "the node "+name+" is made", func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().Create(ctx, edgeNode(name), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func TestJoin(t *testing.T) {
	c := newSystem(t)
	token, key := c.token(t, join.TokenOptions{}), newKey(t)
	answer, cert := c.mustJoin(t, token, "edge-join", key)

	if node, err := pki.NodeOf(cert); err != nil || node != "edge-join" {
		t.Errorf("the certificate is of %q (%v)", node, err)
	}
	if answer.Protocol != topic.Protocol || len(answer.WebSocket) != 1 || len(answer.QUIC) != 1 || answer.ClientCA == "" || answer.UnixMillis == 0 {
		t.Errorf("the answer lacks something: %+v", answer)
	}
	// Kubernetes takes the holder for that node, and for no other.
	node := as(t, cert, key)
	makeNode(t, node, "edge-join")
	_, err := node.CoreV1().Nodes().Create(t.Context(), edgeNode("edge-other"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("making another node: %v; want it forbidden", err)
	}
	// A use is taken once, and the same request asked again (its answer was lost) takes no other.
	again, _ := c.mustJoin(t, token, "edge-join", key)
	if again.Certificate != answer.Certificate {
		t.Error("asking again gave another certificate")
	}
	c.mustRefuse(t, token.Bearer(), "edge-join-2", pki.ReasonTokenUsedUp, "used up", "cloudcore token create")
}

func TestTokenRefusals(t *testing.T) {
	c := newSystem(t)
	good := c.token(t, join.TokenOptions{Uses: 5})
	bound := c.token(t, join.TokenOptions{Node: "edge-bound"})
	short := join.NewTokens(c.admin)
	expired, _, err := short.Create(t.Context(), c.ca.Pin(), join.TokenOptions{TTL: time.Minute, Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	expire(t, c.admin, expired.ID)
	revoked := c.token(t, join.TokenOptions{})
	if err := c.tokens.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	secretGone := c.token(t, join.TokenOptions{})
	if err := c.admin.CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-"+secretGone.ID, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	for name, tc := range map[string]struct {
		bearer string
		node   types.NodeName
		reason pki.Reason
	}{
		"none":                        {"", "edge-t", pki.ReasonTokenShape},
		"no token at all":             {"hello", "edge-t", pki.ReasonTokenShape},
		"unknown":                     {"aaaaaa.0123456789abcdef", "edge-t", pki.ReasonTokenUnknown},
		"wrong secret":                {good.ID + ".0123456789abcdef", "edge-t", pki.ReasonTokenWrong},
		"expired":                     {expired.Bearer(), "edge-t", pki.ReasonTokenExpired},
		"revoked":                     {revoked.Bearer(), "edge-t", pki.ReasonTokenUnknown},
		"its Secret deleted":          {secretGone.Bearer(), "edge-t", pki.ReasonTokenWrong},
		"for another node, by its id": {bound.ID + ".0123456789abcdef", "edge-t", pki.ReasonTokenWrong},
		"for another node":            {bound.Bearer(), "edge-t", pki.ReasonTokenNode},
		"node name that can't be":     {good.Bearer(), "Edge_T", pki.ReasonBadName},
		"another cluster's (alike)":   {"bbbbbb.fedcba9876543210", "edge-t", pki.ReasonTokenUnknown},
	} {
		t.Run(name, func(t *testing.T) { c.mustRefuse(t, tc.bearer, tc.node, tc.reason) })
	}
	// These refusals took no use.
	infos, err := c.tokens.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.ID == good.ID && i.UsesLeft != 5 {
			t.Errorf("refusals took %d uses", 5-i.UsesLeft)
		}
	}
	c.mustJoin(t, bound, "edge-bound", newKey(t))
}

func expire(t *testing.T, admin kubernetes.Interface, id string) {
	t.Helper()
	past := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	for _, patch := range []func() error{
		func() error {
			_, err := admin.CoreV1().ConfigMaps(join.Namespace).Patch(t.Context(), "skerry-token-"+id, types.MergePatchType,
				fmt.Appendf(nil, `{"data":{"expires":%q}}`, past), metav1.PatchOptions{})
			return err
		},
		func() error {
			_, err := admin.CoreV1().Secrets("kube-system").Patch(t.Context(), "bootstrap-token-"+id, types.MergePatchType,
				fmt.Appendf(nil, `{"stringData":{"expiration":%q}}`, past), metav1.PatchOptions{})
			return err
		},
	} {
		if err := patch(); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

func TestTwoRaceForTheLastUse(t *testing.T) {
	c := newSystem(t)
	token := c.token(t, join.TokenOptions{Uses: 3})
	const devices = 8
	var joined, refused atomic.Int64
	var g errgroup.Group
	for n := range devices {
		node, key := types.NodeName(fmt.Sprintf("edge-race-%d", n)), newKey(t)
		g.Go(func() error {
			answer, refusal, _ := c.ask(t, token.Bearer(), node, key)
			switch {
			case answer != nil:
				joined.Add(1)
			case refusal.Reason == pki.ReasonTokenUsedUp:
				refused.Add(1)
			default:
				return refusal
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if joined.Load() != 3 || refused.Load() != devices-3 {
		t.Errorf("%d joined and %d were refused; want 3 and %d", joined.Load(), refused.Load(), devices-3)
	}
}

func TestLiveName(t *testing.T) {
	c := newSystem(t)
	key := newKey(t)
	_, cert := c.mustJoin(t, c.token(t, join.TokenOptions{}), "edge-live", key)
	node := as(t, cert, key)

	// Before the first device has made its Node, its name is taken already.
	c.mustRefuse(t, c.token(t, join.TokenOptions{}).Bearer(), "edge-live", pki.ReasonNodeExists, "another device joined as edge-live")

	makeNode(t, node, "edge-live")
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "edge-live"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("edge-live"), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro()),
		},
	}
	lease, err := node.CoordinationV1().Leases("kube-node-lease").Create(t.Context(), lease, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bound := c.token(t, join.TokenOptions{Node: "edge-live"})
	c.mustRefuse(t, c.token(t, join.TokenOptions{}).Bearer(), "edge-live", pki.ReasonNodeLive, "alive")
	c.mustRefuse(t, bound.Bearer(), "edge-live", pki.ReasonNodeLive, "alive")

	// An island out of reach keeps its name, except from a token made for just that name.
	lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Minute)))
	if _, err := node.CoordinationV1().Leases("kube-node-lease").Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.linked.Store(new(types.NodeName("edge-live")))
	c.mustRefuse(t, bound.Bearer(), "edge-live", pki.ReasonNodeLive, "linked")
	c.linked.Store(nil)
	c.mustRefuse(t, c.token(t, join.TokenOptions{}).Bearer(), "edge-live", pki.ReasonNodeExists, "--node edge-live")
	c.mustJoin(t, bound, "edge-live", newKey(t))
}

func TestTokenWithoutTheServer(t *testing.T) {
	plane := cluster.Shared(t)
	c := newSystem(t)
	token := c.token(t, join.TokenOptions{Uses: 10, Node: "edge-mine"})
	cfg := rest.AnonymousClientConfig(plane.Admin())
	cfg.BearerToken = token.Bearer()
	thief := kubernetes.NewForConfigOrDie(cfg)
	if _, err := thief.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing certificate requests with a token: %v; want it forbidden", err)
	}
	mine, err := pki.NewNodeCSR(newKey(t), "edge-mine")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewNodeCSR(newKey(t), "edge-yours")
	if err != nil {
		t.Fatal(err)
	}
	client := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	for name, tc := range map[string]struct {
		csr    []byte
		usages []certificatesv1.KeyUsage
		want   string // the reason of the denial; "": approved
	}{
		"its own node":  {mine, client, ""},
		"another node":  {other, client, string(pki.ReasonTokenNode)},
		"other usages":  {mine, append(client[:2:2], certificatesv1.UsageServerAuth), string(pki.ReasonBadCSR)},
		"administrator": {adminCSR(t), client, string(pki.ReasonBadCSR)},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := thief.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "thief-"},
				Spec:       certificatesv1.CertificateSigningRequestSpec{Request: tc.csr, SignerName: join.Signer, Usages: tc.usages},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.decision(t, made.Name); got != tc.want {
				t.Errorf("decided %q; want %q", got, tc.want)
			}
		})
	}
}

// decision waits for the decision on a request: the reason of a denial, or "".
func (c *system) decision(t *testing.T, name string) string {
	t.Helper()
	reason := ""
	cluster.Eventually(t, name+" is decided", func(ctx context.Context) error {
		csr, err := c.admin.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range csr.Status.Conditions {
			if cond.Type == certificatesv1.CertificateDenied {
				reason = cond.Reason
				return nil
			}
		}
		if len(csr.Status.Certificate) == 0 {
			return fmt.Errorf("conditions %v", csr.Status.Conditions)
		}
		return nil
	})
	return reason
}

func TestRenewal(t *testing.T) {
	plane := cluster.Shared(t)
	c := newSystem(t)
	key := newKey(t)
	_, cert := c.mustJoin(t, c.token(t, join.TokenOptions{}), "edge-renew", key)
	makeNode(t, as(t, cert, key), "edge-renew")
	// Through the link a renewal comes by constrained impersonation (KEP-5284): the name alone, and
	// kube-apiserver adds the groups.
	cfg := plane.ServiceAccount(t, join.Namespace, "cloudcore")
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:node:edge-renew"}
	linked := kubernetes.NewForConfigOrDie(cfg)
	send := func(client kubernetes.Interface, node types.NodeName) (string, error) {
		t.Helper()
		csr, err := pki.NewNodeCSR(newKey(t), node)
		if err != nil {
			t.Fatal(err)
		}
		made, err := client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "renew-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{Request: csr, SignerName: join.Signer,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return made.Name, nil
	}
	renew := func(node types.NodeName) string {
		t.Helper()
		name, err := send(linked, node)
		if err != nil {
			t.Fatal(err)
		}
		return c.decision(t, name)
	}
	// A request of a kubelet that connects to kube-apiserver itself is not ours: whatever the
	// cluster does with it, we leave it alone. It is made first, so that it would have been judged
	// when the later ones are.
	direct, err := send(as(t, cert, key), "edge-renew")
	if err != nil {
		t.Fatal(err)
	}
	if got := renew("edge-renew"); got != "" {
		t.Errorf("the renewal was denied: %s", got)
	}
	if csr, err := c.admin.CertificatesV1().CertificateSigningRequests().Get(t.Context(), direct, metav1.GetOptions{}); err != nil {
		t.Error(err)
	} else if len(csr.Status.Conditions) > 0 {
		t.Errorf("a kubelet's own renewal was decided: %v", csr.Status.Conditions)
	}
	if _, err := send(linked, "edge-other"); !apierrors.IsForbidden(err) {
		t.Errorf("asking for another's certificate: %v; want it forbidden by NodeRestriction", err)
	}
	if err := c.admin.CoreV1().Nodes().Delete(t.Context(), "edge-renew", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := renew("edge-renew"); got != string(pki.ReasonNodeGone) {
		t.Errorf("renewing after the node was removed: %q; want %s", got, pki.ReasonNodeGone)
	}
}

func TestRevoke(t *testing.T) {
	c := newSystem(t)
	key := newKey(t)
	_, cert := c.mustJoin(t, c.token(t, join.TokenOptions{}), "edge-revoked", key)
	makeNode(t, as(t, cert, key), "edge-revoked")
	if err := c.revoked.Admit(t.Context(), "edge-revoked", cert); err != nil {
		t.Fatal(err)
	}
	seen := c.changes.Load()
	done, err := join.Revoke(t.Context(), c.admin, "edge-revoked")
	if err != nil {
		t.Fatal(err)
	}
	if !done.NodeDeleted || !done.Known || done.At.IsZero() {
		t.Errorf("revoking did %+v", done)
	}
	if typo, err := join.Revoke(t.Context(), c.admin, "edge-revokd"); err != nil || typo.Known || typo.NodeDeleted {
		t.Errorf("revoking a device that never joined did %+v, %v", typo, err)
	}
	cluster.Eventually(t, "the sessions are checked again", func(context.Context) error {
		if c.changes.Load() == seen {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	cluster.Eventually(t, "the certificate is refused", func(ctx context.Context) error {
		if c.revoked.Admit(ctx, "edge-revoked", cert) == nil {
			return fmt.Errorf("still admitted")
		}
		return nil
	})
	if _, err := c.admin.CoreV1().Nodes().Get(t.Context(), "edge-revoked", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node is still there: %v", err)
	}
	// The name is free at once for another device, whose certificate is good.
	_, next := c.mustJoin(t, c.token(t, join.TokenOptions{}), "edge-revoked", newKey(t))
	if err := c.revoked.Admit(t.Context(), "edge-revoked", next); err != nil {
		t.Errorf("the new device is refused: %v", err)
	}
}

func TestOtherClustersCertificate(t *testing.T) {
	plane := cluster.Shared(t)
	c := newSystem(t)
	clientCA := x509.NewCertPool()
	clientCA.AppendCertsFromPEM(plane.CA())
	serving, err := c.ca.Serving([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", pki.ServerTLS(pki.Server{Certificate: serving.Certificate, ClientCAs: func() *x509.CertPool { return clientCA }}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Write([]byte("hi"))
				conn.Close()
			}()
		}
	}()
	key := newKey(t)
	_, mine := c.mustJoin(t, c.token(t, join.TokenOptions{}), "edge-tls", key)
	dial := func(cert *tls.Certificate) error {
		conn, err := tls.Dial("tcp", l.Addr().String(), pki.ClientTLS(pki.Client{
			Roots: pki.Pool(c.ca.Certificate), Certificate: func() (*tls.Certificate, error) { return cert, nil },
		}))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 the server's word on our certificate comes with the first read
		return err
	}
	if err := dial(&tls.Certificate{Certificate: [][]byte{mine.Raw}, PrivateKey: key}); err != nil {
		t.Errorf("this cluster's node is refused: %v", err)
	}
	if err := dial(foreign(t, "edge-tls")); err == nil {
		t.Error("another cluster's node is let in")
	}
	if err := dial(&tls.Certificate{}); err == nil {
		t.Error("a client without a certificate is let in")
	}
}

// Edges that dial before the CA was read from kube-apiserver wait for it instead of being refused.
func TestClientCA_Wait(t *testing.T) {
	plane := cluster.Shared(t)
	ca, err := join.NewClientCA(plane.Client())
	if err != nil {
		t.Fatal(err)
	}
	if ca.Pool() != nil {
		t.Fatal("the CA is known before it was requested")
	}
	waited := make(chan *x509.CertPool, 1)
	go func() { waited <- ca.Wait() }()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ca.Run(ctx) }()
	if pool := <-waited; pool == nil {
		t.Error("the CA was not waited for")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
