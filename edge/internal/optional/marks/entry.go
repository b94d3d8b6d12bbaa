package marks

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Service is one port of a Service.
type Service struct {
	Namespace, Name string
	Protocol        string // TCP, UDP or SCTP
	Port, NodePort  uint16 // NodePort: 0 without one
	Type            string // as in the Service's spec; NodePort for the Authorized Cluster Endpoint
	// Addresses are where clients outside the cluster reach it: at most one of each family, IPv4
	// first. Empty where the cluster gives it no address.
	Addresses []netip.Addr
	// ACE is set for a port of the Authorized Cluster Endpoint.
	ACE *ACE
}

// ACE has the allowed clients of the Authorized Cluster Endpoint. The zero value: no client.
type ACE struct {
	Interface string
	Sources   []netip.Prefix
}

// Enabled reports whether the Service has opted in.
func (a *ACE) Enabled() bool { return a != nil && a.Interface != "" && len(a.Sources) > 0 }

// Ingress is one path of an Ingress.
type Ingress struct {
	Namespace, Name      string
	Host, Path, PathType string
	HTTPS                bool
	Addresses            []netip.Addr
	Service, Port        string // of the backend; Port is a number or a name
}

// Collected are the ports that the cluster exposes, in a fixed order: the same objects make the
// same list, whatever order they come in.
type Collected struct {
	Services  []Service
	Ingresses []Ingress
	// LeftOut is the number of dropped entries above MaxEntries: those of the newest objects.
	LeftOut int
	// Problems are the errors of objects, each as a sentence: at most maxProblems.
	Problems []string
}

// Entries are the entries as text, one each.
func (c *Collected) Entries() []string {
	all := make([]string, 0, len(c.Services)+len(c.Ingresses))
	for i := range c.Services {
		all = append(all, c.Services[i].String())
	}
	for i := range c.Ingresses {
		all = append(all, c.Ingresses[i].String())
	}
	return all
}

// String is the entry on one line.
func (s *Service) String() string {
	text := fmt.Sprintf("service %s/%s %s %d", s.Namespace, s.Name, s.Protocol, s.Port)
	if s.NodePort > 0 {
		text += fmt.Sprintf(" nodePort %d", s.NodePort)
	}
	text += " " + s.Type
	if len(s.Addresses) > 0 {
		text += " at " + joined(s.Addresses)
	}
	if s.ACE == nil {
		return text
	}
	if !s.ACE.Enabled() {
		return text + " ace closed"
	}
	return text + " ace on " + s.ACE.Interface + " from " + joined(s.ACE.Sources)
}

// String is the entry on one line.
func (i *Ingress) String() string {
	scheme := "http"
	if i.HTTPS {
		scheme = "https"
	}
	text := fmt.Sprintf("ingress %s/%s %s://%s%s (%s)", i.Namespace, i.Name, scheme, cmp.Or(i.Host, "*"), i.Path, i.PathType)
	if len(i.Addresses) > 0 {
		text += " at " + joined(i.Addresses)
	}
	return text + " to " + i.Service + ":" + i.Port
}

func joined[T fmt.Stringer](all []T) string {
	text := make([]string, len(all))
	for i, x := range all {
		text[i] = x.String()
	}
	return strings.Join(text, ",")
}

func compareServices(a, b Service) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

func compareIngresses(a, b Ingress) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Path, b.Path),
		cmp.Compare(a.PathType, b.PathType), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port))
}
