package bench_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	whatServices100  = "memory of Services and names on a device, resident: 100 Services of 4 endpoints"
	whatServices1000 = "memory of Services and names on a device, resident: 1000 Services of 4 endpoints"
	whatName50       = "a cluster name, asked on the device without a link, median"
	whatName99       = "a cluster name, asked on the device without a link, 99th percentile"
	whatCore50       = "a cluster name, beside CoreDNS on a plain node, median"
	whatCore99       = "a cluster name, beside CoreDNS on a plain node, 99th percentile"
	servicesLabel    = "bench=services"
	servicesStart    = time.Minute      // after that edgecore gives back the pages that only its start needed
	servicesSettle   = 75 * time.Second // from when it has given back pages, until those needed at rest are there again: a figure sooner would be too small
	names1000        = 1000
	queries          = 5000
	nameServer       = "169.254.20.20:53"
)

// services: edgecore's growth when it serves Services and names itself, compared with kube-proxy
// and CoreDNS as processes of their own on a plain node; and how long a name takes, compared with
// the echo of a datagram and with CoreDNS.
func (s *bench) services(b *testing.B) {
	s.up(b)
	defer s.dropServices(b)
	pause(b, servicesStart+servicesSettle)
	without := s.memoryOf(b, edge, "edgecore", "VmRSS:")
	s.makeServices(b, 0, 100)
	check(b, s.Set(b.Context(), edge, []string{"modules.services.enable=true", "modules.names.enable=true"}))
	defer func() {
		check(b, s.Set(context.WithoutCancel(b.Context()), edge, []string{"modules.services.enable=false", "modules.names.enable=false"}))
		s.awaitLinked(b)
		s.awaitReady(b, edge)
	}()
	s.awaitLinked(b)
	defer s.runProxy(b)()
	defer s.runCoreDNS(b)()
	var before proxyAndNames
	for _, n := range []int{100, names1000} {
		if n == names1000 {
			s.makeServices(b, 100, n)
		}
		s.awaitName(b, edge, nameServer, n-1)
		s.awaitName(b, plain, coreServer, n-1)
		if n == 100 {
			pause(b, servicesStart) // it was started again
		}
		pause(b, servicesSettle)
		most := map[int]float64{100: 6, names1000: 18}[n]
		r := row{
			what: map[int]string{100: whatServices100, names1000: whatServices1000}[n], unit: "MB", floorName: "kube-proxy and CoreDNS as processes of their own, on a plain node", goal: fmt.Sprintf("at most %g MB", most),
			judge: func(ours, _ float64) (string, bool) { return fmt.Sprintf("%+.4g MB", ours), ours <= most },
		}
		var now proxyAndNames
		for range *rounds {
			pause(b, 5*time.Second)
			r.ours = append(r.ours, s.memoryOf(b, edge, "edgecore", "VmRSS:")-without)
			now.add(s.memoryOf(b, plain, "kubeproxy", "VmRSS:"), s.memoryOf(b, plain, "coredns", "VmRSS:"))
		}
		r.floor = now.both()
		if n == 100 {
			r.note = fmt.Sprintf("edgecore without both had %.4g MB, and no Services. Ours is its growth, by the proxy, the names and what the device holds of Services; theirs is all of two processes: kube-proxy %.4g MB, CoreDNS %.4g MB."+
				" Each figure is of %v after edgecore gave back pages, when those that it needs at rest are there again. The load average was %s.",
				without, median(now.proxy), median(now.names), servicesSettle, load())
		} else {
			r.note = fmt.Sprintf("as above: kube-proxy %.4g MB, CoreDNS %.4g MB. From 100 to %d Services ours grew by %.4g MB, kube-proxy's process by %.4g MB and CoreDNS's by %.4g MB."+
				" What bounds ours is in docs/dev/decisions/0074: about half of the growth is alive (Services and EndpointSlices once decoded and once as they came, and the proxy's own state), the rest is free space between what lives.",
				median(now.proxy), median(now.names), n, median(r.ours)-before.ours, median(now.proxy)-median(before.proxy), median(now.names)-median(before.names))
		}
		now.ours = median(r.ours)
		before = now
		s.rows = append(s.rows, r)
	}
	s.coreTimes(b)
	s.nameTimes(b)
}

// proxyAndNames is the memory of a plain node's two processes, in MB.
type proxyAndNames struct {
	ours         float64
	proxy, names []float64
}

func (p *proxyAndNames) add(proxy, names float64) {
	p.proxy, p.names = append(p.proxy, proxy), append(p.names, names)
}

func (p *proxyAndNames) both() (sums []float64) {
	for i := range p.proxy {
		sums = append(sums, p.proxy[i]+p.names[i])
	}
	return sums
}

func serviceName(i int) string { return fmt.Sprintf("bench-%04d", i) }

// makeServices makes Services from one number to another, each with four endpoints, which no
// controller looks after.
func (s *bench) makeServices(b *testing.B, from, to int) {
	b.Helper()
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(8)
	for i := from; i < to; i++ {
		g.Go(func() error {
			meta := metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{"bench": "services"}}
			_, err := s.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			ready, port, protocol := true, int32(80), corev1.ProtocolTCP
			meta.Labels = map[string]string{"bench": "services", discoveryv1.LabelServiceName: serviceName(i), discoveryv1.LabelManagedBy: "bench"}
			x := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}}}
			for e := range 4 {
				x.Endpoints = append(x.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 60+e, i/250, 1+i%250)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				})
			}
			_, err = s.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, x, metav1.CreateOptions{})
			return err
		})
	}
	check(b, g.Wait())
}

func (s *bench) dropServices(b *testing.B) {
	b.Helper()
	ctx := context.WithoutCancel(b.Context())
	all, err := s.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: servicesLabel})
	check(b, err)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, v := range all.Items {
		g.Go(func() error {
			return errors.Join(s.client.CoreV1().Services(namespace).Delete(ctx, v.Name, metav1.DeleteOptions{}),
				s.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, v.Name, metav1.DeleteOptions{}))
		})
	}
	check(b, g.Wait())
}

// runProxy runs upstream's kube-proxy on the plain node, as that node.
func (s *bench) runProxy(b *testing.B) (stop func()) {
	b.Helper()
	return s.runPlain(b, "kubeproxy", filepath.Join(b.TempDir(), "kube-proxy.log"), "--kubeconfig", "/etc/kubernetes/kubelet.kubeconfig", "--proxy-mode", "nftables",
		"--hostname-override", plain, "--cluster-cidr", "10.244.0.0/16", "--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0")
}

// runPlain runs one of the programs for comparisons on the plain node.
func (s *bench) runPlain(b *testing.B, program, logFile string, args ...string) (stop func()) {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	paths, err := binary.Build(b.Context(), root, program)
	check(b, err)
	check(b, uncache(paths[0]))
	log, err := os.Create(logFile)
	check(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = s.Exec(ctx, plain, trial.Streams{Out: log, Err: log}, nil, paths[0], args...)
	}()
	eventually(b, program+" to run", time.Second, func(context.Context) error {
		if len(processes(s.host(b, plain), program)) == 0 {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("it does not: %s", text)
		}
		return nil
	})
	return func() {
		cancel()
		<-ended
		log.Close()
	}
}

// awaitName waits until a node's name server resolves a Service.
func (s *bench) awaitName(b *testing.B, node, server string, i int) {
	b.Helper()
	eventually(b, node+" to know "+serviceName(i), time.Second, func(ctx context.Context) error {
		c, err := s.host(b, node).Dial(ctx, "udp", server)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = askName(c, i)
		return err
	})
}

// askName asks for the address of a Service, and returns how long that took.
func askName(c net.Conn, i int) (time.Duration, error) {
	q := new(dns.Msg).SetQuestion(serviceName(i)+"."+namespace+".svc.cluster.local.", dns.TypeA)
	raw, err := q.Pack()
	if err != nil {
		return 0, err
	}
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return 0, err
	}
	begin := time.Now()
	if _, err := c.Write(raw); err != nil {
		return 0, err
	}
	buffer := make([]byte, 1500)
	n, err := c.Read(buffer)
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	var a dns.Msg
	if err := a.Unpack(buffer[:n]); err != nil {
		return 0, err
	}
	if a.Rcode != dns.RcodeSuccess || len(a.Answer) != 1 || a.Id != q.Id {
		return 0, fmt.Errorf("%s: %v", dns.RcodeToString[a.Rcode], a.Answer)
	}
	return took, nil
}

// nameTimes asks for names without a link, and takes turns with the echo of a datagram of the same
// size on the same host.
func (s *bench) nameTimes(b *testing.B) {
	b.Helper()
	check(b, s.Cut(b.Context(), edge, lab.Carrier))
	defer func() { check(b, s.Heal(context.WithoutCancel(b.Context()), edge)) }()
	s.awaitUnlinked(b)
	h := s.host(b, edge)
	var echo net.PacketConn
	check(b, h.Do(func() (err error) { echo, err = net.ListenPacket("udp", "127.0.0.1:0"); return err }))
	defer echo.Close()
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := echo.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buffer[:n], from)
		}
	}()
	ask, err := h.Dial(b.Context(), "udp", nameServer)
	check(b, err)
	defer ask.Close()
	back, err := h.Dial(b.Context(), "udp", echo.LocalAddr().String())
	check(b, err)
	defer back.Close()
	var ours, floor []float64
	packet := make([]byte, 60)
	for i := range queries {
		took, err := askName(ask, i%names1000)
		check(b, err)
		ours = append(ours, us(took))
		begin := time.Now()
		_, err = back.Write(packet)
		check(b, err)
		_, err = io.ReadFull(back, packet)
		check(b, err)
		floor = append(floor, us(time.Since(begin)))
	}
	note := fmt.Sprintf("%d queries over UDP, one after the other, of %d Services by turns, from the device's own network; the uplink was cut. The load average was %s.", queries, names1000, load())
	s.rows = append(s.rows,
		row{what: whatName50, unit: "us", ours: at(ours, 0.5), floor: at(floor, 0.5), floorName: "the echo of a datagram", goal: "", judge: above(200, "us"), note: note},
		row{what: whatName99, unit: "us", ours: at(ours, 0.99), floor: at(floor, 0.99), floorName: "the echo of a datagram", goal: "at most 200 us more", judge: above(200, "us"), note: "as above."})
}

// at is a percentile of samples.
func at(v []float64, p float64) []float64 {
	return []float64{slices.Sorted(slices.Values(v))[int(p*float64(len(v)-1))]}
}

// coreTimes asks for names on the device and on the plain node by turns.
func (s *bench) coreTimes(b *testing.B) {
	b.Helper()
	ask, err := s.host(b, edge).Dial(b.Context(), "udp", nameServer)
	check(b, err)
	defer ask.Close()
	core, err := s.host(b, plain).Dial(b.Context(), "udp", coreServer)
	check(b, err)
	defer core.Close()
	var ours, floor []float64
	for i := range queries {
		for _, to := range []struct {
			conn net.Conn
			took *[]float64
		}{{ask, &ours}, {core, &floor}} {
			took, err := askName(to.conn, i%names1000)
			check(b, err)
			*to.took = append(*to.took, us(took))
		}
	}
	note := fmt.Sprintf("%d queries to each over UDP, by turns, of %d Services, from the node's own network, with the link whole. CoreDNS has kubeadm's configuration. The load average was %s.", queries, names1000, load())
	s.rows = append(s.rows,
		row{what: whatCore50, unit: "us", ours: at(ours, 0.5), floor: at(floor, 0.5), floorName: "CoreDNS", judge: ratio(1), note: note},
		row{what: whatCore99, unit: "us", ours: at(ours, 0.99), floor: at(floor, 0.99), floorName: "CoreDNS", judge: ratio(1), note: "as above."})
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
