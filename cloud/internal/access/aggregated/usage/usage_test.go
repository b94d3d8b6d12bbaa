package usage_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/skerry-io/skerry/cloud/internal/access/aggregated/usage"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/pki"
)

// summary is a kubelet's answer: of the node, of two pods, one of which has just begun.
const summary = `{"node":{"nodeName":"edge1","cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":250000000},"memory":{"time":"2026-01-02T03:04:05Z","workingSetBytes":1048576}},
"pods":[
{"podRef":{"name":"a","namespace":"n","uid":"uid-a"},"containers":[{"name":"c","cpu":{"time":"2026-01-02T03:04:06Z","usageNanoCores":5000000},"memory":{"workingSetBytes":2048}}]},
{"podRef":{"name":"new","namespace":"n","uid":"uid-new"},"containers":[{"name":"c","cpu":{"time":"2026-01-02T03:04:06Z"},"memory":{"workingSetBytes":2048}}]},
{"podRef":{"name":"a","namespace":"n","uid":"uid-before"},"containers":[{"name":"c","cpu":{"time":"2026-01-02T03:04:06Z","usageNanoCores":1},"memory":{"workingSetBytes":1}}]}]}`

// kubelet answers with the summary, and counts.
type kubelet struct {
	server *httptest.Server
	asked  atomic.Int32
	open   chan struct{} // closed: it answers
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	k := &kubelet{open: make(chan struct{})}
	k.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.asked.Add(1)
		<-k.open
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.String() != "/stats/summary?only_cpu_and_memory=true" {
			http.Error(w, "not so", http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, summary)
	}))
	k.server.StartTLS()
	t.Cleanup(k.server.Close)
	return k
}

// system is a Usage, served, with one kubelet that answers, edge1's.
type system struct {
	t       *testing.T
	kubelet *kubelet
	address string
	ca      *join.CA
}

func object(name, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-" + name), ResourceVersion: "1", Labels: map[string]string{"name": name}}
}

func newSystem(t *testing.T) *system {
	t.Helper()
	nodes := kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes"))
	pods := kube.NewStore(corev1.SchemeGroupVersion.WithResource("pods"))
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: object(name, "n"), Spec: corev1.PodSpec{NodeName: node}}
	}
	if err := errors.Join(
		nodes.Replace([]runtime.Object{&corev1.Node{ObjectMeta: object("edge1", "")}, &corev1.Node{ObjectMeta: object("edge2", "")}}),
		pods.Replace([]runtime.Object{pod("a", "edge1"), pod("new", "edge1"), pod("far", "edge2"), pod("nowhere", "")}),
	); err != nil {
		t.Fatal(err)
	}
	w := &system{t: t, kubelet: newKubelet(t)}
	serving, err := join.LoadCA(t.Context(), fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	w.ca = serving
	node, err := serving.Serving([]string{"edge1"})
	if err != nil {
		t.Fatal(err)
	}
	w.kubelet.server.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		cert, err := node.Certificate()
		if err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cert}}, nil
	}
	u := usage.New(usage.Config{
		Dial: func(ctx context.Context, node types.NodeName) (net.Conn, error) {
			if node != "edge1" {
				return nil, fmt.Errorf("%s has had no link since 14:02:11 UTC", node)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", w.kubelet.server.Listener.Addr().String())
		},
		Token: func(context.Context) (string, error) { return "secret", nil },
		Roots: func() *x509.CertPool { return pki.Pool(serving.Certificate) },
		Nodes: nodes, Pods: pods, FreshFor: time.Hour,
	})
	own, err := serving.Serving([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	secure := pki.ServerTLS(pki.Server{Certificate: own.Certificate, Protocols: []string{"h2", "http/1.1"},
		ClientCAs: func() *x509.CertPool { return pki.Pool(serving.Certificate) }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- u.Serve(ctx, tls.NewListener(l, secure), func(cn string) bool { return cn == "front-proxy" })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// get sends a request with as's client certificate, and decodes the answer where it is 200.
func (w *system) get(as, path string, into any) (int, string) {
	w.t.Helper()
	config := pki.ClientTLS(pki.Client{Roots: pki.Pool(w.ca.Certificate), Certificate: w.ca.Peer(as).Certificate})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	res, err := client.Get("https://" + w.address + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.StatusCode == http.StatusOK && into != nil {
		if err := json.Unmarshal(body, into); err != nil {
			w.t.Fatalf("%v: %s", err, body)
		}
	}
	return res.StatusCode, string(body)
}

const root = "/apis/metrics.k8s.io/v1beta1"

func TestServe_TellsWhatKubeletsSay(t *testing.T) {
	w := newSystem(t)
	close(w.kubelet.open)
	var nodes metrics.NodeMetricsList
	if code, body := w.get("front-proxy", root+"/nodes", &nodes); code != http.StatusOK {
		t.Fatalf("%d: %s", code, body)
	}
	var got []string
	for _, n := range nodes.Items {
		got = append(got, fmt.Sprintf("%s %s %s %v", n.Name, n.Usage.Cpu(), n.Usage.Memory(), n.Labels))
	}
	// edge2 can't be asked, and is left out.
	if diff := cmp.Diff([]string{"edge1 250m 1Mi map[name:edge1]"}, got); diff != "" {
		t.Errorf("nodes (-want +got)\n%s", diff)
	}
	for _, path := range []string{"/pods", "/namespaces/n/pods", "/pods?labelSelector=name%3Da", "/pods?fieldSelector=spec.nodeName%3Dedge1"} {
		var pods metrics.PodMetricsList
		if code, body := w.get("front-proxy", root+path, &pods); code != http.StatusOK {
			t.Fatalf("%d: %s", code, body)
		}
		got = nil
		for _, p := range pods.Items {
			for _, c := range p.Containers {
				got = append(got, fmt.Sprintf("%s/%s/%s %s %s at %s", p.Namespace, p.Name, c.Name, c.Usage.Cpu(), c.Usage.Memory(), p.Timestamp.UTC().Format(time.TimeOnly)))
			}
		}
		// Neither the one without a rate yet, nor the one that had the name before.
		if diff := cmp.Diff([]string{"n/a/c 5m 2Ki at 03:04:06"}, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
	}
	var one metrics.PodMetrics
	if code, body := w.get("front-proxy", root+"/namespaces/n/pods/a", &one); code != http.StatusOK || one.Name != "a" {
		t.Errorf("%d: %s", code, body)
	}
	if n := w.kubelet.asked.Load(); n != 1 {
		t.Errorf("the kubelet was asked %d times within a sample's life", n)
	}
}

func TestServe_Refuses(t *testing.T) {
	w := newSystem(t)
	close(w.kubelet.open)
	for name, test := range map[string]struct {
		as, path string
		code     int
		says     string
	}{
		"not the front proxy":       {"system:node:edge1", root + "/nodes", 403, "front proxy"},
		"no such node":              {"front-proxy", root + "/nodes/none", 404, "not found"},
		"a node out of reach":       {"front-proxy", root + "/nodes/edge2", 503, "edge2 has had no link since 14:02:11 UTC"},
		"a pod out of reach":        {"front-proxy", root + "/namespaces/n/pods/far", 503, "edge2 has had no link since 14:02:11 UTC"},
		"a pod without a rate":      {"front-proxy", root + "/namespaces/n/pods/new", 404, "not found"},
		"a pod without a node":      {"front-proxy", root + "/namespaces/n/pods/nowhere", 404, "not found"},
		"a watch":                   {"front-proxy", root + "/nodes?watch=true", 405, "watch"},
		"a bad label selector":      {"front-proxy", root + "/nodes?labelSelector=%21%21", 400, "label selector"},
		"an unknown field selector": {"front-proxy", root + "/pods?fieldSelector=spec.x%3Dy", 400, "spec.x"},
		"another path":              {"front-proxy", "/apis/metrics.k8s.io/v1/nodes", 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := w.get(test.as, test.path, nil)
			var status metav1.Status
			if err := json.Unmarshal([]byte(body), &status); err != nil || status.Kind != "Status" {
				t.Fatalf("no Status: %s", body)
			}
			if code != test.code || int(status.Code) != code || !strings.Contains(status.Message, test.says) {
				t.Errorf("got %d %q, want %d %q", code, status.Message, test.code, test.says)
			}
		})
	}
}

// Many requests at the same time cost one request to a kubelet.
func TestServe_AsksOnceForMany(t *testing.T) {
	w := newSystem(t)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			var nodes metrics.NodeMetricsList
			if code, body := w.get("front-proxy", root+"/nodes", &nodes); code != http.StatusOK || len(nodes.Items) != 1 {
				t.Errorf("%d: %s", code, body)
			}
		})
	}
	for w.kubelet.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(w.kubelet.open)
	all.Wait()
	if n := w.kubelet.asked.Load(); n != 1 {
		t.Errorf("the kubelet was asked %d times", n)
	}
}

func TestServe_Discovery(t *testing.T) {
	w := newSystem(t)
	var list metav1.APIResourceList
	if code, body := w.get("front-proxy", root, &list); code != http.StatusOK || len(list.APIResources) != 2 {
		t.Errorf("%d: %s", code, body)
	}
	var groups metav1.APIGroupList
	if code, body := w.get("front-proxy", "/apis", &groups); code != http.StatusOK || len(groups.Groups) != 1 || groups.Groups[0].Name != "metrics.k8s.io" {
		t.Errorf("%d: %s", code, body)
	}
}
