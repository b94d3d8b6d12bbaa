package names_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/site/names"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// The server answers the device and its pods: a host of the LAN that reaches its address gets no
// answer, a pod that is known a moment later is answered then, and one address has its share of the
// connections.
func TestClaims_06_NamesAreForThisDevicesPods(t *testing.T) {
	var pods atomic.Bool
	pods.Store(true)
	l := newSystem(t, agenttest.NewAPI(), func(c *names.Config) {
		c.Admits = func(context.Context, netip.Addr) bool { return pods.Load() }
	})
	ask := func(network string, patience time.Duration) error {
		q := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
		_, _, err := (&dns.Client{Net: network, Timeout: patience}).Exchange(q, l.at.String())
		return err
	}
	answers := func(what string, want bool) {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			if err := ask(network, 5*time.Second); (err == nil) != want {
				t.Errorf("%s by %s: %v, want an answer: %v", what, network, err, want)
			}
		}
	}
	poll.True(t, "the server answers", func() bool { return ask("udp", time.Second) == nil })
	answers("a pod", true)
	pods.Store(false)
	answers("a host of the LAN", false)
	var open atomic.Int32
	for range 16 { // an unknown address has few connections
		conn, err := net.Dial("tcp", l.at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				open.Add(1)
			}
		}()
	}
	time.Sleep(1500 * time.Millisecond)
	if n := open.Load(); n == 0 || n > 4 {
		t.Errorf("an unknown address has %d connections, want 1 to 4", n)
	}
	time.AfterFunc(500*time.Millisecond, func() { pods.Store(true) })
	answers("a pod that has just started", true)
}

// The addresses of a headless Service come in another order each time.
func TestClaims_30_HeadlessAnswersAreRotated(t *testing.T) {
	api := agenttest.NewAPI()
	headless(t, api, "10.244.0.2", "10.244.0.3", "10.244.0.4")
	l := newSystem(t, api, nil)
	first := map[string]int{}
	for range 30 {
		q := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
		var r *dns.Msg
		poll.True(t, "an answer", func() (ok bool) {
			var err error
			r, _, err = (&dns.Client{Timeout: time.Second}).Exchange(q, l.at.String())
			return err == nil && len(r.Answer) == 3
		})
		a, ok := r.Answer[0].(*dns.A)
		if !ok {
			t.Fatalf("answered %s", r)
		}
		first[a.A.String()]++
	}
	if len(first) != 3 {
		t.Errorf("first were %v", first)
	}
}

// headless makes the Service shop/web, of pods with those addresses.
func headless(t *testing.T, api *agenttest.API, addresses ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}
	api.Put(t, "services", &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}},
	})
	slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	api.Put(t, "endpointslices", slice)
}
