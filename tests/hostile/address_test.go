package hostile_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

// withTunnel is the part of cloudcore.yaml by which kube-apiserver goes through cloudcore.
func withTunnel() string {
	return fmt.Sprintf("tunnel: {listen: %q, advertise: %q}\n", tunnelAddress, tunnelAddress)
}

// The kubelets' port, the only one at which an address could lead to an edge.
const kubeletPort = "10250"

// TestHostile_06_ClaimedAddressesAttractNoTraffic: kube-apiserver goes to webhooks and kubelets
// through cloudcore. A device writes into its Node, by its link, that it has the address of a
// webhook's Service, of an ordinary node, of another edge, and of the control plane's load
// balancer, and that its kubelet listens at their port. kube-apiserver's connections arrive at
// their targets, and open no stream to the device.
func TestHostile_06_ClaimedAddressesAttractNoTraffic(t *testing.T) {
	s := newSystem(t, withTunnel())
	ns := things(t)
	admin := plane.Client()
	hook, clusterIP := webhook(t, ns)
	serve(t, "127.97.0.2:"+kubeletPort, "ordinary", nil, "plain1")
	cloud := serve(t, net.JoinHostPort(balancer, kubeletPort), "control plane", nil, "balancer")
	for node, address := range map[string]string{"plain1": "127.97.0.2", another: "127.97.0.3"} {
		if node == "plain1" {
			plane.AddOrdinaryNode(t, node)
			made(t)(admin.CoreV1().Pods(ns).Create(t.Context(), podOn(ns, node), metav1.CreateOptions{}))
		}
		claim(t, kubernetes.NewForConfigOrDie(plane.Node(t, node)), node, address)
	}
	labelAsEdge(t, own, another)
	honest, liar := s.dial(t, link.WebSocket, another), s.dial(t, link.QUIC, own)
	for _, address := range []string{clusterIP, "127.97.0.2", "127.97.0.3", balancer, "127.0.0.1"} {
		claimByLink(t, liar, address)
	}
	settled(t, liar)

	made(t)(admin.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "asked", Labels: map[string]string{"hook": ns}}}, metav1.CreateOptions{}))
	if hook.requests.Load() == 0 {
		t.Error("the webhook was not called")
	}
	if log, err := admin.CoreV1().Pods(ns).GetLogs("on-plain1", &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil || string(log) != "ordinary" {
		t.Errorf("a log of the ordinary node: %q, %v", log, err)
	}
	if got := connect(t, net.JoinHostPort(balancer, kubeletPort), "balancer"); got != "control plane" {
		t.Errorf("the load balancer's address leads to %q", got)
	}
	if cloud.connections.Load() == 0 {
		t.Error("the load balancer was not dialled")
	}
	// The other edge is found by its name, and only its own link gets it.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = admin.CoreV1().Pods(ns).GetLogs("theirs", &corev1.PodLogOptions{}).DoRaw(ctx) }()
	cluster.Eventually(t, "a stream to the other edge", func(context.Context) error {
		if opened, _ := honest.Streams(); len(opened) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if opened, _ := liar.Streams(); len(opened) > 0 {
		t.Errorf("the device was sent %d streams that were not for it", len(opened))
	}
	// Its own name leads to it: the device could have had streams.
	go func() { _, _ = admin.CoreV1().Pods(ns).GetLogs("mine", &corev1.PodLogOptions{}).DoRaw(ctx) }()
	cluster.Eventually(t, "a stream to the device itself", func(context.Context) error {
		if opened, _ := liar.Streams(); len(opened) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	certificates(t, clusterIP)
}

// podOn is a pod of an ordinary node, whose log is asked for.
func podOn(ns, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node, Namespace: ns}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "example.test/none:1"}},
	}}
}

// webhook is a real one, at the address of its Service.
func webhook(t *testing.T, ns string) (s *server, clusterIP string) {
	t.Helper()
	admin := plane.Client()
	service, err := admin.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 10250}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s = serve(t, net.JoinHostPort(service.Spec.ClusterIP, kubeletPort), "hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		_ = json.NewEncoder(w).Encode(&review)
	}), "hook."+ns+".svc")
	configurations := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	made(t)(configurations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.example.test", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:  new(admissionregistrationv1.Fail),
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"hook": ns}},
			ClientConfig:   admissionregistrationv1.WebhookClientConfig{CABundle: plane.CA(), Service: &admissionregistrationv1.ServiceReference{Namespace: ns, Name: "hook", Port: new(int32(10250))}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() {
		if err := configurations.Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	cluster.Eventually(t, "kube-apiserver calls the webhook", func(ctx context.Context) error {
		_, err := admin.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-", Labels: map[string]string{"hook": ns}}}, metav1.CreateOptions{})
		if err == nil && s.requests.Load() == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	s.requests.Store(0)
	s.http.SetKeepAlivesEnabled(false) // the next call dials
	return s, service.Spec.ClusterIP
}

func statusOf(name, address string) []byte {
	raw, err := json.Marshal(map[string]any{"status": map[string]any{
		"addresses":       []any{map[string]any{"type": "InternalIP", "address": address}, map[string]any{"type": "Hostname", "address": name}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": 10250}},
	}})
	if err != nil {
		return nil
	}
	return raw
}

// claim writes a kubelet's claim into its Node.
func claim(t *testing.T, node kubernetes.Interface, name, address string) {
	t.Helper()
	made(t)(node.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, statusOf(name, address), metav1.PatchOptions{}, "status"))
}

// claimByLink adds an address to those that the device's Node has, with all of an address' types.
func claimByLink(t *testing.T, d *hostile.Device, address string) {
	t.Helper()
	n, err := plane.Client().CoreV1().Nodes().Get(t.Context(), own, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses := n.Status.Addresses
	if len(addresses) == 0 {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: own})
	}
	addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: address})
	body, err := json.Marshal(map[string]any{"status": map[string]any{
		"addresses": addresses, "daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": 10250}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Write(t.Context(), topic.NodeStatusWrite, &topicpb.Write{
		Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: own, Subresource: "status",
		PatchType: string(types.MergePatchType), Body: body,
	})
	if err != nil || !r.GetAccepted() {
		t.Fatalf("claiming %s: %v %s", address, err, r.GetStatus())
	}
}

// settled returns when cloudcore has seen the device's claim: an address that no other host has
// leads to it. One dial at a time, so that no dial is under way when the device forgets its
// streams: until cloudcore has the address each is refused at once, and the first that it lets
// through is the last.
func settled(t *testing.T, d *hostile.Device) {
	t.Helper()
	claimByLink(t, d, "127.98.0.1")
	var refused chan error
	cluster.Eventually(t, "cloudcore knows what the device claims", func(ctx context.Context) error {
		if opened, _ := d.Streams(); len(opened) > 0 {
			return nil
		}
		if refused == nil {
			refused = make(chan error, 1)
			go func(answer chan<- error) {
				_, err := dialTunnel(t.Context(), t, "127.98.0.1:"+kubeletPort)
				answer <- err
			}(refused)
		}
		select {
		case err := <-refused:
			refused = nil
			return fmt.Errorf("refused: %w", err)
		default:
			return errors.New("no stream yet")
		}
	})
	d.Forget()
}

func labelAsEdge(t *testing.T, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		made(t)(plane.Client().CoreV1().Nodes().Patch(t.Context(), n, types.MergePatchType, []byte(`{"metadata":{"labels":{"skerry.io/edge":""}}}`), metav1.PatchOptions{}))
	}
}

// dialTunnel asks cloudcore for a connection as kube-apiserver does, with its certificate.
func dialTunnel(ctx context.Context, t *testing.T, target string) (net.Conn, error) {
	identity := filepath.Join(plane.Dir, "pki", "apiserver-kubelet-client")
	pair, err := tls.LoadX509KeyPair(identity+".crt", identity+".key")
	if err != nil {
		return nil, err
	}
	secret, err := plane.Client().CoreV1().Secrets("skerry-system").Get(ctx, "skerry-ca", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])
	conn, err := (&tls.Dialer{Config: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "127.0.0.1"}}).DialContext(ctx, "tcp", tunnelAddress)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return nil, err
	}
	head := make([]byte, 0, 512)
	for !strings.HasSuffix(string(head), "\r\n\r\n") {
		one := make([]byte, 1)
		if _, err := conn.Read(one); err != nil {
			return nil, err
		}
		head = append(head, one...)
	}
	if !strings.HasPrefix(string(head), "HTTP/1.1 200") {
		return nil, fmt.Errorf("%.100s", head)
	}
	return conn, nil
}

// connect returns the answer of a target behind the tunnel.
func connect(t *testing.T, target, name string) string {
	t.Helper()
	conn, err := dialTunnel(t.Context(), t, target)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(plane.CA())
	secure := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: name})
	if _, err := io.WriteString(secure, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(secure)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw[strings.LastIndex(string(raw), "\n")+1:])
}

// certificates: a device requests serving certificates for the addresses that it claims. Only one
// for its name is approved.
func certificates(t *testing.T, clusterIP string) {
	t.Helper()
	node := kubernetes.NewForConfigOrDie(plane.Node(t, own))
	for name, c := range map[string]struct {
		address string
		want    certificatesv1.RequestConditionType
	}{
		"its name alone": {"", certificatesv1.CertificateApproved}, "a webhook's ClusterIP": {clusterIP, certificatesv1.CertificateDenied},
		"an ordinary node's": {"127.97.0.2", certificatesv1.CertificateDenied}, "the load balancer's": {balancer, certificatesv1.CertificateDenied},
		"kube-apiserver's": {"127.0.0.1", certificatesv1.CertificateDenied},
	} {
		t.Run("a serving certificate for "+name, func(t *testing.T) {
			key, err := pki.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			made, err := node.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "serving-"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request: servingRequest(t, key, c.address), SignerName: certificatesv1.KubeletServingSignerName,
					Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cluster.Eventually(t, "a decision", func(ctx context.Context) error {
				csr, err := plane.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, made.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				for _, have := range csr.Status.Conditions {
					if have.Type != c.want {
						t.Errorf("%s: %s, want %s", have.Type, have.Message, c.want)
					}
					return nil
				}
				return errors.New("not yet")
			})
		})
	}
}

func servingRequest(t *testing.T, key crypto.Signer, address string) []byte {
	t.Helper()
	tmpl := &x509.CertificateRequest{Subject: pkix.Name{CommonName: pki.NodeUserPrefix + own, Organization: []string{pki.NodesGroup}}, DNSNames: []string{own}}
	if address != "" {
		tmpl.IPAddresses = []net.IP{net.ParseIP(address)}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestHostile_06_ForgedLeaseIsNotDialled: a device writes a false place of its link into its own
// Lease: an address of its choice, another node's announcement, one with a changed address. Then it
// has no link, and kube-apiserver asks for its kubelet. cloudcore dials none of them.
func TestHostile_06_ForgedLeaseIsNotDialled(t *testing.T) {
	s := newSystem(t, withTunnel())
	ns := things(t)
	labelAsEdge(t, own, another)
	admin := plane.Client()
	thief := serve(t, "127.97.0.4:0", "thief", nil, "thief")
	at := net.JoinHostPort("127.97.0.4", thief.port)
	leases := admin.CoordinationV1().Leases("kube-node-lease")
	honest := s.dial(t, link.WebSocket, another)
	announced := ""
	cluster.Eventually(t, "the other node's Lease says where its link is", func(ctx context.Context) error {
		if err := honest.Send(ctx, heartbeat()); err != nil {
			return err
		}
		l, err := leases.Get(ctx, another, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if announced = l.Annotations["skerry.io/tunnel"]; announced == "" {
			return errors.New("not yet")
		}
		return nil
	})
	_, rest, _ := strings.Cut(announced, " ")
	for name, value := range map[string]string{
		"an address": at, "as replicas write it": at + " " + rest, "another node's": announced, "of nothing": "", "with a line of its own": at + " 1 2\r\nX: y",
	} {
		t.Run(name, func(t *testing.T) {
			device := s.dial(t, link.QUIC, own)
			body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"skerry.io/tunnel": value, "skerry.io/cloudcore": "another-replica"}}})
			if err != nil {
				t.Fatal(err)
			}
			a, err := device.Ask(t.Context(), &topicpb.APIRequest{
				Method: http.MethodPatch, Path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + own, ContentType: string(types.MergePatchType), Body: body,
			})
			if err != nil || a.GetCode() != http.StatusOK {
				t.Fatalf("writing its Lease: %v, %d %s", err, a.GetCode(), a.GetBody())
			}
			device.Close()
			cluster.Eventually(t, "the device's link has ended", func(ctx context.Context) error {
				_, err := dialTunnel(ctx, t, own+":"+kubeletPort)
				if err == nil || !strings.Contains(err.Error(), "link") {
					return fmt.Errorf("got %w", errors.Join(err, errors.New("another answer")))
				}
				return nil
			})
			// Written once more: a heartbeat on its way may have been later.
			node := kubernetes.NewForConfigOrDie(plane.Node(t, own))
			made(t)(node.CoordinationV1().Leases("kube-node-lease").Patch(t.Context(), own, types.MergePatchType, body, metav1.PatchOptions{}))
			if log, err := admin.CoreV1().Pods(ns).GetLogs("mine", &corev1.PodLogOptions{}).DoRaw(t.Context()); err == nil {
				t.Errorf("a log came: %q", log)
			}
		})
	}
	if n := thief.connections.Load(); n > 0 {
		t.Errorf("cloudcore dialled the address in the device's Lease %d times", n)
	}
}
