package podnet

import (
	"encoding/json"
	"net/netip"
	"os"
)

// rangeIn is the range in a CNI configuration of ours; the zero value without one.
func rangeIn(path string) netip.Prefix {
	raw, err := os.ReadFile(path)
	if err != nil {
		return netip.Prefix{}
	}
	var list struct {
		Plugins []struct {
			IPAM struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if json.Unmarshal(raw, &list) != nil {
		return netip.Prefix{} // it is written again
	}
	for _, p := range list.Plugins {
		for _, set := range p.IPAM.Ranges {
			for _, r := range set {
				if found, err := netip.ParsePrefix(r.Subnet); err == nil {
					return found.Masked()
				}
			}
		}
	}
	return netip.Prefix{}
}

// conflist is the CNI configuration. ptp needs no bridge, whose frames some kernels filter by
// br_netfilter and others don't; addresses are kept in /run: a reboot, which ends all pods,
// gives them all back.
func conflist(own []netip.Prefix, mtu int) []byte {
	type m = map[string]any
	ranges, routes := [][]m{}, []m{}
	for _, p := range own {
		ranges = append(ranges, []m{{"subnet": p.String()}})
		if p.Addr().Is4() {
			routes = append(routes, m{"dst": "0.0.0.0/0"})
		} else {
			routes = append(routes, m{"dst": "::/0"})
		}
	}
	ptp := m{"type": "ptp", "ipMasq": false, "ipam": m{"type": "host-local", "dataDir": "/run/skerry/cni", "ranges": ranges, "routes": routes}}
	if mtu > 0 {
		ptp["mtu"] = mtu
	}
	raw, err := json.MarshalIndent(m{
		"cniVersion": "0.4.0", "name": "skerry", "plugins": []m{ptp, {"type": "portmap", "capabilities": m{"portMappings": true}}},
	}, "", "  ")
	if err != nil {
		return nil
	}
	return append(raw, '\n')
}
