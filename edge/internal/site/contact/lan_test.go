package contact_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/conntrack"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/contact/contactpb"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

const sitePort = 10552

// elsewhere is a LAN driver of a host of the test.
type elsewhere struct {
	host *lantest.Host
	*lan.LAN
}

func (e elsewhere) Listen(port int) (c *net.UDPConn, err error) {
	return c, e.host.Do(func() (err error) { c, err = e.LAN.Listen(port); return err })
}

func (e elsewhere) Join(c *net.UDPConn) error {
	return e.host.Do(func() error { return e.LAN.Join(c) })
}

func (e elsewhere) Beacon(packet []byte, port int) error {
	return e.host.Do(func() error { return e.LAN.Beacon(packet, port) })
}

func (e elsewhere) Answers(ctx context.Context, a netip.Addr, patience time.Duration) (yes bool, err error) {
	return yes, e.host.Do(func() (err error) { yes, err = e.LAN.Answers(ctx, a, patience); return err })
}

func (e elsewhere) Networks() (all []lan.Network, err error) {
	return all, e.host.Do(func() (err error) { all, err = e.LAN.Networks(); return err })
}

func (e elsewhere) Subscribe() (c *lan.Changes, err error) {
	return c, e.host.Do(func() (err error) { c, err = e.LAN.Subscribe(); return err })
}

// memory is a disk.
type memory struct {
	mu   sync.Mutex
	kept map[string][]byte
}

func (m *memory) Load() (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][]byte{}
	for k, v := range m.kept {
		all[k] = v
	}
	return all, nil
}

func (m *memory) Save(_ context.Context, changes map[string][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[string][]byte{}
	}
	for k, v := range changes {
		m.kept[k] = v
	}
	return nil
}

// system is a LAN with devices of one site.
type system struct {
	t         *testing.T
	lan       *lantest.LAN
	authority *linktest.Authority
	devices   []*device
	members   []*topicpb.SiteMember
}

// device is one with a contact agent, and with a disk and a /run that outlive it.
type device struct {
	world  *system
	name   string
	number int
	host   *lantest.Host
	boot   string
	run    string
	disk   *memory
	cert   tls.Certificate
	linked bool
	// programs answers other devices; nil as in an older release.
	programs func(ctx context.Context, node string, s *contact.Stream)
	changed  func() // called at each change; may be nil

	holder *peers.Holder
	feed   func(context.Context, message.Message) error
	agent  *contact.Agent
	stop   func()

	mu    sync.Mutex
	calls map[string]int // of Changed
}

func newSystem(t *testing.T, n int) *system {
	w := &system{t: t, lan: lantest.New(t), authority: linktest.NewAuthority(t)}
	for i := range n {
		w.add(fmt.Sprintf("edge%02d", i+1), fmt.Sprintf("10.90.0.%d/24", i+1))
	}
	return w
}

func (w *system) add(name string, addresses ...string) *device {
	d := &device{
		world: w, name: name, number: len(w.devices) + 1, host: w.lan.Host(addresses...), boot: name + "-boot-1", disk: &memory{},
		run: filepath.Join(w.t.TempDir(), "contact.json"), cert: w.authority.Node(w.t, name), calls: map[string]int{},
	}
	w.devices = append(w.devices, d)
	w.members = append(w.members, &topicpb.SiteMember{Node: name, PodCidrs: []string{d.pods()}})
	return d
}

func (d *device) pods() string { return fmt.Sprintf("10.91.%d.0/24", d.number) }

func (d *device) pod(n int) contact.Pod {
	return contact.Pod{
		UID: types.UID(fmt.Sprintf("%s-pod-%d", d.name, n)), Ready: true,
		Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.91.%d.%d", d.number, n+1))},
	}
}

func (w *system) site() *topicpb.Site {
	s := &topicpb.Site{Name: "plant", Members: w.members}
	raw, err := proto.Marshal(s)
	if err != nil {
		w.t.Fatal(err)
	}
	s.Digest = raw[:min(16, len(raw))]
	return s
}

// start boots or starts edgecore's part of the device.
func (d *device) start() {
	t := d.world.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d.holder = peers.New(d.name, d.disk)
	if err := d.holder.Load(); err != nil {
		t.Fatal(err)
	}
	handle, run := d.holder.Attach(linkstate.Link{}, func(context.Context, message.Message) error { return nil })
	d.feed = handle
	var all sync.WaitGroup
	all.Go(func() { run(ctx) })
	d.agent = contact.New(contact.Config{
		Node: d.name, Boot: d.boot, Port: sitePort, Site: d.holder, Network: elsewhere{d.host, lan.New()}, Memory: d.disk, RunFile: d.run,
		Forget: func(p []netip.Prefix) (n int, err error) {
			return n, d.host.Do(func() (err error) { n, err = conntrack.New().Forget(p); return err })
		},
		Trust: contact.Trust{
			Certificate: func() (*tls.Certificate, error) { return &d.cert, nil },
			Authorities: func() *x509.CertPool { return d.world.authority.Pool() },
			Linked:      func() bool { return d.linked }, Now: time.Now,
		},
		Changed: func(node string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.calls[node]++
			if d.changed != nil {
				d.changed()
			}
		},
		Programs: d.programs,
	})
	if err := d.agent.Load(ctx); err != nil {
		t.Fatal(err)
	}
	d.agent.SetPods([]contact.Pod{d.pod(1)})
	ready := make(chan struct{})
	ended := make(chan error, 1)
	all.Go(func() { ended <- d.agent.Serve(ctx, func() { close(ready) }) })
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("%s: %v", d.name, err)
	}
	d.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	t.Cleanup(d.stop)
}

// tell sends a device its site.
func (d *device) tell() {
	if err := d.feed(d.world.t.Context(), topic.Site.New(message.Resource{Name: d.name}, d.world.site())); err != nil {
		d.world.t.Fatal(err)
	}
}

func (w *system) startAll() {
	for _, d := range w.devices {
		d.start()
		d.tell()
	}
}

const patience = 60 * time.Second

// sees waits until a device has a status for another.
func (d *device) sees(other *device, want contact.Status) {
	d.world.t.Helper()
	poll.True(d.world.t, fmt.Sprintf("%s sees %s as %v", d.name, other.name, want), func() bool { return d.agent.Contact(other.name) == want })
}

func (w *system) allMet() {
	w.t.Helper()
	for _, d := range w.devices {
		for _, o := range w.devices {
			if d != o {
				d.sees(o, contact.Met)
				poll.True(w.t, d.name+" has the report of "+o.name, func() bool { _, ok := d.agent.Pod(o.name, o.pod(1).UID); return ok })
			}
		}
	}
}

// changes returns how often the state of another device changed.
func (d *device) changes(node string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[node]
}

// startHostile starts these only: the others are the test's to play.
func (w *system) startHostile(good ...*device) {
	for _, d := range good {
		d.start()
		d.tell()
	}
	for _, d := range good {
		for _, o := range good {
			if d != o {
				d.sees(o, contact.Met)
				poll.True(w.t, "the report of "+o.name, func() bool { _, ok := d.agent.Pod(o.name, o.pod(1).UID); return ok })
			}
		}
	}
}

// peer speaks the protocol itself.
type peer struct {
	conn      *quic.Conn
	transport *quic.Transport
	stream    *quic.SendStream
}

// tryDial connects from a device's host with a certificate, and believes any answer. It waits for
// the share that other attempts have used up.
func (d *device) tryDial(t *testing.T, to *device, cert tls.Certificate) (*peer, error) {
	t.Helper()
	var udp *net.UDPConn
	if err := d.host.Do(func() (err error) { udp, err = net.ListenUDP("udp4", nil); return err }); err != nil {
		t.Fatal(err)
	}
	p := &peer{transport: &quic.Transport{Conn: udp}}
	conn, err := p.transport.Dial(t.Context(), &net.UDPAddr{IP: net.IPv4(10, 90, 0, byte(to.number)), Port: sitePort}, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"skerry-site/1"}, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
	}, &quic.Config{EnableDatagrams: true, MaxIdleTimeout: 2 * time.Second, KeepAlivePeriod: 500 * time.Millisecond, MaxIncomingUniStreams: 1})
	if err != nil {
		_ = p.transport.Close()
		_ = udp.Close()
		return nil, err
	}
	p.conn = conn
	t.Cleanup(func() { p.close(); _ = p.transport.Close(); _ = udp.Close() })
	return p, nil
}

func (d *device) dial(t *testing.T, to *device, cert tls.Certificate) *peer {
	t.Helper()
	var p *peer
	var why error
	defer func() {
		if t.Failed() {
			t.Logf("%s: the last attempt: %v; %+v", d.name, why, to.agent.State())
		}
	}()
	poll.True(t, d.name+" connects to "+to.name, func() bool {
		if p, why = d.tryDial(t, to, cert); why != nil {
			return false
		}
		select { // refused after the handshake, as the bound on connections does
		case <-p.conn.Context().Done():
			why = context.Cause(p.conn.Context())
			time.Sleep(300 * time.Millisecond)
			return false
		case <-time.After(200 * time.Millisecond):
			return true
		}
	})
	return p
}

func (p *peer) close() { _ = p.conn.CloseWithError(0, "done") }

func (p *peer) raw(t *testing.T, b []byte) {
	t.Helper()
	if p.stream == nil {
		var err error
		if p.stream, err = p.conn.OpenUniStream(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.stream.Write(b); err != nil {
		t.Log(err)
	}
}

func frame(w *contactpb.Report) []byte {
	body, _ := proto.Marshal(w)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func (p *peer) say(t *testing.T, w *contactpb.Report) {
	t.Helper()
	p.raw(t, frame(w))
}

// try sends reports until the other has had enough.
func (p *peer) try(w *contactpb.Report) {
	if p.stream == nil {
		p.stream, _ = p.conn.OpenUniStream()
	}
	if p.stream != nil && p.conn.Context().Err() == nil {
		_, _ = p.stream.Write(frame(w))
	}
}
