package redirect_test

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

func rule(from, to string) redirect.Rule {
	return redirect.Rule{From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort(to)}
}

// rules is the nat table without counters and the tables' frame, and our addresses.
func rules(t *testing.T, h *wire.Host) []string {
	t.Helper()
	var out []string
	h.Must(t, func() error {
		text, err := exec.Command("iptables", "-t", "nat", "-S").CombinedOutput()
		if err != nil {
			return errors.New(string(text))
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "-P ") {
				out = append(out, strings.TrimSpace(line))
			}
		}
		text, err = exec.Command("ip", "-o", "-4", "address", "show", "dev", "lo").CombinedOutput()
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && !strings.HasPrefix(f[3], "127.") {
				out = append(out, f[3])
			}
		}
		return err
	})
	return out
}

// serve answers connections on a host with "edge" until the test ends.
func serve(t *testing.T, h *wire.Host, address string) {
	t.Helper()
	var l net.Listener
	h.Must(t, func() (err error) { l, err = net.Listen("tcp", address); return err })
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("edge"))
			_ = c.Close()
		}
	}()
}

// answers reports whether that is who answers at an address.
func answers(address string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, 4)
	if _, err := c.Read(b); err != nil || string(b) != "edge" {
		return errors.New("answered by another: " + string(b))
	}
	return nil
}

// A pod has the port of the device's server as its hostPort, by rules as the portmap plugin makes
// them with iptables and with nftables: connections to the server are still the server's.
func TestClaims_06_HostPortLeavesTheServer(t *testing.T) {
	for by, rules := range map[string][]string{
		"iptables": {
			"iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 10550 -j DNAT --to-destination 10.88.0.2:8080",
			"iptables -t nat -A OUTPUT -m addrtype --dst-type LOCAL -p tcp --dport 10550 -j DNAT --to-destination 10.88.0.2:8080",
		},
		"nftables": {
			"nft add table ip cni_hostport; nft add chain ip cni_hostport prerouting '{ type nat hook prerouting priority -100; }'; nft add chain ip cni_hostport output '{ type nat hook output priority -100; }'",
			"nft add rule ip cni_hostport prerouting fib daddr type local tcp dport 10550 dnat to 10.88.0.2:8080; nft add rule ip cni_hostport output fib daddr type local tcp dport 10550 dnat to 10.88.0.2:8080",
		},
	} {
		t.Run(by, func(t *testing.T) {
			device, pod := wire.NewHost(t), wire.NewHost(t)
			wire.Cable(t, device, "cni0", pod, "eth0")
			device.Address(t, "cni0", "10.88.0.1/24")
			pod.Address(t, "eth0", "10.88.0.2/24")
			pod.Route(t, "0.0.0.0/0", "10.88.0.1")
			for _, line := range rules {
				device.Must(t, func() error {
					if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
						return errors.New(string(out))
					}
					return nil
				})
			}
			device.Must(t, func() error {
				return redirect.New().Apply([]redirect.Rule{rule("10.96.0.1:443", "169.254.20.20:10550")})
			})
			serve(t, device, "169.254.20.20:10550")
			for _, h := range []*wire.Host{device, pod} {
				h.Must(t, func() error { return answers("169.254.20.20:10550") })
			}
		})
	}
}

func TestDriver(t *testing.T) {
	device, pod := wire.NewHost(t), wire.NewHost(t)
	wire.Cable(t, device, "cni0", pod, "eth0")
	device.Address(t, "cni0", "10.88.0.1/24")
	pod.Address(t, "eth0", "10.88.0.2/24")
	pod.Route(t, "0.0.0.0/0", "10.88.0.1")
	d := redirect.New()
	apply := func(want ...redirect.Rule) {
		t.Helper()
		device.Must(t, func() error { return d.Apply(want) })
	}
	// Another program, with another way to the same address.
	device.Must(t, func() error {
		return exec.Command("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.1/32", "-p", "tcp", "-j", "DNAT", "--to-destination", "203.0.113.1").Run()
	})
	const others = "-A PREROUTING -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 203.0.113.1"

	apply()
	if diff := cmp.Diff([]string{others}, rules(t, device)); diff != "" {
		t.Errorf("nothing to redirect (-want +got):\n%s", diff)
	}
	want := []string{
		"-N SKERRY-API",
		"-A PREROUTING -j SKERRY-API", others, "-A OUTPUT -j SKERRY-API",
		"-A SKERRY-API -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 169.254.20.20:10550",
		"-A SKERRY-API -d 169.254.20.20/32 -j ACCEPT",
		"169.254.20.20/32",
	}
	for range 2 { // the second time there are no changes left
		apply(rule("10.96.0.1:443", "169.254.20.20:10550"))
		if diff := cmp.Diff(want, rules(t, device)); diff != "" {
			t.Errorf("one rule (-want +got):\n%s", diff)
		}
	}

	// A connection of a pod, and of the device itself.
	serve(t, device, "169.254.20.20:10550")
	ask := func() error { return answers("10.96.0.1:443") }
	pod.Must(t, ask)
	device.Route(t, "0.0.0.0/0", "10.88.0.2") // the device needs a route to somewhere
	device.Must(t, ask)

	// kube-proxy in nftables mode starts later: the kernel would ask its chains before those of
	// iptables, however often ours are inserted again.
	nft := func(args ...string) string {
		var out []byte
		device.Must(t, func() (err error) { out, err = exec.Command("nft", args...).CombinedOutput(); return err })
		return string(out)
	}
	for _, hook := range []string{"prerouting", "output"} {
		nft(`add table ip kube-proxy; add chain ip kube-proxy nat-` + hook + ` { type nat hook ` + hook + ` priority -100; }; add rule ip kube-proxy nat-` + hook +
			` ip daddr 10.96.0.1 tcp dport 443 dnat to 203.0.113.1:6443`)
	}
	pod.Must(t, ask)
	device.Must(t, ask)
	// Changes by another program are repaired, and there is no write if the state is as desired.
	before := nft("-a", "list", "table", "ip", "skerry-api")
	apply(rule("10.96.0.1:443", "169.254.20.20:10550"))
	if after := nft("-a", "list", "table", "ip", "skerry-api"); after != before {
		t.Errorf("written again:\n%s\n%s", before, after)
	}
	for _, broken := range []string{"flush chain ip skerry-api output", "delete table ip skerry-api"} {
		nft(broken)
		apply(rule("10.96.0.1:443", "169.254.20.20:10550"))
		pod.Must(t, ask)
		device.Must(t, ask)
	}

	// A rule inserted before ours is overtaken again; other addresses replace the first.
	device.Must(t, func() error {
		return exec.Command("iptables", "-t", "nat", "-I", "PREROUTING", "1", "-j", "ACCEPT").Run()
	})
	apply(rule("10.97.0.1:443", "169.254.20.21:10550"), rule("10.96.0.1:443", "169.254.20.21:10550"))
	want = []string{
		"-N SKERRY-API",
		"-A PREROUTING -j SKERRY-API", "-A PREROUTING -j ACCEPT", others, "-A OUTPUT -j SKERRY-API",
		"-A SKERRY-API -d 10.97.0.1/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 169.254.20.21:10550",
		"-A SKERRY-API -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 169.254.20.21:10550",
		"-A SKERRY-API -d 169.254.20.21/32 -j ACCEPT",
		"169.254.20.21/32",
	}
	if diff := cmp.Diff(want, rules(t, device)); diff != "" {
		t.Errorf("two others (-want +got):\n%s", diff)
	}
	apply()
	if diff := cmp.Diff([]string{"-A PREROUTING -j ACCEPT", others}, rules(t, device)); diff != "" {
		t.Errorf("none any more (-want +got):\n%s", diff)
	}
	if left := nft("list", "tables"); strings.Contains(left, "skerry") || !strings.Contains(left, "kube-proxy") {
		t.Errorf("tables that are left:\n%s", left)
	}
	if err := d.Apply([]redirect.Rule{rule("[fd00::1]:443", "169.254.20.20:10550")}); err == nil {
		t.Error("IPv6 is taken")
	}
}
