package app

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// A pod network that is switched off is removed; one that is on is not touched, nor is another's
// configuration of the same name.
func TestPodNetworkSwitchedOff(t *testing.T) {
	const ours, another = `{"ipam":{"dataDir":"/run/skerry/cni"}}`, `{"ipam":{"dataDir":"/run/cni"}}`
	for name, tc := range map[string]struct {
		on       bool
		conflist string
		file     bool // it stays
		network  bool // the rest does
	}{
		"on":             {on: true, conflist: ours, file: true, network: true},
		"off":            {conflist: ours},
		"off, another's": {conflist: another, file: true},
	} {
		t.Run(name, func(t *testing.T) {
			device, lan := wire.NewHost(t), wire.NewHost(t)
			wire.Cable(t, device, "eth0", lan, "eth0")
			device.Address(t, "eth0", "192.0.2.1/24")
			cfg := edgeconfig.Default()
			cfg.Modules.PodNetwork.Enable = tc.on
			cni := t.TempDir()
			file := filepath.Join(cni, podnet.File)
			if err := os.WriteFile(file, []byte(tc.conflist), 0o600); err != nil {
				t.Fatal(err)
			}
			device.Must(t, func() error {
				routes, err := netroute.Open(netroute.Config{Protocol: podnet.Protocol})
				if err != nil {
					return err
				}
				defer routes.Close()
				return errors.Join(
					routes.Add(t.Context(), netroute.Route{
						Key: netroute.NewKey(0, netip.MustParsePrefix("10.244.7.0/24"), 0), Type: netroute.Unicast,
						Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("192.0.2.7"), Interface: "eth0", Weight: 1}},
					}),
					masquerade.New().Apply(t.Context(), masquerade.Rules{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}),
				)
			})
			network := func() (left string) {
				device.Must(t, func() error {
					out, err := exec.Command("sh", "-ec", "ip route show proto 159; nft list ruleset").CombinedOutput()
					left = string(out)
					return err
				})
				return left
			}
			if set := network(); !strings.Contains(set, "10.244.7.0/24") || !strings.Contains(set, "masquerade") {
				t.Fatalf("the kernel does not have it to begin with:\n%s", set)
			}
			device.Must(t, func() error {
				clearSwitchedOff(t.Context(), cfg, cni)
				return nil
			})
			left := network()
			if route, rules := strings.Contains(left, "10.244.7.0/24"), strings.Contains(left, "masquerade"); route != tc.network || rules != tc.network {
				t.Errorf("should it stay: %t. The kernel has:\n%s", tc.network, left)
			}
			if _, err := os.Stat(file); (err == nil) != tc.file {
				t.Errorf("should the file stay: %t; %v", tc.file, err)
			}
		})
	}
}

// With the module for routes switched off its cleaner removes them, and that is the only module of
// its name.
func TestRoutesSwitchedOff(t *testing.T) {
	for _, on := range []bool{true, false} {
		cfg := edgeconfig.Default()
		cfg.Modules.Route.Enable = on
		cfg.Modules.Edged.Kubelet = json.RawMessage(`{"failCgroupV1":false}`) // the machine of the test may have those
		wiring, err := Wiring(cfg)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range wiring {
			if m.Name == "route" {
				found++
			}
		}
		if found != 1 {
			t.Errorf("enable: %t: %d modules for routes", on, found)
		}
	}
}
