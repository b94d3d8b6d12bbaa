package edgehub_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// acking is a link whose transport reports acknowledgements.
type acking struct {
	link.Conn
	at atomic.Int64 // of the last: Unix nanoseconds
}

func (a *acking) Info() link.Info {
	info := a.Conn.Info()
	info.Acks = true
	return info
}

func (a *acking) Stats() link.Stats { return link.Stats{LastHeard: time.Unix(0, a.at.Load())} }

// ackingDialer makes every link an acking one.
type ackingDialer struct {
	link.Dialer
	made chan *acking
}

func (d ackingDialer) Dial(ctx context.Context, address string) (link.Conn, error) {
	c, err := d.Dialer.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	a := &acking{Conn: c}
	a.at.Store(time.Now().UnixNano())
	d.made <- a
	return a, nil
}

// If the transport reports that heartbeats arrive, few request an answer, and the link is kept by
// acknowledgements.
func TestHub_WhereTheTransportAcknowledges_AsksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := make(chan *acking, 16)
		b := newBench(t, func(c *edgehub.Config) { c.Dialer = ackingDialer{c.Dialer, made} })
		c := b.cloud()
		c.welcome()
		b.up()
		conn := <-made
		start, asked := time.Now(), 0
		for beats := 1; beats <= 60; beats++ {
			m := c.receive()
			beat, err := topic.Heartbeat.Content(m)
			if err != nil {
				t.Fatal(err)
			}
			conn.at.Store(time.Now().UnixNano())
			if !beat.GetSilent() {
				asked++
				c.send(m.Answer(beat))
			}
		}
		if d := time.Since(start); d != 590*time.Second || asked != 10 {
			t.Errorf("60 heartbeats in %v, %d of them wanted an answer", d, asked)
		}
		if contact := b.hub.Status().LastContact; time.Since(contact) > time.Second {
			t.Errorf("last contact %v ago", time.Since(contact))
		}
		// Neither a word nor an acknowledgement: the network is gone.
		start = time.Now()
		if end := c.ended(); end.Code != link.CloseTimeout || !end.Remote {
			t.Errorf("ended with %v", end)
		}
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("noticed after %v", d)
		}
	})
}

// Silence counts from the last heartbeat that arrived. Later acknowledgements of other messages
// don't delay the end of the link: by then cloudcore may not have renewed the Lease for twice as
// long.
func TestHub_WhereTheTransportAcknowledges_CountsFromTheLastHeartbeat(t *testing.T) {
	for name, test := range map[string]struct {
		signs []time.Duration // acknowledgements after a heartbeat at 0 that arrived
		want  time.Duration   // when the link ends; 0: it doesn't
	}{
		"none":                           {nil, 30 * time.Second},
		"of other traffic":               {[]time.Duration{3 * time.Second, 6 * time.Second, 9900 * time.Millisecond}, 30 * time.Second},
		"the next heartbeat's":           {[]time.Duration{10050 * time.Millisecond}, 40 * time.Second},
		"the next heartbeat's, late":     {[]time.Duration{19 * time.Second}, 40 * time.Second},
		"two heartbeats', later":         {[]time.Duration{29 * time.Second}, 50 * time.Second},
		"each heartbeat's, all too late": {[]time.Duration{19 * time.Second, 29 * time.Second, 39 * time.Second, 49 * time.Second, 59 * time.Second}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := make(chan *acking, 16)
				b := newBench(t, func(c *edgehub.Config) { c.Dialer = ackingDialer{c.Dialer, made} })
				c := b.cloud()
				c.welcome()
				b.up()
				conn := <-made
				for range 2 { // the first requests an answer
					m := c.receive()
					beat, err := topic.Heartbeat.Content(m)
					if err != nil {
						t.Fatal(err)
					}
					conn.at.Store(time.Now().UnixNano())
					if !beat.GetSilent() {
						c.send(m.Answer(beat))
					}
				}
				start := time.Now()
				go func() {
					for _, at := range test.signs {
						time.Sleep(at - time.Since(start))
						conn.at.Store(time.Now().UnixNano())
					}
				}()
				ended := make(chan time.Duration, 1)
				go func() { c.ended(); ended <- time.Since(start) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				got := time.Duration(0)
				select {
				case got = <-ended:
				default:
					b.stop()
				}
				if got != test.want {
					t.Errorf("the link ended after %v, want %v", got, test.want)
				}
			})
		})
	}
}

// A kernel that acknowledges for a blocked cloudcore does not keep the link.
func TestHub_WhereTheTransportAcknowledges_NoticesACloudThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := make(chan *acking, 16)
		b := newBench(t, func(c *edgehub.Config) { c.Dialer = ackingDialer{c.Dialer, made} })
		c := b.cloud()
		c.welcome()
		b.up()
		conn := <-made
		start := time.Now()
		for {
			if _, err := c.conn.Receive(t.Context()); err != nil {
				break
			}
			conn.at.Store(time.Now().UnixNano())
		}
		if end := c.ended(); end.Code != link.CloseTimeout || !end.Remote {
			t.Errorf("ended with %v", end)
		}
		if d := time.Since(start); d > 91*time.Second {
			t.Errorf("after %v", d)
		}
	})
}

// elsewhere dials in a host's network.
type elsewhere struct {
	host   *wire.Host
	dialer link.Dialer
}

func (d elsewhere) Dial(ctx context.Context, address string) (c link.Conn, err error) {
	return c, errors.Join(d.host.Do(func() error { c, err = d.dialer.Dial(ctx, address); return err }))
}

// counted is a cable between a device and a cloud, which counts bytes.
type counted struct {
	device, cloud *wire.Host
	before        uint64
}

func newCounted(t *testing.T) *counted {
	c := &counted{device: wire.NewHost(t), cloud: wire.NewHost(t)}
	for _, h := range []*wire.Host{c.device, c.cloud} {
		h.Sysctl(t, "ipv6/conf/default/disable_ipv6", "1") // its neighbour discovery would be counted as traffic
	}
	wire.Cable(t, c.device, "up", c.cloud, "down")
	c.device.Address(t, "up", "10.0.0.1/24")
	c.cloud.Address(t, "down", "10.0.0.2/24")
	return c
}

// total returns the bytes in both directions, with IP's and Ethernet's headers.
func (c *counted) total(t *testing.T) uint64 {
	t.Helper()
	l, err := c.device.Netlink().LinkByName("up")
	if err != nil {
		t.Fatal(err)
	}
	s := l.Attrs().Statistics
	return s.RxBytes + s.TxBytes
}

// TestIsland_IdleBytes counts the bytes on a cable: heartbeats of an idle link, compared with the
// floor of one TLS record of one byte and its TCP acknowledgement each interval. The interval is a
// second here instead of ten, and the bytes of one are the same.
func TestIsland_IdleBytes(t *testing.T) {
	const rounds, beats, every, allowed = 4, 6, time.Second, 1.3
	site := linktest.NewSite(t)
	table := topic.NewTable()
	bounds := link.Default()
	bounds.Keepalive, bounds.IdleTimeout = every, 10*time.Second
	client := site.ClientTLS()
	client.ServerName = "localhost"

	cables := map[string]*counted{"floor": newCounted(t), "websocket": newCounted(t), "quic": newCounted(t)}
	tick := floor(t, cables["floor"], site, client)
	received := map[string]func(int) error{}
	for _, name := range []string{"websocket", "quic"} {
		cable := cables[name]
		var l link.Listener
		var d link.Dialer
		cable.cloud.Must(t, func() (err error) {
			if name == "quic" {
				if l, err = quiclink.Listen(t.Context(), "10.0.0.2:7000", quiclink.ListenConfig{Link: bounds, TLS: site.ServerTLS(), Table: table}); err != nil {
					return err
				}
				d, err = quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: client, Table: table})
				return err
			}
			if l, err = wslink.Listen(t.Context(), "10.0.0.2:7000", wslink.ListenConfig{Link: bounds, TLS: site.ServerTLS(), Table: table}); err != nil {
				return err
			}
			d, err = wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: client, Table: table})
			return err
		})
		t.Cleanup(func() { _ = l.Close() })
		b := newBench(t, func(c *edgehub.Config) {
			c.Dialer, c.Keepalive, c.Servers = elsewhere{cable.device, d}, every, []string{"10.0.0.2:7000"}
		})
		conn, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cloud := &cloud{t, conn}
		cloud.welcome()
		b.up()
		received[name] = func(n int) error {
			for range n {
				m, err := conn.Receive(t.Context())
				if err != nil {
					return err
				}
				beat, err := topic.Heartbeat.Content(m)
				if err != nil {
					return err
				}
				if beat.GetSilent() {
					continue
				}
				if err := conn.Send(t.Context(), m.Answer(beat)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	round := func(n int) {
		var all errgroup.Group // at one time: both links request their answers
		for _, receive := range received {
			all.Go(func() error { return receive(n) })
		}
		for range n {
			tick()
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	round(6) // the handshakes, tickets and path MTU probes are over then
	// A busy machine adds packets of its own (a probe of QUIC whose acknowledgement came late, a
	// repeated segment): the round with the fewest bytes counts.
	// The floor is that of all rounds, since its acknowledgements may coincide.
	fewest := map[string]float64{}
	begun := cables["floor"].total(t)
	for range rounds {
		for _, c := range cables {
			c.before = c.total(t)
		}
		round(beats)
		for name, c := range cables {
			each := float64(c.total(t)-c.before) / beats
			if have, ok := fewest[name]; !ok || each < have {
				fewest[name] = each
			}
		}
	}
	lowest := float64(cables["floor"].total(t)-begun) / (rounds * beats)
	t.Logf("floor: %.0f bytes an interval, %.1f kB an hour at one in 10 s", lowest, lowest*360/1000)
	for name := range received {
		each := fewest[name]
		t.Logf("%s: %.0f bytes an interval, %.1f kB an hour, %.2f x the floor", name, each, each*360/1000, each/lowest)
		if each > allowed*lowest {
			t.Errorf("%s: %.0f bytes an interval, above %.1f x the floor of %.0f", name, each, allowed, lowest)
		}
	}
}

// floor is a TLS connection over which tick sends one byte and waits until it has come.
func floor(t *testing.T, cable *counted, site linktest.Site, client *tls.Config) (tick func()) {
	t.Helper()
	var listener, conn net.Conn
	var l net.Listener
	cable.cloud.Must(t, func() (err error) { l, err = net.Listen("tcp", "10.0.0.2:7000"); return err })
	t.Cleanup(func() { _ = l.Close() })
	cable.device.Must(t, func() (err error) { conn, err = net.Dial("tcp", "10.0.0.2:7000"); return err })
	listener, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), listener.Close() })
	there, here := tls.Server(listener, site.ServerTLS()), tls.Client(conn, client)
	shaken := make(chan error, 1)
	go func() { shaken <- there.Handshake() }()
	if err := errors.Join(here.Handshake(), <-shaken); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := here.Write([]byte{0}); err != nil {
			t.Fatal(fmt.Errorf("the floor: %w", err))
		}
		if _, err := io.ReadFull(there, make([]byte, 1)); err != nil {
			t.Fatal(fmt.Errorf("the floor: %w", err))
		}
		time.Sleep(100 * time.Millisecond) // an acknowledgement is delayed by up to 40 ms (tcp(7)), and the next byte must not carry it
	}
}
