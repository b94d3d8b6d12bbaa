package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skerry-io/skerry/common/claim"
)

// Services implements ClusterIPs and NodePorts in the kernel of this device.
type Services struct {
	Enable Switch `json:"enable"`
	// Mode is nftables, iptables, or auto: nftables where the kernel and nft are new enough.
	Mode string `json:"mode"`
	// ExternalIPs are the networks whose addresses in a Service's spec.externalIPs are forwarded to
	// its endpoints on this device; empty: spec.externalIPs is ignored (CVE-2020-8554).
	ExternalIPs []string `json:"externalIPs"`
}

// ExternalRanges are those networks.
func (s *Services) ExternalRanges() []netip.Prefix { return claim.Prefixes(s.ExternalIPs) }

// Names answers DNS queries of this device's pods.
type Names struct {
	Enable Switch `json:"enable"`
	// Listen is the address and port, of UDP and TCP. The device gives itself the address.
	Listen string `json:"listen"`
	// Domain is the cluster's.
	Domain string `json:"domain"`
	// Zones have name servers of their own.
	Zones []Zone `json:"zones"`
	// Upstream are name servers for all other names, in the order in which they are asked; empty:
	// the host's own.
	Upstream []string `json:"upstream"`
}

// Zone is a domain and its name servers.
type Zone struct {
	Zone     string   `json:"zone"`
	Upstream []string `json:"upstream"`
}

// maxUpstreams bounds the name servers of a zone: a query is tried with each.
const maxUpstreams = 8

func (s *Services) validate(at *field.Path) field.ErrorList {
	modes := []string{"auto", "nftables", "iptables"}
	errs := s.Enable.validate(at.Child("enable"))
	if !slices.Contains(modes, s.Mode) {
		errs = append(errs, field.NotSupported(at.Child("mode"), s.Mode, modes))
	}
	for i, text := range s.ExternalIPs {
		if _, err := netip.ParsePrefix(text); err != nil {
			errs = append(errs, field.Invalid(at.Child("externalIPs").Index(i), text, "must be a network such as 192.168.100.0/28"))
		}
	}
	return errs
}

func (n *Names) validate(at *field.Path) field.ErrorList {
	errs := n.Enable.validate(at.Child("enable"))
	own, err := netip.ParseAddrPort(n.Listen)
	if err != nil || own.Addr().IsUnspecified() || own.Port() == 0 {
		errs = append(errs, field.Invalid(at.Child("listen"), n.Listen, "must be an address of this device alone and a port, such as 169.254.20.20:53"))
	}
	errs = append(errs, domain(at.Child("domain"), n.Domain)...)
	for i, z := range n.Zones {
		here := at.Child("zones").Index(i)
		errs = append(errs, domain(here.Child("zone"), z.Zone)...)
		if strings.EqualFold(strings.TrimSuffix(z.Zone, "."), strings.TrimSuffix(n.Domain, ".")) {
			errs = append(errs, field.Invalid(here.Child("zone"), z.Zone, "is the cluster's own domain, which no other name server answers"))
		}
		if len(z.Upstream) == 0 {
			errs = append(errs, field.Required(here.Child("upstream"), "a zone needs name servers"))
		}
		errs = append(errs, upstreams(here.Child("upstream"), z.Upstream, own)...)
	}
	return append(errs, upstreams(at.Child("upstream"), n.Upstream, own)...)
}

func domain(at *field.Path, name string) field.ErrorList {
	trimmed := strings.ToLower(strings.TrimSuffix(name, "."))
	if msgs := validation.IsDNS1123Subdomain(trimmed); len(msgs) > 0 {
		return field.ErrorList{field.Invalid(at, name, "must be a domain name, such as cluster.local")}
	}
	return nil
}

func upstreams(at *field.Path, all []string, own netip.AddrPort) field.ErrorList {
	var errs field.ErrorList
	if len(all) > maxUpstreams {
		errs = append(errs, field.TooMany(at, len(all), maxUpstreams))
	}
	for i, text := range all {
		u, err := Upstream(text)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(at.Index(i), text, "must be the IP address of a name server, with or without a port"))
		case u == own:
			errs = append(errs, field.Invalid(at.Index(i), text, "is names.listen: this device would ask itself"))
		}
	}
	return errs
}

// Upstream reads a name server: an address, or an address and a port.
func Upstream(text string) (netip.AddrPort, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(ip.Unmap(), 53), nil
	}
	if _, _, err := net.SplitHostPort(text); err != nil {
		return netip.AddrPort{}, err
	}
	u, err := netip.ParseAddrPort(text)
	return netip.AddrPortFrom(u.Addr().Unmap(), u.Port()), err
}
