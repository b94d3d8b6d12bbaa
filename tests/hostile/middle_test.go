package hostile_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/hostile"
)

// middle stands between a device and cloudcore: it passes on all bytes of both transports,
// remembers the device's, and changes or drops those that a test selects.
type middle struct {
	websocket, quic string // its own addresses

	alter atomic.Bool // the next bytes of the device, over TCP
	deaf  atomic.Bool // UDP is dropped

	mu        sync.Mutex
	streams   [][]byte // of each TCP connection
	datagrams [][]byte
}

func between(t *testing.T, s *system) *middle {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{websocket: tcp.Addr().String(), quic: udp.LocalAddr().String()}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running.Go(func() { m.passTCP(ctx, &running, tcp, s.websocket) })
	running.Go(func() { m.passUDP(ctx, &running, udp, s.quic) })
	t.Cleanup(func() {
		cancel()
		_, _ = tcp.Close(), udp.Close()
		running.Wait()
	})
	return m
}

func (m *middle) passTCP(ctx context.Context, running *sync.WaitGroup, l net.Listener, to string) {
	for {
		device, err := l.Accept()
		if err != nil {
			return
		}
		cloud, err := net.Dial("tcp", to)
		if err != nil {
			_ = device.Close()
			continue
		}
		m.mu.Lock()
		i := len(m.streams)
		m.streams = append(m.streams, nil)
		m.mu.Unlock()
		closeBoth := func() { _, _ = device.Close(), cloud.Close() }
		stop := context.AfterFunc(ctx, closeBoth)
		pass := func(to, from net.Conn, see func([]byte)) {
			defer closeBoth()
			defer stop()
			for b := make([]byte, 64<<10); ; {
				n, err := from.Read(b)
				see(b[:n])
				if _, failed := to.Write(b[:n]); err != nil || failed != nil {
					return
				}
			}
		}
		running.Go(func() { pass(device, cloud, func([]byte) {}) })
		running.Go(func() {
			pass(cloud, device, func(b []byte) {
				m.mu.Lock()
				m.streams[i] = append(m.streams[i], b...)
				m.mu.Unlock()
				if len(b) > 0 && m.alter.CompareAndSwap(true, false) {
					b[len(b)-1] ^= 1
				}
			})
		})
	}
}

func (m *middle) passUDP(ctx context.Context, running *sync.WaitGroup, l net.PacketConn, to string) {
	clouds := map[string]net.Conn{} // by the device's address
	for b := make([]byte, 64<<10); ; {
		n, device, err := l.ReadFrom(b)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.datagrams = append(m.datagrams, append([]byte(nil), b[:n]...))
		m.mu.Unlock()
		if m.deaf.Load() {
			continue
		}
		cloud := clouds[device.String()]
		if cloud == nil {
			if cloud, err = net.Dial("udp", to); err != nil {
				continue
			}
			clouds[device.String()] = cloud
			context.AfterFunc(ctx, func() { _ = cloud.Close() })
			running.Go(func() {
				for b := make([]byte, 64<<10); ; {
					n, err := cloud.Read(b)
					if err != nil {
						return
					}
					_, _ = l.WriteTo(b[:n], device)
				}
			})
		}
		_, _ = cloud.Write(b[:n])
	}
}

// heard returns the device's bytes so far.
func (m *middle) heard() (streams, datagrams [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([][]byte(nil), m.streams...), append([][]byte(nil), m.datagrams...)
}

// at dials one address, whatever it is asked for.
type at struct {
	link.Dialer
	address string
}

func (d at) Dial(ctx context.Context, _ string) (link.Conn, error) {
	return d.Dialer.Dial(ctx, d.address)
}

// auto is the dialer of a device in its usual configuration: QUIC, else websocket.
func auto(t *testing.T, secure *tls.Config, quic, websocket string) link.Dialer {
	t.Helper()
	q, err := hostile.NewDialer(link.QUIC, secure)
	if err != nil {
		t.Fatal(err)
	}
	w, err := hostile.NewDialer(link.WebSocket, secure)
	if err != nil {
		t.Fatal(err)
	}
	return link.Auto(at{q, quic}, at{w, websocket})
}

// works shows that a device's session works: kube-apiserver answers it.
func works(t *testing.T, d *hostile.Device, node string) {
	t.Helper()
	cluster.Eventually(t, "the session of "+node+" works", func(ctx context.Context) error {
		a, err := d.Ask(ctx, &topicpb.APIRequest{Method: http.MethodGet, Path: "/api/v1/nodes/" + node})
		if err != nil {
			return err
		}
		if a.GetCode() != http.StatusOK {
			return errors.New(http.StatusText(int(a.GetCode())))
		}
		return nil
	})
}

// TestHostile_15_ManInTheMiddleIsRefused: an active attacker between a device with Auto and the
// cloud.
func TestHostile_15_ManInTheMiddleIsRefused(t *testing.T) {
	s := newSystem(t, "")
	const node = "edge-middle"
	plane.AddNode(t, node)
	secure := s.tls(t, node)
	open := func(t *testing.T, dialer link.Dialer) (*hostile.Device, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return hostile.Dial(ctx, hostile.Config{Dialer: dialer, Epoch: epochs.Add(1)})
	}
	must := func(t *testing.T, dialer link.Dialer) *hostile.Device {
		t.Helper()
		d, err := hostile.Dial(t.Context(), hostile.Config{Dialer: dialer, Epoch: epochs.Add(1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		return d
	}

	t.Run("stands in for the cloud", func(t *testing.T) {
		for name, certificate := range map[string]func(*testing.T) tls.Certificate{
			"with a CA of its own":                  ownAuthority,
			"with another device's kubelet's":       kubeletServing,
			"with another device's own certificate": deviceCertificate,
		} {
			t.Run(name, func(t *testing.T) {
				quic, websocket, accepted := impostor(t, certificate(t))
				d, err := open(t, auto(t, secure, quic, websocket))
				if err == nil {
					d.Close()
					t.Fatal("the device took it for the cloud")
				}
				if n := strings.Count(err.Error(), "failed to verify certificate"); n != 2 {
					t.Errorf("of the two transports %d say that it is the certificate: %v", n, err)
				}
				if n := accepted(); n != 0 {
					t.Errorf("%d links were opened by it", n)
				}
			})
		}
	})

	t.Run("takes away QUIC and TLS", func(t *testing.T) {
		// UDP goes nowhere, and TCP is answered with a websocket in plain text.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first := make(chan byte, 100)
		plain := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			t.Error("the device spoke plain HTTP")
			w.WriteHeader(http.StatusSwitchingProtocols)
		})}
		go func() { _ = plain.Serve(spying{l, first}) }()
		t.Cleanup(func() { _ = plain.Close() })
		if d, err := open(t, auto(t, secure, cluster.FreeAddress(t, "udp"), l.Addr().String())); err == nil {
			d.Close()
			t.Fatal("a link without TLS was opened")
		}
		const handshake = 22 // the record type of TLS (RFC 8446, 5.1)
		if b := <-first; b != handshake {
			t.Errorf("the device's first byte is %d, and not the beginning of a handshake", b)
		}
	})

	t.Run("takes away QUIC alone", func(t *testing.T) {
		m := between(t, s)
		m.deaf.Store(true)
		d := must(t, auto(t, secure, m.quic, m.websocket))
		works(t, d, node)
		if d.Transport() != link.WebSocket {
			t.Errorf("the link is over %s", d.Transport())
		}
		if _, datagrams := m.heard(); len(datagrams) == 0 {
			t.Error("QUIC was not tried")
		}
	})

	t.Run("replays", func(t *testing.T) {
		for _, transport := range []link.Transport{link.QUIC, link.WebSocket} {
			t.Run(string(transport), func(t *testing.T) { replay(t, s, node, transport, must) })
		}
	})

	t.Run("changes a byte", func(t *testing.T) {
		m := between(t, s)
		m.deaf.Store(true)
		d := must(t, auto(t, secure, m.quic, m.websocket))
		works(t, d, node)
		m.alter.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if a, err := d.Ask(ctx, &topicpb.APIRequest{Method: http.MethodGet, Path: "/api/v1/nodes/" + node}); err == nil {
			t.Errorf("a message that was changed was answered: %v", a)
		}
		select {
		case <-d.Done():
		case <-ctx.Done():
			t.Error("the link goes on")
		}
	})
}

// replay sends cloudcore all that a device has sent it, again, while the device's link is open and
// after it has ended.
func replay(t *testing.T, s *system, node string, transport link.Transport, must func(*testing.T, link.Dialer) *hostile.Device) {
	m := between(t, s)
	dialer, err := hostile.NewDialer(transport, s.tls(t, node))
	if err != nil {
		t.Fatal(err)
	}
	address := m.websocket
	if transport == link.QUIC {
		address = m.quic
	}
	d := must(t, at{dialer, address})
	works(t, d, node)
	sessions := func() int { return s.metric(t, `skerry_hub_sessions{transport="`+string(transport)+`"}`) }
	open := sessions()
	streams, datagrams := m.heard()
	again := func() {
		t.Helper()
		network, to, parts := "tcp", s.websocket, streams
		if transport == link.QUIC {
			network, to, parts = "udp", s.quic, datagrams
		}
		if len(parts) == 0 {
			t.Fatal("nothing was heard")
		}
		c, err := net.Dial(network, to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, part := range parts {
			if _, err := c.Write(part); err != nil {
				t.Logf("cloudcore hung up: %v", err)
				break
			}
		}
		// cloudcore has judged it once another link, which came later, works.
		other := s.dial(t, transport, "edge-bystander")
		works(t, other, "edge-bystander")
		other.Close()
	}
	plane.AddNode(t, "edge-bystander")
	again()
	works(t, d, node) // it was not replaced
	cluster.Eventually(t, "no session came of it", func(context.Context) error {
		if n := sessions(); n != open {
			return errors.New("the number of sessions has changed")
		}
		return nil
	})
	d.Close()
	cluster.Eventually(t, "the session has ended", func(context.Context) error {
		if sessions() >= open {
			return errors.New("it is open")
		}
		return nil
	})
	again()
	cluster.Eventually(t, "no session came of it later", func(context.Context) error {
		if n := sessions(); n != open-1 {
			return errors.New("the number of sessions has changed")
		}
		return nil
	})
}

// impostor listens as cloudcore does, over both transports, with a certificate that is not the
// cloud's. It lets every client in whose certificate is right.
func impostor(t *testing.T, certificate tls.Certificate) (quic, websocket string, accepted func() int) {
	t.Helper()
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(plane.CA())
	secure := func() *tls.Config {
		return pki.ServerTLS(pki.Server{
			Certificate: func() (*tls.Certificate, error) { return &certificate, nil },
			ClientCAs:   func() *x509.CertPool { return clients },
		})
	}
	q, err := quiclink.Listen(t.Context(), "127.0.0.1:0", quiclink.ListenConfig{Link: link.Default(), TLS: secure(), Table: topic.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := wslink.Listen(t.Context(), "127.0.0.1:0", wslink.ListenConfig{Link: link.Default(), TLS: secure(), Table: topic.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	for _, l := range []link.Listener{q, w} {
		go func() {
			for {
				c, err := l.Accept(context.Background())
				if err != nil {
					return
				}
				// A QUIC server may think that the handshake is complete before the client has
				// refused it: only a message counts.
				if _, err := c.Receive(context.Background()); err == nil {
					n.Add(1)
				}
			}
		}()
		t.Cleanup(func() { _ = l.Close() })
	}
	return q.Addr().String(), w.Addr().String(), func() int { return int(n.Load()) }
}

func pair(t *testing.T, cert, key []byte, err error) tls.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	out, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ownAuthority is a certificate for the cloud's address by a CA that has the name of the cloud's.
func ownAuthority(t *testing.T) tls.Certificate {
	t.Helper()
	dir := t.TempDir()
	cert, key, err := ca.New("skerry serving CA")
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := writeFile(t, dir, "ca.crt", cert), writeFile(t, dir, "ca.key", key)
	cert, key, err = ca.Server(certFile, keyFile, pkix.Name{CommonName: "cloudcore"}, []string{"localhost"}, netip.MustParseAddr("127.0.0.1"))
	return pair(t, cert, key, err)
}

// kubeletServing is a kubelet's serving certificate, by the cluster's CA, for the cloud's address.
func kubeletServing(t *testing.T) tls.Certificate {
	t.Helper()
	cert, key, err := ca.Server(plane.CAFile(), plane.CAKeyFile(), pkix.Name{CommonName: pki.NodeUserPrefix + "edge-other", Organization: []string{pki.NodesGroup}},
		[]string{"localhost"}, netip.MustParseAddr("127.0.0.1"))
	return pair(t, cert, key, err)
}

func deviceCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	cert, key, err := plane.Sign(pkix.Name{CommonName: pki.NodeUserPrefix + "edge-other", Organization: []string{pki.NodesGroup}})
	return pair(t, cert, key, err)
}

func writeFile(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// spying passes on the first byte of each connection.
type spying struct {
	net.Listener
	first chan<- byte
}

func (s spying) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &spied{Conn: c, first: s.first}, nil
}

type spied struct {
	net.Conn
	first chan<- byte
	once  sync.Once
}

func (s *spied) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 {
		s.once.Do(func() { s.first <- b[0] })
	}
	return n, err
}
