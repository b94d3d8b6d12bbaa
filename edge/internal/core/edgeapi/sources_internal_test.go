package edgeapi

import (
	"context"
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// holding is a backend that holds objects by resource.
type holding struct {
	Backend
	t       *testing.T
	objects map[string][]runtime.Object
}

func (h holding) List(_ context.Context, s object.Selection, _ metamanager.ListOptions) ([]object.Object, uint64, error) {
	var items []object.Object
	for _, o := range h.objects[s.Resource.Resource] {
		converted, err := object.FromObject(schema.GroupVersionResource{Version: "v1", Resource: s.Resource.Resource}, o)
		if err != nil {
			h.t.Fatal(err)
		}
		items = append(items, converted)
	}
	return items, 1, nil
}

// Only the device and its pods come to the pods' listener: not the LAN, not another device's pods.
func TestPodSources(t *testing.T) {
	pod := func(name, ip string, host bool) *corev1.Pod {
		return &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{HostNetwork: host}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	p := &podSources{
		nodeName: "edge1", backend: holding{t: t, objects: map[string][]runtime.Object{
			"nodes": {&corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "edge1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}}}},
			"pods":  {pod("bridged", "10.2.0.5", false), pod("routed", "10.3.0.5", false), pod("host", "192.168.7.2", true)},
		}},
		interfaces: func() ([]net.Addr, error) {
			var all []net.Addr
			for _, text := range []string{"127.0.0.1/8", "192.168.7.2/24", "10.2.0.1/24"} {
				ip, n, err := net.ParseCIDR(text)
				if err != nil {
					return nil, err
				}
				all = append(all, &net.IPNet{IP: ip, Mask: n.Mask})
			}
			return all, nil
		},
	}
	for source, want := range map[string]bool{
		"127.0.0.1":    true,
		"192.168.7.2":  true,  // a pod in the host's network
		"192.168.7.3":  false, // the LAN
		"10.1.0.77":    true,  // the Node's range
		"10.2.0.5":     true,  // a pod
		"10.2.0.6":     true,  // its neighbour on the same bridge, which has no status yet
		"10.3.0.5":     true,
		"10.3.0.6":     false, // another device's pod
		"203.0.113.10": false,
	} {
		if got := p.allows(t.Context(), netip.MustParseAddr(source)); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}

// Programs on the device share its loopback address, and so the whole of a listener; any other
// address has its part.
func TestConnectionsOfAnAddress(t *testing.T) {
	for name, test := range map[string]struct {
		from string
		want int
	}{
		"the device itself": {"127.0.0.1", maxConns},
		"by IPv6":           {"::1", maxConns},
		"a pod":             {"10.244.1.2", maxClientConns},
	} {
		t.Run(name, func(t *testing.T) {
			l := bounded(&knocking{from: &net.TCPAddr{IP: net.ParseIP(test.from), Port: 4711}, most: 2 * maxConns}, nil)
			var open []net.Conn
			for {
				c, err := l.Accept()
				if err != nil {
					break
				}
				open = append(open, c)
			}
			if len(open) != test.want {
				t.Errorf("%d connections, want %d", len(open), test.want)
			}
		})
	}
}

// knocking is a listener with so many connections from one address.
type knocking struct {
	net.Listener
	from net.Addr
	most int
}

func (k *knocking) Accept() (net.Conn, error) {
	if k.most--; k.most < 0 {
		return nil, net.ErrClosed
	}
	return knock{from: k.from}, nil
}

type knock struct {
	net.Conn
	from net.Addr
}

func (k knock) RemoteAddr() net.Addr { return k.from }
func (k knock) Close() error         { return nil }

// Hosts of the LAN that send no TLS hello take no place of a pod's, from however many addresses.
func TestClaims_14_StrangersTakeNoPodsPlace(t *testing.T) {
	pod := netip.MustParseAddr("10.1.0.5")
	mixed := &crowd{}
	l := bounded(mixed, func(a netip.Addr) bool { return a == pod })
	for host := range 8 {
		for range 64 {
			mixed.add(netip.AddrFrom4([4]byte{192, 168, 7, byte(host + 1)}))
		}
	}
	for range 20 {
		mixed.add(pod)
	}
	served := map[string]int{}
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		served[host]++
	}
	if served[pod.String()] != 20 || served["192.168.7.1"] > maxStrangeConns {
		t.Errorf("served: %v", served)
	}
}

// crowd is a listener at which connections wait.
type crowd struct {
	net.Listener
	wait []net.Conn
}

func (c *crowd) add(from netip.Addr) {
	c.wait = append(c.wait, knock{from: &net.TCPAddr{IP: from.AsSlice(), Port: 4711}})
}

func (c *crowd) Accept() (net.Conn, error) {
	if len(c.wait) == 0 {
		return nil, net.ErrClosed
	}
	next := c.wait[0]
	c.wait = c.wait[1:]
	return next, nil
}
