package masquerade_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
)

// A pod is seen with its own address within the site, and with its device's outside of it.
func TestApply(t *testing.T) {
	lan := lantest.New(t)
	device, peer, stranger := lan.Host("10.94.0.1/24"), lan.Host("10.94.0.2/24"), lan.Host("10.94.0.3/24")
	pod := device.Pod(netip.MustParseAddr("10.95.1.7"))
	for _, h := range []*lantest.Host{peer, stranger} {
		h.Shell("ip route add 10.95.1.0/24 via 10.94.0.1") // also the stranger's answer would find its way
		h.Serve(8080, "here")
	}
	driver := masquerade.New()
	apply := func(r masquerade.Rules) {
		t.Helper()
		if err := device.Do(func() error { return driver.Apply(t.Context(), r) }); err != nil {
			t.Fatal(err)
		}
	}
	seen := func(address, want string) {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			_, got, err := pod.Ask(network, address+":8080", 10*time.Second)
			if err != nil || got != want {
				t.Errorf("%s to %s: the pod is seen as %q, want %s (%v)", network, address, got, want, err)
			}
		}
	}
	rules := masquerade.Rules{Pods: []netip.Prefix{netip.MustParsePrefix("10.95.1.0/24")}, Inside: []netip.Prefix{netip.MustParsePrefix("10.94.0.2/32")}}
	apply(rules)
	seen("10.94.0.2", "10.95.1.7")
	seen("10.94.0.3", "10.94.0.1")
	// A fresh process comes to the same state, and restores removed rules.
	driver = masquerade.New()
	apply(rules)
	device.Shell("nft flush table ip skerry-pods; nft delete table ip skerry-pods")
	apply(rules)
	seen("10.94.0.2", "10.95.1.7")
	// The device has another range now, and the pod began in the one before.
	stray := rules
	stray.Pods, stray.Strays = []netip.Prefix{netip.MustParsePrefix("10.95.2.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.95.1.7/32")}
	apply(stray)
	device.Shell("conntrack -F 2>/dev/null || true")
	seen("10.94.0.2", "10.94.0.1")
	seen("10.94.0.3", "10.94.0.1")
	rules.Inside = nil // the peer has left the site
	apply(rules)
	device.Shell("conntrack -F 2>/dev/null || true")
	seen("10.94.0.2", "10.94.0.1")
	device.Shell("nft add table ip others")
	apply(masquerade.Rules{})
	if tables := device.Shell("nft list tables"); strings.Contains(tables, "skerry-pods") || !strings.Contains(tables, "others") {
		t.Errorf("tables that are left: %s", tables)
	}
}

// The device itself reaches pods of its peers from whatever address the kernel chose: that of its
// uplink, where a ClusterIP was asked for.
func TestApply_OtherPods(t *testing.T) {
	lan := lantest.New(t)
	device, peer := lan.Host("10.94.0.1/24"), lan.Host("10.94.0.2/24")
	pod := peer.Pod(netip.MustParseAddr("10.95.2.7"))
	pod.Serve(8080, "here")
	device.Shell("ip link add up0 type veth peer name up1; ip address add 10.96.9.1/24 dev up0; ip link set up0 up; ip route add 10.95.2.0/24 via 10.94.0.2 src 10.96.9.1")
	rules := masquerade.Rules{Pods: []netip.Prefix{netip.MustParsePrefix("10.95.1.0/24")}}
	driver := masquerade.New()
	apply := func() {
		t.Helper()
		if err := device.Do(func() error { return driver.Apply(t.Context(), rules) }); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	if _, seen, err := device.Ask("tcp", "10.95.2.7:8080", 3*time.Second); err == nil {
		t.Fatalf("without the rule it is answered, as %s: this shows nothing", seen)
	}
	rules.Others = []netip.Prefix{netip.MustParsePrefix("10.95.2.0/24")}
	apply()
	if _, seen, err := device.Ask("tcp", "10.95.2.7:8080", 10*time.Second); err != nil || seen != "10.94.0.1" {
		t.Errorf("the device is seen as %q, want 10.94.0.1 (%v)", seen, err)
	}
}

// A ClusterIP forwards to a peer itself, if a pod has its device's network: the peer sees an
// address that it can answer, and packets to it without a ClusterIP keep their own.
func TestClaims_31_ClusterIPOfAPeerItself(t *testing.T) {
	lan := lantest.New(t)
	device, peer := lan.Host("10.94.0.1/24"), lan.Host("10.94.0.2/24")
	peer.Serve(8080, "here")
	device.Shell("ip link add up0 type veth peer name up1; ip address add 10.96.9.1/24 dev up0; ip link set up0 up; ip link set up1 up; ip route add 10.97.0.0/24 dev up0 src 10.96.9.1; " +
		"nft add table ip proxy; nft 'add chain ip proxy out { type nat hook output priority -100; }'; nft add rule ip proxy out ip daddr 10.97.0.1 tcp dport 80 dnat to 10.94.0.2:8080")
	rules := masquerade.Rules{Pods: []netip.Prefix{netip.MustParsePrefix("10.95.1.0/24")}}
	driver := masquerade.New()
	apply := func() {
		t.Helper()
		if err := device.Do(func() error { return driver.Apply(t.Context(), rules) }); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	if _, seen, err := device.Ask("tcp", "10.97.0.1:80", 3*time.Second); err == nil {
		t.Fatalf("without the rule it is answered, as %s: this shows nothing", seen)
	}
	rules.Neighbours = []netip.Prefix{netip.MustParsePrefix("10.94.0.2/32")}
	apply()
	for _, to := range []string{"10.97.0.1:80", "10.94.0.2:8080"} {
		if _, seen, err := device.Ask("tcp", to, 10*time.Second); err != nil || seen != "10.94.0.1" {
			t.Errorf("%s: the device is seen as %q, want 10.94.0.1 (%v)", to, seen, err)
		}
	}
}
