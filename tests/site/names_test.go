package site_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// nameServer is where devices answer names.
const nameServer = "169.254.20.20:53"

// query asks a device for a name, from the device itself.
func (s *system) query(ctx context.Context, node, name string, qtype uint16) (*dns.Msg, error) {
	h, err := s.Trial.Host(node)
	if err != nil {
		return nil, err
	}
	conn, err := h.Dial(ctx, "udp", nameServer)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.SetEdns0(1232, false)
	r, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn, UDPSize: 1232})
	return r, err
}

// lookUp compares the addresses of a name.
func (s *system) lookUp(ctx context.Context, node, name string, want []string) error {
	r, err := s.query(ctx, node, name, dns.TypeA)
	if err != nil {
		return err
	}
	var got []string
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			if ip, ok := netip.AddrFromSlice(a.A.To4()); ok {
				got = append(got, ip.String())
			}
		}
	}
	want = slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s is %v (%s), want %v", name, got, dns.RcodeToString[r.Rcode], want)
	}
	return nil
}

const database = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: edge1}
      tolerations: [{operator: Exists}]
      containers:
      - {name: app, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: store.${NAMESPACE}.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: six-1, labels: {kubernetes.io/service-name: six}}
addressType: IPv6
endpoints: [{addresses: ["fd00:9::7"], conditions: {ready: true}}]
ports: [{name: http, port: 80, protocol: TCP}]
---
`

func (s *system) waitRecords(ns, name string, qtype uint16, want ...string) {
	s.T.Helper()
	in := strings.NewReplacer("NS", ns+".svc.cluster.local.")
	for i := range want {
		want[i] = in.Replace(want[i])
	}
	s.WaitFor(name+" "+dns.TypeToString[qtype], func(ctx context.Context) error {
		r, err := s.query(ctx, "edge1", in.Replace(name), qtype)
		if err != nil {
			return err
		}
		var got []string
		for _, rr := range r.Answer {
			got = append(got, dns.TypeToString[rr.Header().Rrtype]+" "+strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s: %q, want %q", dns.RcodeToString[r.Rcode], got, want)
		}
		return nil
	})
}

// Names of real objects of a real control plane, with the cloud and without it.
func TestSite_19_NamesResolveWithAndWithoutTheCloud(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, database+service("db", "db", "  clusterIP: None")+service("store", "db", ""))
	ips := map[string]string{}
	for _, p := range s.WaitPods(ns, "app=db", "edge1", 2) {
		ips[p.Name] = p.Status.PodIP
	}
	cluster := s.service(ns, "store").Spec.ClusterIP
	reverse := func(ip string) string { name, err := dns.ReverseAddr(ip); s.Check(err); return name }
	both := []string{"A " + ips["db-0"], "A " + ips["db-1"]}
	slices.Sort(both)
	for _, when := range []string{"linked", "cut"} {
		if when == "cut" {
			s.Cut("edge1")
			s.WaitReady("edge1", false)
		}
		s.waitRecords(ns, "store.NS", dns.TypeA, "A "+cluster)
		s.waitRecords(ns, "store.NS", dns.TypeAAAA)
		s.waitRecords(ns, "six.NS", dns.TypeAAAA, "AAAA fd00:9::7")
		s.waitRecords(ns, "_http._tcp.store.NS", dns.TypeSRV, "SRV 0 100 80 store.NS")
		s.waitRecords(ns, "_udp._udp.store.NS", dns.TypeSRV, "SRV 0 100 80 store.NS")
		s.waitRecords(ns, reverse(cluster), dns.TypePTR, "PTR store.NS")
		s.waitRecords(ns, "outside.NS", dns.TypeA, "A "+cluster, "CNAME store.NS")
		s.waitRecords(ns, "db.NS", dns.TypeA, both...)
		for pod, ip := range ips {
			s.waitRecords(ns, pod+".db.NS", dns.TypeA, "A "+ip)
			s.waitRecords(ns, reverse(ip), dns.TypePTR, "PTR "+pod+".db.NS")
			s.waitRecords(ns, strings.ReplaceAll(ip, ".", "-")+"."+ns+".pod.cluster.local.", dns.TypeA, "A "+ip)
		}
		s.waitRecords(ns, "_http._tcp.db.NS", dns.TypeSRV, "SRV 0 100 8080 db-0.db.NS", "SRV 0 100 8080 db-1.db.NS")
	}
}
