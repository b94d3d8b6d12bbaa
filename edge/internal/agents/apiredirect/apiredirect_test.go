package apiredirect_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/edge/internal/agents/apiredirect"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
)

var listen = netip.MustParseAddrPort("169.254.20.20:10550")

var equal = cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})

func TestPlan(t *testing.T) {
	port := func(name string, n int32, p corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: n, Protocol: p}
	}
	for name, test := range map[string]struct {
		spec corev1.ServiceSpec
		want []string
	}{
		"as kube-apiserver makes it": {corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{port("https", 443, "TCP")}}, []string{"10.96.0.1:443"}},
		"two families":               {corev1.ServiceSpec{ClusterIPs: []string{"fd00::1", "10.96.0.1"}, Ports: []corev1.ServicePort{port("https", 443, "TCP")}}, []string{"10.96.0.1:443"}},
		"of before dual stack":       {corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{port("", 6443, "")}}, []string{"10.96.0.1:6443"}},
		"the port called https":      {corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{port("dns", 53, "UDP"), port("x", 80, "TCP"), port("https", 443, "TCP")}}, []string{"10.96.0.1:443"}},
		"no port":                    {corev1.ServiceSpec{ClusterIP: "10.96.0.1"}, nil},
		"no address":                 {corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{port("https", 443, "TCP")}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var want []redirect.Rule
			for _, from := range test.want {
				want = append(want, redirect.Rule{From: netip.MustParseAddrPort(from), To: listen})
			}
			if diff := cmp.Diff(want, apiredirect.Plan(&corev1.Service{Spec: test.spec}, listen), equal); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// kernel is a Redirector that records its rules, and fails as often as configured.
type kernel struct {
	mu    sync.Mutex
	fails int
	have  []redirect.Rule
	calls int
}

func (k *kernel) Apply(want []redirect.Rule) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails > 0 {
		k.fails--
		return errors.New("no iptables")
	}
	k.have = slices.Clone(want)
	k.calls++
	return nil
}

func (k *kernel) rules() ([]redirect.Rule, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.have, k.calls
}

func TestAgent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			if r.URL.Query().Get("sendInitialEvents") != "" {
				http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
				return
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"kubernetes","namespace":"default"},
			"spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ports":[{"name":"https","port":443,"protocol":"TCP"}]}}]}`))
	}))
	t.Cleanup(server.Close) // after the module has ended
	k := &kernel{}
	served := make(chan []netip.Addr, 16)
	beehivetest.Run(t, nil, beehive.Entry{Module: apiredirect.New(apiredirect.Config{
		API: &rest.Config{Host: server.URL}, Redirect: k, Listen: listen,
		Serve: func(a []netip.Addr) error {
			if _, calls := k.rules(); calls == 0 {
				served <- a
			}
			return nil
		},
	})})
	want := []redirect.Rule{{From: netip.MustParseAddrPort("10.96.0.1:443"), To: listen}}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got, _ := k.rules()
		if cmp.Equal(want, got, equal) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("redirected: %v", got)
		}
	}
	if diff := cmp.Diff([]netip.Addr{netip.MustParseAddr("10.96.0.1")}, <-served, equal); diff != "" {
		t.Errorf("the certificate's addresses, before anything is led there (-want +got):\n%s", diff)
	}
}

// Switched off, leftovers of an earlier run are removed.
func TestAgent_Off(t *testing.T) {
	k := &kernel{have: []redirect.Rule{{From: listen, To: listen}}}
	beehivetest.Run(t, nil, beehive.Entry{Module: apiredirect.New(apiredirect.Config{Redirect: k})})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if got, calls := k.rules(); calls > 0 && len(got) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("what was redirected stays")
		}
	}
}
