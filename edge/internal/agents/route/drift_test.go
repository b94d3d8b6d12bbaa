package route_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// pinging is ICMP echo (RFC 792) from the node to an address, two a millisecond, each with a
// number, whether the ones before were answered or not. The kernel looks each one's way up again.
type pinging struct {
	conn net.PacketConn
	stop chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	sent     int
	refused  []error // errors for packets that the kernel would not send
	answered map[uint32]bool
}

func (l *system) ping(to string) *pinging {
	l.t.Helper()
	v6 := netip.MustParseAddr(to).Is6()
	p := &pinging{stop: make(chan struct{}), answered: map[uint32]bool{}}
	l.node.Must(l.t, func() (err error) {
		network, from := "ip4:icmp", "0.0.0.0"
		if v6 {
			network, from = "ip6:ipv6-icmp", "::"
		}
		p.conn, err = net.ListenPacket(network, from)
		return err
	})
	l.t.Cleanup(func() { p.conn.Close() })
	// On a busy machine the reader may sleep for a while: packets that overflow the buffer would
	// count as lost.
	raw, err := p.conn.(*net.IPConn).SyscallConn()
	if err != nil {
		l.t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) })
	if err = errors.Join(err, failed); err != nil {
		l.t.Fatal(err)
	}
	var request, reply byte = 8, 0
	if v6 {
		request, reply = 128, 129 // RFC 4443; the checksum is the kernel's work
	}
	const mark = 0x5ce2
	p.wg.Go(func() {
		tick := time.NewTicker(500 * time.Microsecond)
		defer tick.Stop()
		for n := uint32(0); ; n++ {
			m := make([]byte, 12)
			m[0] = request
			binary.BigEndian.PutUint16(m[4:], mark)
			binary.BigEndian.PutUint32(m[8:], n)
			sum := uint32(0)
			for i := 0; i < len(m); i += 2 {
				sum += uint32(binary.BigEndian.Uint16(m[i:]))
			}
			binary.BigEndian.PutUint16(m[2:], ^uint16(sum&0xffff+sum>>16))
			_, err := p.conn.WriteTo(m, &net.IPAddr{IP: net.ParseIP(to)})
			p.mu.Lock()
			p.sent++
			if err != nil {
				p.refused = append(p.refused, err)
			}
			p.mu.Unlock()
			select {
			case <-tick.C:
			case <-p.stop:
				return
			}
		}
	})
	p.wg.Go(func() {
		b := make([]byte, 256)
		for {
			n, _, err := p.conn.ReadFrom(b)
			if err != nil {
				return
			}
			if n == 12 && b[0] == reply && binary.BigEndian.Uint16(b[4:]) == mark {
				p.mu.Lock()
				p.answered[binary.BigEndian.Uint32(b[8:])] = true
				p.mu.Unlock()
			}
		}
	})
	return p
}

func (p *pinging) count() (sent, answered int, refused []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent, len(p.answered), p.refused
}

// A permanent ping, two a millisecond, loses no packet during all kinds of changes of its route.
func TestRoutes_14_NoMomentWithoutARoute(t *testing.T) {
	for name, c := range map[string]struct{ subnet, a, b, source, server string }{
		"IPv4": {"172.20.0.0/16", "10.0.1.1", "10.0.1.77", "10.0.1.2", "172.20.0.1"},
		"IPv6": {"2001:db8:20::/48", "2001:db8:1::1", "2001:db8:1::77", "2001:db8:1::2", "2001:db8:20::1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			// Without our route packets take the default route, to a router that swallows them.
			l.swallow(c.subnet)
			bits := "/24"
			if name == "IPv6" {
				l.node.Route(t, "::/0", "2001:db8::1")
				bits = "/64"
			}
			l.start(true)
			l.api.route(t, "office", spec(c.subnet, c.a))
			l.reported("office", v1alpha1.RouteApplied, 1)
			l.b.Address(t, "node", c.b+bits)
			l.reach(c.server)
			p := l.ping(c.server)
			const changes = 100
			for i := range int64(changes) {
				s := spec(c.subnet, c.a)
				switch i % 5 {
				case 0:
					s.MTU = 1400
				case 1:
					s.Metric = 7 // another key: the new one is set first, then the old one is removed
				case 2:
					s.Gateway = c.b
				case 3:
					s.Gateway, s.NextHops = "", []v1alpha1.NextHop{{Gateway: c.a}, {Gateway: c.b}}
				case 4:
					s.PreferredSource = c.source
				}
				l.api.route(t, "office", s)
				l.reported("office", v1alpha1.RouteApplied, i+2)
			}
			close(p.stop)
			l.until("every ping to be answered", func() error {
				if sent, answered, refused := p.count(); len(refused) > 0 || answered != sent {
					return fmt.Errorf("%d sent, %d lost, %d of them refused by the kernel: %v",
						sent, sent-answered, len(refused), errors.Join(refused[:min(len(refused), 3)]...))
				}
				return nil
			})
			sent, answered, _ := p.count()
			p.conn.Close()
			p.wg.Wait()
			t.Logf("%d changes, %d pings, %d lost", changes, sent, sent-answered)
			// The other way round, so that the test would notice: without the route pings are lost.
			l.api.remove(t, "staticroutes", "office")
			l.have()
			lost := l.ping(c.server)
			l.until("a ping to be lost", func() error {
				if sent, answered, _ := lost.count(); sent < 100 || answered > 0 {
					return fmt.Errorf("%d sent, %d answered", sent, answered)
				}
				return nil
			})
			close(lost.stop)
			lost.conn.Close()
			lost.wg.Wait()
		})
	}
}

func TestRoutes_16_DeletedByHandIsRepaired(t *testing.T) {
	l := newSystem(t)
	l.tune = func(c *route.Config) { c.RepairPause = 100 * time.Millisecond }
	s := spec("172.21.0.0/16", "10.0.1.1")
	s.DriftPolicy = v1alpha1.DriftReport
	l.api.route(t, "watched", s)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("watched", v1alpha1.RouteApplied, 1)
	l.delRoute("172.20.0.0/16")
	l.have("172.20.0.0/16", "172.21.0.0/16")
	l.until("the repair to be reported", func() error {
		if e := l.last("office"); e.Repairs != 1 || e.Reason != v1alpha1.RouteApplied {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	l.delRoute("172.21.0.0/16")
	l.reported("watched", v1alpha1.RouteDrifted, 1)
	l.have("172.20.0.0/16")
	s.MTU = 1400 // the administrator enables it again
	l.api.route(t, "watched", s)
	l.reported("watched", v1alpha1.RouteApplied, 2)
	l.delRoute("172.21.0.0/16")
	l.reported("watched", v1alpha1.RouteDrifted, 2)
	// Repeatedly: ever slower, and reported.
	for l.last("office").Reason != v1alpha1.RouteDegraded {
		before := l.last("office").Repairs
		l.delRoute("172.20.0.0/16")
		l.until("the next repair", func() error {
			if n := l.last("office").Repairs; n == before {
				return fmt.Errorf("%d repairs", n)
			}
			return nil
		})
	}
	if e := l.reported("office", v1alpha1.RouteDegraded, 1); e.Repairs < 5 {
		t.Errorf("degraded after %d repairs", e.Repairs)
	}
}

func TestRoutes_17_InterfaceDownAndUpIsRestored(t *testing.T) {
	l := newSystem(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.api.route(t, "office6", spec("2001:db8:20::/48", "2001:db8:1::1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("office6", v1alpha1.RouteApplied, 1)
	l.node.Down(t, "eth1")
	if e := l.reported("office", v1alpha1.RouteInterfaceDown, 1); !strings.Contains(e.Message, "eth1") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	l.node.Up(t, "eth1")
	l.node.Address(t, "eth1", "2001:db8:1::2/64") // the kernel takes IPv6 addresses away with the interface
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("office6", v1alpha1.RouteApplied, 1)
	l.reach("172.20.0.1")
	l.reach("2001:db8:20::1")
	if e := l.last("office"); e.Repairs != 0 {
		t.Errorf("counted as %d repairs: no process changed the route", e.Repairs)
	}
}

// losing counts how often the kernel had more events than there was room for.
type losing struct {
	*netroute.Driver
	lost atomic.Int32
}

func (k *losing) Watch(ctx context.Context, started func(), handle func(netroute.Event)) error {
	err := k.Driver.Watch(ctx, started, handle)
	if errors.Is(err, netroute.ErrLost) {
		k.lost.Add(1)
	}
	return err
}

func TestRoutes_21_TwoThousandRoutesConvergeAfterAFlood(t *testing.T) {
	l := newSystem(t)
	kernel := &losing{}
	l.node.Must(t, func() (err error) {
		kernel.Driver, err = netroute.Open(netroute.Config{Protocol: protocol, Buffer: 4096}) // less than any flood needs
		return err
	})
	t.Cleanup(kernel.Close)
	l.tune = func(c *route.Config) {
		c.Open = func(context.Context) (route.Kernel, func(), error) { return kernel, func() {}, nil }
	}
	const n = 2000
	subnet := func(i int) string { return fmt.Sprintf("172.24.%d.%d/32", i>>8, i&255) }
	for i := range n {
		l.api.route(t, fmt.Sprint("r", i), spec(subnet(i), "10.0.1.1"))
	}
	start := time.Now()
	l.start(false)
	complete := func() error {
		if got := len(l.routes()); got != n {
			return fmt.Errorf("%d routes of %d", got, n)
		}
		return nil
	}
	l.until("all routes", complete)
	t.Logf("%d routes after %v", n, time.Since(start))
	// A flood of foreign routes, more than any buffer holds, while a hundred of ours are removed.
	for i := range 5000 {
		if i%50 == 0 {
			l.delRoute(subnet(i / 5))
		}
		l.node.Route(t, fmt.Sprintf("172.25.%d.%d/32", i>>8, i&255), "10.0.0.1")
	}
	l.until("all routes again", complete)
	if kernel.lost.Load() == 0 {
		t.Error("no event was lost: the flood proves nothing")
	}
	l.until("all to be reported fine", func() error {
		s := l.agent.Summary()
		if s.Applied != n {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}
