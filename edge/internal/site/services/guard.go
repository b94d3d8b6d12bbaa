package services

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/claim"
)

// Rules are which addresses outside of the cluster a Service may have on this device.
type Rules struct {
	// External are the accepted networks of spec.externalIPs: every user who may create a Service
	// in one namespace may write any address there (CVE-2020-8554).
	External []netip.Prefix
	// Guards are the addresses that no Service may have: those on the path to the cloud, hosts,
	// name servers.
	Guards claim.Guards
	// Withheld gives the reason a claim (see claimOf) must not be applied now; nil: no claim is
	// withheld.
	Withheld func(claim string) string
}

// claimOf names an address that a Service claims outside of the cluster: a newer Service has
// another uid.
func claimOf(s *corev1.Service, a netip.Addr) string {
	return fmt.Sprintf("%s/%s %s (%s)", s.Namespace, s.Name, a, s.UID)
}

// Judge returns the Service as the proxy gets it, the same where all of it counts, and reports the
// rest of it. The proxy catches this device's packets to such an address: a claim that is believed
// takes the address away from the device and its pods.
func (r Rules) Judge(s *corev1.Service) (*corev1.Service, []string) {
	var why []string
	counts := func(text string, external bool) bool {
		if text == "" {
			return true // an ingress by name
		}
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		switch {
		case err != nil:
			why = append(why, fmt.Sprintf("%.60q is no address", text))
		case external && !slices.ContainsFunc(r.External, func(p netip.Prefix) bool { return p.Contains(a) }):
			why = append(why, fmt.Sprintf("externalIP %s is in none of modules.services.externalIPs", a))
		default:
			g, touched := r.Guards.TouchedBy(a)
			switch {
			case touched:
				why = append(why, fmt.Sprintf("%s is in %s, %s", a, g.Prefix, g.Why))
			case r.Withheld != nil:
				reason := r.Withheld(claimOf(s, a))
				if reason == "" {
					return true
				}
				why = append(why, fmt.Sprintf("%s: %s", a, reason))
			default:
				return true
			}
		}
		return false
	}
	var external []string
	for _, text := range s.Spec.ExternalIPs {
		if counts(text, true) {
			external = append(external, text)
		}
	}
	var ingress []corev1.LoadBalancerIngress
	for _, i := range s.Status.LoadBalancer.Ingress {
		if counts(i.IP, false) {
			ingress = append(ingress, i)
		}
	}
	if len(why) == 0 {
		return s, nil
	}
	judged := *s // the rest is shared with the View
	judged.Spec.ExternalIPs, judged.Status.LoadBalancer.Ingress = external, ingress
	return &judged, why
}
