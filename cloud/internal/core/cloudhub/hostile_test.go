package cloudhub_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// cloudcore's end as the wiring makes it, over a real transport; part serves its sessions.
func hostileCloud(t *testing.T, transport link.Transport, part cloudhub.Part) (dial func(node string) link.Conn) {
	authority := linktest.NewAuthority(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{authority.Server(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool(),
	}
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.New(nil)))
	bounds, table := link.Default().OfCloud(), topic.NewTable().Receiving(topic.Up, topic.UpBounds())
	var l link.Listener
	var err error
	if transport == link.QUIC {
		l, err = quiclink.Listen(ctx, "127.0.0.1:0", quiclink.ListenConfig{Link: bounds, TLS: server, Table: table})
	} else {
		l, err = wslink.Listen(ctx, "127.0.0.1:0", wslink.ListenConfig{Link: bounds, TLS: server, Table: table})
	}
	if err != nil {
		t.Fatal(err)
	}
	h := cloudhub.New(cloudhub.Config{Admission: admission(func(node types.NodeName, _ *x509.Certificate) error {
		if node == "banned" {
			return errors.New("its certificate was revoked")
		}
		return nil
	})}, []link.Listener{l}, []cloudhub.Part{part})
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(node string) link.Conn {
		t.Helper()
		client := &tls.Config{Certificates: []tls.Certificate{authority.Node(t, node)}, RootCAs: authority.Pool()}
		bounds := link.Default() // a hostile device keeps to no bound of ours
		bounds.PeerAssembly = 1 << 30
		var d link.Dialer
		var err error
		if transport == link.QUIC {
			d, err = quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: client, Table: topic.NewTable()})
		} else {
			d, err = wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: client, Table: topic.NewTable()})
		}
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Dial(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(link.CloseShutdown, "the test ended") })
		return c
	}
}

// Scenario 2 of the hostile devices: messages of a few bytes on the wire and many when decoded.
// They are refused before memory is allocated for them: at once where the certificate is revoked,
// by the count where the session is open.
func TestHostile_02_AmplifyingPayloadsAreRefusedUndecoded(t *testing.T) {
	const million = 1 << 20
	empty := make([]*topicpb.Entry, million)
	for i := range empty {
		empty[i] = &topicpb.Entry{}
	}
	changes := make([]*topicpb.Changes, million)
	for i := range changes {
		changes[i] = &topicpb.Changes{}
	}
	attacks := map[string]struct {
		message message.Message
		code    link.CloseCode // where the session is open
	}{
		"empty entries":   {topic.Inventory.New(message.Resource{}, &topicpb.Inventory{Entries: empty}), link.CloseTooLarge},
		"what comes down": {topic.State.New(message.Resource{}, &topicpb.State{Changes: changes}), link.CloseProtocol},
		"a long name":     {topic.StateAck.New(message.Resource{Name: strings.Repeat("n", 3000), Namespace: strings.Repeat("s", 3000)}, &topicpb.StateAck{}), link.CloseTooLarge},
		"a long selector": {topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: []*topicpb.Interest{{LabelSelector: strings.Repeat("a", million)}}}), link.CloseTooLarge},
	}
	for _, transport := range []link.Transport{link.WebSocket, link.QUIC} {
		for name, a := range attacks {
			for _, node := range []string{"banned", "edge-1"} {
				t.Run(string(transport)+"/"+node+"/"+name, func(t *testing.T) {
					dial := hostileCloud(t, transport, part{attach: func(_ cloudhub.Session, mux *message.Mux) {
						message.Handle(mux, topic.Inventory, func(context.Context, message.Message, *topicpb.Inventory) error { return nil })
					}})
					c := dial(node)
					table := topic.NewTable()
					_, payload, err := table.Encode(a.message)
					if err != nil {
						t.Fatal(err)
					}
					if node != "banned" {
						if err := c.Send(t.Context(), topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Epoch: 1})); err != nil {
							t.Fatal(err)
						}
						if m := (&edge{t, c}).receive(); m.Key() != topic.Welcome.Key() {
							t.Fatalf("got %s", m.Key())
						}
					}
					// The test's own end is in the same process: its allocations are measured by
					// encoding once more.
					own := allocated(func() {
						if _, _, err := link.NewCodec(table, link.Default()).Encode(a.message); err != nil && !errors.Is(err, link.ErrTooLarge) {
							t.Fatal(err)
						}
					})
					var end *link.CloseError
					taken := allocated(func() {
						err := c.Send(t.Context(), a.message)
						if errors.Is(err, link.ErrTooLarge) { // messages that this end refuses to send can't be tested so
							end = &link.CloseError{Code: a.code, Remote: true}
							return
						}
						end = (&edge{t, c}).ended()
					})
					want := a.code
					if node == "banned" {
						want = link.CloseForbidden
					}
					if !end.Remote || end.Code != want && end.Code != a.code {
						t.Errorf("ended with %v, want %d", end, want)
					}
					if most := own + 16<<20; taken > most {
						t.Errorf("%d bytes of %d on the wire made the process take %d, more than %d", len(payload), len(payload), taken, most)
					}
				})
			}
		}
	}
}

// allocated is how many bytes the process takes while f runs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The memory that one link takes in cloudcore is bounded, whatever it sends: here in every class at
// once, all of the maximum length, to a part that never returns.
func TestHostile_02_OneLinkHoldsABoundedAmount(t *testing.T) {
	for _, transport := range []link.Transport{link.WebSocket, link.QUIC} {
		t.Run(string(transport), func(t *testing.T) {
			stuck := make(chan struct{})
			dial := hostileCloud(t, transport, part{attach: func(s cloudhub.Session, mux *message.Mux) {
				message.Handle(mux, topic.StateAck, func(ctx context.Context, _ message.Message, _ *topicpb.StateAck) error {
					stuck <- struct{}{}
					<-ctx.Done()
					return nil
				})
			}})
			const links = 4
			// 3 MiB that don't compress and are shared by all messages of this end: only the
			// cloud's memory grows.
			body := make([]byte, 3<<20)
			for i, x := 0, uint32(1); i < len(body); i++ {
				x ^= x << 13
				x ^= x >> 17
				x ^= x << 5
				body[i] = byte(x)
			}
			messages := []message.Message{
				topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Body: body}),
				topic.PodStatusWrite.New(message.Resource{}, &topicpb.Write{Body: body}),
				topic.EventWrite.New(message.Resource{}, &topicpb.Write{Body: body}),
			}
			before := live()
			for i := range links {
				c := dial("edge-" + string(rune('a'+i)))
				e := &edge{t, c}
				e.send(topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Epoch: 1}))
				if m := e.receive(); m.Key() != topic.Welcome.Key() { // classes of QUIC may overtake each other
					t.Fatalf("got %s", m.Key())
				}
				e.send(topic.StateAck.New(message.Resource{}, &topicpb.StateAck{}))
				select {
				case <-stuck:
				case <-time.After(time.Minute):
					t.Fatal("the session has not got the message")
				}
				for _, m := range messages {
					for range 3 {
						ctx, cancel := context.WithCancel(t.Context())
						go func() { _ = c.Send(ctx, m) }()
						defer cancel()
					}
				}
			}
			most := live()
			for still := 0; still < 20; still++ { // until the counts are stable: the encoders of the devices' end allocate and free
				now := live()
				if d := int64(now) - int64(most); d > 32<<10 || d < -32<<10 {
					still = 0
				}
				most = now
			}
			// This process is the devices too: each has up to three messages in its queues (one
			// encoding of each), which it would hold without any cloud.
			const own = 9 * (3<<20 + 1<<10)
			if each := (int64(most) - int64(before)) / links; each > 16<<20+own {
				t.Errorf("each link holds %d bytes, and %d of them are its device's", each, own)
			}
		})
	}
}

func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Scenario 9 of the hostile devices, the first half: three addresses begin handshakes and send no
// more bytes, more of them than there are places, and no handshake ever times out. Another address
// opens its link all the same.
func TestHostile_09_SlowHandshakesKeepNobodyOut(t *testing.T) {
	authority := linktest.NewAuthority(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{authority.Server(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool(),
	}
	bounds := link.Default()
	bounds.HandshakeTimeout = time.Hour
	l, err := wslink.Listen(klog.NewContext(t.Context(), klog.New(nil)), "127.0.0.1:0", wslink.ListenConfig{Link: bounds, TLS: server, Table: topic.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		for range 200 {
			c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
	}
	client := &tls.Config{Certificates: []tls.Certificate{authority.Node(t, "edge-1")}, RootCAs: authority.Pool()}
	bounds.HandshakeTimeout = 30 * time.Second // no figure to reach: without a place it would last an hour
	d, err := wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: client, Table: topic.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		edge, cloud := linktest.Connect(t, l, d)
		if got := cloud.Info().Peer.Subject.CommonName; got != "system:node:edge-1" {
			t.Errorf("the link is of %s", got)
		}
		_ = edge.Close(link.CloseShutdown, "enough")
	}
}

// The second half: one certificate opens 600 links and sends no hello on any. Another node's
// session opens.
func TestHostile_09_OneCertificate600TimesKeepsNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{})
		for range 600 {
			b.dial("bad")
		}
		for i := range 20 {
			e := b.dial(fmt.Sprintf("good-%d", i))
			e.hello(1)
			e.welcomed()
		}
	})
}

// Fifty nodes open a session, leave, and connect again at once, for half a minute. A bounded number
// of sessions opens, the other links are told when to come again; another node's session opens, and
// theirs do once they have rested.
func TestHostile_09_NodesThatConnectAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{})
		var epoch, opened, refused atomic.Int64
		try := func(cert *x509.Certificate) bool {
			e := b.dialAs(cert)
			e.hello(uint64(epoch.Add(1)))
			if _, err := e.conn.Receive(t.Context()); err != nil {
				end, ok := errors.AsType[*link.CloseError](err)
				if !ok || end.Code != link.CloseOverloaded || !strings.Contains(end.Reason, "retry-after=") {
					t.Errorf("refused by %v", err)
				}
				refused.Add(1)
				return false
			}
			opened.Add(1)
			_ = e.conn.Close(link.CloseShutdown, "it leaves")
			return true
		}
		const nodes, seconds = 50, 30
		var bad sync.WaitGroup
		for n := range nodes {
			cert := b.authority.Node(t, fmt.Sprintf("bad-%d", n)).Leaf
			bad.Go(func() {
				for begin := time.Now(); time.Since(begin) < seconds*time.Second; time.Sleep(100 * time.Millisecond) {
					try(cert)
				}
			})
		}
		time.Sleep(seconds / 2 * time.Second)
		begin := time.Now()
		if !try(b.authority.Node(t, "good").Leaf) || time.Since(begin) > 0 {
			t.Errorf("a node that connects once waited %v, or was refused", time.Since(begin))
		}
		bad.Wait()
		// Of each node the burst, and of all together what ten nodes may have.
		if opened, most := opened.Load(), int64(nodes*60+2*10*seconds); opened > most || refused.Load() < nodes*seconds/4 {
			t.Errorf("%d sessions were opened and %d refused, want %d at most", opened, refused.Load(), most)
		}
		time.Sleep(20 * time.Second) // the longest retry-after
		if !try(b.authority.Node(t, "bad-0").Leaf) {
			t.Error("a node is refused after it has rested")
		}
	})
}

// Who has the revoked certificate of a stolen device connects again and again, and the device that
// took its place opens its session at once.
func TestHostile_07_RevokedCertificateUsesUpNoOpenings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stolen *x509.Certificate
		b := newBench(t, cloudhub.Config{Admission: admission(func(_ types.NodeName, cert *x509.Certificate) error {
			if cert.Equal(stolen) {
				return errors.New("the certificate was revoked")
			}
			return nil
		})})
		stolen = b.authority.Node(t, "till").Leaf
		for i := range 300 {
			_, err := b.dialAs(stolen).conn.Receive(t.Context())
			if end, ok := errors.AsType[*link.CloseError](err); !ok || end.Code != link.CloseForbidden {
				t.Fatalf("link %d with a revoked certificate ended by %v, want %d", i, err, link.CloseForbidden)
			}
		}
		e := b.dialAs(b.authority.Node(t, "till").Leaf)
		e.hello(1)
		if _, err := e.conn.Receive(t.Context()); err != nil {
			t.Errorf("the device that took its place: %v", err)
		}
	})
}
