// Package balance defines the desired state of a data plane for virtual IPs: which ports of which
// address are forwarded to which pods of this node.
//
// It owns the types that the two data planes (../iptables, ../ipvs) and their user share;
// balancetest holds the contract of both. Its values are plain.
package balance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Protocol is of a port.
type Protocol string

// The protocols, as iptables names them.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	SCTP Protocol = "sctp"
)

// Service is an address and the ports served there.
type Service struct {
	Address   netip.Addr
	Interface string // of the LAN, where clients come from
	Ports     []Port
	// KeepSource preserves clients' addresses; otherwise pods see the node's.
	KeepSource bool
	// Sources, unless nil, are the only networks whose packets reach the address; empty: no
	// network. Echo and neighbour discovery pass regardless.
	Sources []netip.Prefix
	// Affinity, unless 0, is for how long after its last connection a client gets the same backend,
	// in whole seconds.
	Affinity time.Duration
}

// Port is a port of an address. Without backends it is closed like all unlisted ports.
type Port struct {
	Protocol Protocol
	Number   uint16
	Backends []netip.AddrPort
}

// Normal is a copy in which the same things are in the same order, and each only once.
func Normal(all []Service) []Service {
	out := slices.Clone(all)
	for i := range out {
		out[i].Ports = slices.Clone(out[i].Ports)
		if out[i].Sources != nil {
			out[i].Sources = slices.Clone(out[i].Sources)
			slices.SortFunc(out[i].Sources, netip.Prefix.Compare)
			out[i].Sources = slices.Compact(out[i].Sources)
		}
		for j := range out[i].Ports {
			p := &out[i].Ports[j]
			p.Backends = slices.Clone(p.Backends)
			slices.SortFunc(p.Backends, netip.AddrPort.Compare)
			p.Backends = slices.Compact(p.Backends)
		}
		slices.SortFunc(out[i].Ports, func(a, b Port) int {
			return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
		})
	}
	slices.SortFunc(out, func(a, b Service) int { return a.Address.Compare(b.Address) })
	return out
}

// maxAffinity is Kubernetes' bound for timeoutSeconds.
const maxAffinity = 24 * time.Hour

// Validate refuses services that no kernel could implement.
func Validate(all []Service) error {
	for _, s := range all {
		if s.Affinity < 0 || s.Affinity > maxAffinity || s.Affinity%time.Second != 0 {
			return fmt.Errorf("%s: affinity %v", s.Address, s.Affinity)
		}
		for _, r := range s.Sources {
			if !r.IsValid() || r.Addr().Is4() != s.Address.Is4() {
				return fmt.Errorf("%s: source %s", s.Address, r)
			}
		}
		for _, p := range s.Ports {
			if p.Number == 0 || p.Protocol != TCP && p.Protocol != UDP && p.Protocol != SCTP {
				return fmt.Errorf("%s: port %d/%s", s.Address, p.Number, p.Protocol)
			}
			for _, b := range p.Backends {
				if b.Port() == 0 || b.Addr().Is4() != s.Address.Is4() {
					return fmt.Errorf("%s: backend %s", s.Address, b)
				}
			}
		}
	}
	return nil
}
