package app_test

import (
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/app"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/kernel/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/redirect"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// kernel is all routes, rules and addresses of a device, as its own tools print them.
func kernel(t *testing.T, h *wire.Host) string {
	t.Helper()
	var all strings.Builder
	h.Must(t, func() error {
		for _, command := range []string{"ip route", "ip -6 route show proto static", "ip -o address show dev lo", "iptables -t nat -S", "iptables -S", "iptables -t mangle -S"} {
			words := strings.Fields(command)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return errors.New(command + ": " + string(out))
			}
			all.Write(out)
		}
		return nil
	})
	return all.String()
}

func clearKernel(t *testing.T, cfg *edgeconfig.Config) error {
	lock, err := app.TakeLock(cfg)
	if err != nil {
		return err
	}
	defer lock.Release()
	return lock.ClearKernel(t.Context())
}

func TestClearKernel(t *testing.T) {
	device, lan := wire.NewHost(t), wire.NewHost(t)
	wire.Cable(t, device, "eth0", lan, "eth0")
	device.Address(t, "eth0", "192.0.2.1/24")
	device.Route(t, "198.51.100.0/24", "192.0.2.2") // the operator's
	device.Must(t, func() error {
		return exec.Command("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.1/32", "-p", "tcp", "-j", "DNAT", "--to-destination", "203.0.113.1").Run()
	})
	cfg := edgeconfig.Default()
	cfg.DataDir = t.TempDir()
	cfg.Modules.VIP.DataPlane = "iptables"
	cfg.Modules.VIP.Keepalived.RunDir = filepath.Join(t.TempDir(), "keepalived")
	before := kernel(t, device)

	device.Must(t, func() error {
		routes, err := netroute.Open(netroute.Config{Protocol: uint8(cfg.Modules.Route.Protocol)})
		if err != nil {
			return err
		}
		defer routes.Close()
		plane, err := iptables.New()
		if err != nil {
			return err
		}
		return errors.Join(
			routes.Add(t.Context(), netroute.Route{
				Key: netroute.NewKey(netroute.Main, netip.MustParsePrefix("203.0.113.0/24"), 100), Type: netroute.Unicast,
				Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("192.0.2.3"), Interface: "eth0", Weight: 1}},
			}),
			plane.Apply(t.Context(), []balance.Service{{
				Address: netip.MustParseAddr("192.0.2.100"), Interface: "eth0",
				Ports: []balance.Port{{Protocol: balance.TCP, Number: 80, Backends: []netip.AddrPort{netip.MustParseAddrPort("10.88.0.5:8080")}}},
			}}),
			redirect.New().Apply([]redirect.Rule{{From: netip.MustParseAddrPort("10.96.0.1:443"), To: netip.MustParseAddrPort("169.254.20.20:10550")}}),
		)
	})
	set := kernel(t, device)
	for _, want := range []string{"203.0.113.0/24", "SKERRY-API", "SKERRY-VIP", "169.254.20.20"} {
		if !strings.Contains(set, want) {
			t.Fatalf("the kernel does not have %s to begin with:\n%s", want, set)
		}
	}
	for range 2 { // it can be repeated
		device.Must(t, func() error { return clearKernel(t, cfg) })
		if after := kernel(t, device); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	}
}
