package marks

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// MaxEntries bounds the list: above it the newest objects are dropped, which is reported.
	MaxEntries = 4096
	// maxProblems bounds the reports of invalid objects.
	maxProblems = 16
	// aceNamespace and acePort are where Rancher's agent has the cluster's own endpoint; ACEPort is
	// where its clients look for it on a node.
	aceNamespace = "cattle-system"
	acePort      = 443
	// ACEPort is the port of the Authorized Cluster Endpoint on a node.
	ACEPort = 6443
	// kubeVIPAddresses is kube-vip's annotation for the addresses that a Service shall have
	// (kube-vip.io/docs/usage/kubernetes-services).
	kubeVIPAddresses = "kube-vip.io/loadbalancerIPs"
)

// excluded are the namespaces of the cluster's own machinery, ours among them.
func excluded(namespace string) bool {
	switch namespace {
	case metav1.NamespaceSystem, "kubevirt", "longhorn-system", "cdi", v1alpha1.SystemNamespace:
		return true
	}
	return false
}

// Objects are Collect's input, as the device has them. They are not changed.
type Objects struct {
	Services  []*corev1.Service
	Ingresses []*networkingv1.Ingress
	// ServiceRanges are the cluster's ranges of Services' own addresses: no client outside the
	// cluster reaches one.
	ServiceRanges []netip.Prefix
}

// Collect lists the ports that the cluster exposes.
func Collect(o Objects) Collected {
	c := &collector{ranges: o.ServiceRanges}
	services := slices.Clone(o.Services)
	ingresses := slices.Clone(o.Ingresses)
	slices.SortFunc(services, func(a, b *corev1.Service) int { return older(a, b) })
	slices.SortFunc(ingresses, func(a, b *networkingv1.Ingress) int { return older(a, b) })
	// Both lists by age, so that the newest of all are dropped.
	for len(services)+len(ingresses) > 0 {
		if len(ingresses) == 0 || len(services) > 0 && older(services[0], ingresses[0]) <= 0 {
			c.service(services[0])
			services = services[1:]
		} else {
			c.ingress(ingresses[0])
			ingresses = ingresses[1:]
		}
	}
	slices.SortFunc(c.out.Services, compareServices)
	slices.SortFunc(c.out.Ingresses, compareIngresses)
	slices.Sort(c.out.Problems)
	return c.out
}

func older(a, b metav1.Object) int {
	x, y := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(x.Compare(y.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

type collector struct {
	ranges []netip.Prefix
	out    Collected
}

// room reports whether one more entry may be collected.
func (c *collector) room() bool {
	if len(c.out.Services)+len(c.out.Ingresses) < MaxEntries {
		return true
	}
	c.out.LeftOut++
	return false
}

func (c *collector) problem(format string, args ...any) {
	if len(c.out.Problems) < maxProblems {
		c.out.Problems = append(c.out.Problems, fmt.Sprintf(format, args...))
	}
}

func (c *collector) service(s *corev1.Service) {
	if excluded(s.Namespace) || s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes" {
		return
	}
	addresses := c.serviceAddresses(s)
	for _, p := range s.Spec.Ports {
		if p.Port < 1 || p.Port > 65535 || p.NodePort < 0 || p.NodePort > 65535 {
			continue // kube-apiserver refuses them
		}
		if !c.room() {
			continue
		}
		e := Service{
			Namespace: s.Namespace, Name: s.Name, Protocol: string(cmp.Or(p.Protocol, corev1.ProtocolTCP)),
			Port: uint16(p.Port), NodePort: uint16(p.NodePort), Type: string(cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP)), Addresses: addresses,
		}
		if s.Namespace == aceNamespace && p.Port == acePort && e.Protocol == string(corev1.ProtocolTCP) {
			e.Type, e.NodePort, e.ACE = string(corev1.ServiceTypeNodePort), ACEPort, c.ace(s)
		}
		c.out.Services = append(c.out.Services, e)
	}
}

// serviceAddresses are the addresses of the first source that has one: the spec's, its
// external IPs, kube-vip's annotation, and the load balancer's, as Skerry's
// virtual IPs do.
func (c *collector) serviceAddresses(s *corev1.Service) []netip.Addr {
	var given []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		given = append(given, i.IP)
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		// Only a load balancer has an address of its own; external IPs are for each type.
		return c.outside(s.Spec.ExternalIPs)
	}
	for _, texts := range [][]string{
		{s.Spec.LoadBalancerIP}, s.Spec.ExternalIPs, strings.Split(s.Annotations[kubeVIPAddresses], ","), given,
	} {
		if found := c.outside(texts); len(found) > 0 {
			return found
		}
	}
	return nil
}

// outside is the first address of each family outside the ranges of Services. Text that is no
// address, a host name above all, does not count.
func (c *collector) outside(texts []string) []netip.Addr {
	var four, six netip.Addr
	for _, text := range texts {
		ip, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || ip.Zone() != "" || ip.IsUnspecified() {
			continue
		}
		ip = ip.Unmap()
		if slices.ContainsFunc(c.ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			continue
		}
		if ip.Is4() && !four.IsValid() {
			four = ip
		}
		if ip.Is6() && !six.IsValid() {
			six = ip
		}
	}
	return slices.DeleteFunc([]netip.Addr{four, six}, func(a netip.Addr) bool { return !a.IsValid() })
}

// ace reads the allowed clients of the endpoint. An invalid text leaves it closed.
func (c *collector) ace(s *corev1.Service) *ACE {
	sources, on := s.Annotations[v1alpha1.ACESourcesAnnotation]
	if !on {
		return &ACE{}
	}
	var a ACE
	for text := range strings.SplitSeq(sources, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			c.problem("Service %s/%s: %s: %q is no network: the endpoint stays closed", s.Namespace, s.Name, v1alpha1.ACESourcesAnnotation, cut(text, 64))
			return &ACE{}
		}
		a.Sources = append(a.Sources, p.Masked())
	}
	a.Interface = s.Annotations[v1alpha1.ACEInterfaceAnnotation]
	if !interfaceName(a.Interface) {
		c.problem("Service %s/%s: %s: %q is no interface: the endpoint stays closed", s.Namespace, s.Name, v1alpha1.ACEInterfaceAnnotation, cut(a.Interface, 64))
		return &ACE{}
	}
	slices.SortFunc(a.Sources, func(x, y netip.Prefix) int { return x.Compare(y) })
	a.Sources = slices.Compact(a.Sources)
	return &a
}

// interfaceName reports whether a text can be the name of one interface: iptables takes a + at the
// end for a wildcard.
func interfaceName(name string) bool {
	return len(name) > 0 && len(name) < 16 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._@-", r)
	}) && name[0] != '-'
}

func (c *collector) ingress(i *networkingv1.Ingress) {
	if excluded(i.Namespace) {
		return
	}
	var given []string
	for _, l := range i.Status.LoadBalancer.Ingress {
		given = append(given, l.IP)
	}
	addresses := c.outside(given)
	add := func(host, path, kind string, b *networkingv1.IngressBackend) {
		if !c.room() {
			return
		}
		e := Ingress{
			Namespace: i.Namespace, Name: i.Name, Host: host, Path: path, PathType: kind, HTTPS: tls(i, host), Addresses: addresses,
		}
		if b.Service != nil {
			e.Service, e.Port = b.Service.Name, b.Service.Port.Name
			if e.Port == "" {
				e.Port = strconv.Itoa(int(b.Service.Port.Number))
			}
		}
		c.out.Ingresses = append(c.out.Ingresses, e)
	}
	if b := i.Spec.DefaultBackend; b != nil {
		add("", "/", string(networkingv1.PathTypePrefix), b)
	}
	for _, r := range i.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for _, p := range r.HTTP.Paths {
			kind := networkingv1.PathTypeImplementationSpecific
			if p.PathType != nil {
				kind = *p.PathType
			}
			add(r.Host, cmp.Or(p.Path, "/"), string(kind), &p.Backend)
		}
	}
}

// tls reports whether an Ingress ends TLS for a host: one of its TLS hosts is the host, or a
// wildcard for one label before it (Kubernetes' IngressTLS). No hosts are all of them.
func tls(i *networkingv1.Ingress, host string) bool {
	for _, t := range i.Spec.TLS {
		if len(t.Hosts) == 0 || slices.Contains(t.Hosts, host) {
			return true
		}
		if _, parent, ok := strings.Cut(host, "."); ok && slices.Contains(t.Hosts, "*."+parent) {
			return true
		}
	}
	return false
}

func cut(text string, n int) string {
	if len(text) > n {
		return text[:n]
	}
	return text
}
