package names

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	ttl     = 5 // seconds: a deleted pod is forgotten soon
	version = "1.1.0"
)

// answer is the cluster's answer to a name.
type answer struct {
	code    int
	records []dns.RR
	extra   []dns.RR
	alias   string // it is another name (CNAME)
	foreign bool   // it is another server's
}

// records are the cluster's names, from a View. They keep only whose turn it is.
type records struct {
	view   View
	domain string        // canonical
	turn   atomic.Uint64 // of headless Services, see rotated
}

func newRecords(c Config) *records { return &records{view: c.View, domain: canonical(c.Domain)} }

// authority is the SOA of negative answers (RFC 2308): they hold for as long as others.
func (r *records) authority() dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: r.domain, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.dns." + r.domain, Mbox: "hostmaster." + r.domain, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

func nothing() answer   { return answer{code: dns.RcodeSuccess} }
func unknown() answer   { return answer{code: dns.RcodeNameError} }
func notSynced() answer { return answer{code: dns.RcodeServerFailure} }

// find returns the records of a name.
func (r *records) find(name string, qtype uint16) answer {
	lower := canonical(name)
	if strings.HasSuffix(lower, ".in-addr.arpa.") || strings.HasSuffix(lower, ".ip6.arpa.") {
		return r.reverse(name, lower, qtype)
	}
	if lower != r.domain && !strings.HasSuffix(lower, "."+r.domain) {
		return answer{foreign: true}
	}
	labels := dns.SplitDomainName(strings.TrimSuffix(lower, r.domain))
	if len(labels) == 1 && labels[0] == "dns-version" {
		if qtype != dns.TypeTXT {
			return nothing()
		}
		return answer{records: []dns.RR{&dns.TXT{Hdr: header(name, dns.TypeTXT), Txt: []string{version}}}}
	}
	if !r.view.HasSynced() {
		return notSynced()
	}
	if len(labels) == 0 {
		if qtype == dns.TypeSOA {
			return answer{records: []dns.RR{r.authority()}}
		}
		return nothing()
	}
	switch kind, rest := labels[len(labels)-1], labels[:len(labels)-1]; kind {
	case "svc":
		return r.service(name, rest, qtype)
	case "pod":
		return r.pod(name, rest, qtype)
	}
	return unknown()
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// service answers below svc: the labels are those in front of it.
func (r *records) service(name string, labels []string, qtype uint16) answer {
	switch len(labels) {
	case 0:
		return nothing()
	case 1:
		return r.namespace(labels[0])
	}
	namespace, service := labels[len(labels)-1], labels[len(labels)-2]
	o, found, err := r.view.Services().GetStore().GetByKey(namespace + "/" + service)
	if err != nil || !found {
		return unknown()
	}
	s := o.(*corev1.Service)
	rest := labels[:len(labels)-2]
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		if len(rest) > 0 {
			return unknown()
		}
		target := dns.Fqdn(s.Spec.ExternalName)
		return answer{alias: target, records: []dns.RR{&dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: target}}}
	}
	alone := s.Spec.ClusterIP == corev1.ClusterIPNone
	switch {
	case len(rest) == 0 && alone:
		return addresses(name, qtype, r.rotated(r.endpoints(s, "")))
	case len(rest) == 0:
		return addresses(name, qtype, s.Spec.ClusterIPs)
	case len(rest) == 2 && strings.HasPrefix(rest[0], "_") && strings.HasPrefix(rest[1], "_"):
		return r.srv(name, s, rest[0][1:], rest[1][1:], qtype)
	case len(rest) == 1 && strings.HasPrefix(rest[0], "_"):
		return nothing() // a name above _port._proto
	case len(rest) == 1 && alone:
		if all := r.endpoints(s, rest[0]); len(all) > 0 {
			return addresses(name, qtype, all)
		}
	}
	return unknown()
}

// namespace: a namespace is known by its Services.
func (r *records) namespace(namespace string) answer {
	for _, key := range r.view.Services().GetStore().ListKeys() {
		if strings.HasPrefix(key, namespace+"/") {
			return nothing()
		}
	}
	return unknown()
}

func addresses(name string, qtype uint16, all []string) answer {
	a := nothing()
	for _, text := range all {
		ip, err := netip.ParseAddr(text)
		switch {
		case err != nil:
		case qtype == dns.TypeA && ip.Is4():
			a.records = append(a.records, &dns.A{Hdr: header(name, dns.TypeA), A: ip.AsSlice()})
		case qtype == dns.TypeAAAA && ip.Is6():
			a.records = append(a.records, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	}
	return a
}

// serves reports whether an endpoint belongs in answers.
func serves(s *corev1.Service, e *discoveryv1.Endpoint) bool {
	return s.Spec.PublishNotReadyAddresses || e.Conditions.Ready == nil || *e.Conditions.Ready
}

// hostOf is the label of an endpoint below its Service: its hostname, or its address where
// it has no port.
func hostOf(e *discoveryv1.Endpoint, address string) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return *e.Hostname
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(address)
}

func (r *records) each(s *corev1.Service, do func(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, address string)) {
	seen := map[string]bool{} // slices may have one endpoint twice while it moves between them
	for _, slice := range r.view.SlicesOf(s.Namespace, s.Name) {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !serves(s, e) {
				continue
			}
			for _, a := range e.Addresses {
				if !seen[slice.Name+a] {
					seen[slice.Name+a] = true
					do(slice, e, a)
				}
			}
		}
	}
}

// endpoints are the addresses of a headless Service; of one host where that is not "".
func (r *records) endpoints(s *corev1.Service, host string) []string {
	var all []string
	r.each(s, func(_ *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, address string) {
		if host == "" || hostOf(e, address) == host {
			all = append(all, address)
		}
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// rotated begins with another address each time: a client that takes the first would always use one
// pod.
func (r *records) rotated(all []string) []string {
	if len(all) < 2 {
		return all
	}
	n := int(r.turn.Add(1)-1) % len(all)
	return append(slices.Clone(all[n:]), all[:n]...)
}

func (r *records) srv(name string, s *corev1.Service, port, protocol string, qtype uint16) answer {
	a, exists := nothing(), false
	own := s.Name + "." + s.Namespace + ".svc." + r.domain
	add := func(target string, number int32, ips ...string) {
		exists = true
		if qtype != dns.TypeSRV {
			return
		}
		a.records = append(a.records, &dns.SRV{Hdr: header(name, dns.TypeSRV), Weight: 100, Port: uint16(number), Target: target})
		a.extra = append(a.extra, addresses(target, dns.TypeA, ips).records...)
		a.extra = append(a.extra, addresses(target, dns.TypeAAAA, ips).records...)
	}
	if s.Spec.ClusterIP != corev1.ClusterIPNone {
		for _, p := range s.Spec.Ports {
			if strings.EqualFold(p.Name, port) && strings.EqualFold(string(p.Protocol), protocol) {
				add(own, p.Port, s.Spec.ClusterIPs...)
			}
		}
	} else {
		r.each(s, func(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, address string) {
			for _, p := range slice.Ports {
				if p.Name != nil && p.Port != nil && strings.EqualFold(*p.Name, port) && p.Protocol != nil && strings.EqualFold(string(*p.Protocol), protocol) {
					add(hostOf(e, address)+"."+own, *p.Port, address)
				}
			}
		})
	}
	if !exists {
		return unknown()
	}
	return a
}

// pod answers a-b-c-d.namespace.pod, which contains its own address.
func (r *records) pod(name string, labels []string, qtype uint16) answer {
	switch len(labels) {
	case 0:
		return nothing()
	case 1:
		return r.namespace(labels[0])
	case 2:
		for _, text := range []string{strings.ReplaceAll(labels[0], "-", "."), strings.ReplaceAll(labels[0], "-", ":")} {
			if ip, err := netip.ParseAddr(text); err == nil {
				return addresses(name, qtype, []string{ip.String()})
			}
		}
	}
	return unknown()
}

// reverse answers for addresses of Services and of the endpoints of headless ones; other
// addresses are others'.
func (r *records) reverse(name, lower string, qtype uint16) answer {
	ip, ok := addressOf(lower)
	if !ok {
		return answer{foreign: true}
	}
	if !r.view.HasSynced() {
		return notSynced()
	}
	var targets []string
	for _, s := range r.view.ServicesAt(ip) {
		targets = append(targets, s.Name+"."+s.Namespace+".svc."+r.domain)
	}
	for _, s := range r.view.ServicesAt(corev1.ClusterIPNone) {
		targets = append(targets, r.reverseEndpoint(s, ip)...)
	}
	if len(targets) == 0 {
		return answer{foreign: true}
	}
	a := nothing()
	slices.Sort(targets)
	for _, t := range slices.Compact(targets) {
		if qtype == dns.TypePTR {
			a.records = append(a.records, &dns.PTR{Hdr: header(name, dns.TypePTR), Ptr: t})
		}
	}
	return a
}

// reverseEndpoint are the names of the endpoints of a headless Service that have an address.
func (r *records) reverseEndpoint(s *corev1.Service, ip string) (targets []string) {
	r.each(s, func(_ *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, address string) {
		if address == ip {
			targets = append(targets, hostOf(e, ip)+"."+s.Name+"."+s.Namespace+".svc."+r.domain)
		}
	})
	return targets
}

// addressOf reads the address that a name of RFC 1035, 3.5 or RFC 3596, 2.5 is about.
func addressOf(lower string) (string, bool) {
	if rest, ok := strings.CutSuffix(lower, ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		ip, err := netip.ParseAddr(strings.Join(parts, "."))
		return ip.String(), err == nil && ip.Is4()
	}
	rest, _ := strings.CutSuffix(lower, ".ip6.arpa.")
	nibbles := strings.Split(rest, ".")
	if len(nibbles) != 32 {
		return "", false
	}
	slices.Reverse(nibbles)
	var b strings.Builder
	for i, n := range nibbles {
		if i > 0 && i%4 == 0 {
			b.WriteByte(':')
		}
		b.WriteString(n)
	}
	ip, err := netip.ParseAddr(b.String())
	return ip.String(), err == nil
}
