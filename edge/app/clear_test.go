package app_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/services"
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
			netif.KeepLoopback(netip.MustParseAddr("169.254.20.53")),
			redirect.New().Apply([]redirect.Rule{{From: netip.MustParseAddrPort("10.96.0.1:443"), To: netip.MustParseAddrPort("169.254.20.20:10550")}}),
		)
	})
	set := kernel(t, device)
	for _, want := range []string{"203.0.113.0/24", "SKERRY-API", "SKERRY-VIP", "169.254.20.20", "169.254.20.53"} {
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

// proxied has the kernel of a device look as kube-proxy's code leaves it, in both its modes.
func proxied(t *testing.T, h *wire.Host) {
	t.Helper()
	h.Must(t, func() error {
		out, err := exec.Command("sh", "-ec", `
			nft add table ip kube-proxy
			nft add chain ip kube-proxy services
			iptables -t nat -N KUBE-SERVICES
			iptables -t nat -N KUBE-SVC-NPX46M4PTMTKRN6Y
			iptables -t nat -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -j KUBE-SVC-NPX46M4PTMTKRN6Y
			iptables -t nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// Rules of Services go with a reset where they are edgecore's, and stay where a kube-proxy of the
// cluster has them: the names are the same.
func TestClearServices(t *testing.T) {
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.WriteFile(program, sleep, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		store string // the stored owner of rules; "none" means no store, "unreadable": its key is lost
		proxy bool   // a kube-proxy runs on the device
		stay  bool
	}{
		"edgecore's":                        {store: "nftables"},
		"edgecore's, and a proxy has come":  {store: "iptables", proxy: true},
		"a kube-proxy's":                    {proxy: true, stay: true},
		"no one's":                          {},
		"without a store":                   {store: "none"},
		"without a store, beside a proxy":   {store: "none", proxy: true, stay: true},
		"of a store that can't be read":     {store: "unreadable"},
		"and a proxy may have made of them": {store: "unreadable", proxy: true, stay: true},
	} {
		t.Run(name, func(t *testing.T) {
			device, other := wire.NewHost(t), wire.NewHost(t)
			cfg := edgeconfig.Default()
			cfg.DataDir = t.TempDir()
			cfg.Modules.VIP.Keepalived.RunDir = filepath.Join(t.TempDir(), "keepalived")
			if tc.store != "none" {
				key := filepath.Join(cfg.DataDir, "store.key")
				file, err := store.Open(t.Context(), store.Config{Path: filepath.Join(cfg.DataDir, "store.db"), KeyFile: key})
				if err != nil {
					t.Fatal(err)
				}
				if tc.store != "" { // as the module services writes it
					err = agent.NewMemory(file, string(services.Name)).Save(t.Context(), map[string][]byte{"rules": []byte(tc.store)})
				}
				if tc.store == "unreadable" {
					err = errors.Join(err, os.Remove(key))
				}
				if err := errors.Join(err, file.Close()); err != nil {
					t.Fatal(err)
				}
			}
			in := other // its kube-proxy is another device's
			if tc.proxy {
				in = device
			}
			proxy := exec.Command(program, "1000")
			in.Must(t, proxy.Start)
			t.Cleanup(func() {
				_ = proxy.Process.Kill()
				_ = proxy.Wait() // it was killed
			})
			proxied(t, device)
			device.Must(t, func() error { return clearKernel(t, cfg) })
			var left string
			device.Must(t, func() error {
				out, err := exec.Command("sh", "-ec", "nft list tables; iptables -t nat -S").CombinedOutput()
				left = string(out)
				return err
			})
			if chains, tables := strings.Contains(left, "KUBE-"), strings.Contains(left, "kube-proxy"); chains != tc.stay || tables != tc.stay {
				t.Errorf("should they stay: %t. The kernel has:\n%s", tc.stay, left)
			}
		})
	}
}
