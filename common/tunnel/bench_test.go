package tunnel_test

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/tunnel"
)

// talker is a server that sends without end, as a kubelet with a long log does.
func talker(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.CopyBuffer(struct{ io.Writer }{c}, endless{}, make([]byte, 32<<10))
			}()
		}
	}()
	return l.Addr().String()
}

// linked is a world whose link is a real one, over loopback.
func linked(b *testing.B, transport link.Transport, wrap func(net.Conn) net.Conn, address string) *system {
	b.Helper()
	site, table := linktest.NewSite(b), topic.NewTable()
	var l link.Listener
	var d link.Dialer
	var err error
	if transport == link.QUIC {
		if l, err = quiclink.Listen(b.Context(), "127.0.0.1:0", quiclink.ListenConfig{Link: link.Default(), TLS: site.ServerTLS(), Table: table}); err == nil {
			d, err = quiclink.NewDialer(quiclink.DialConfig{Link: link.Default(), TLS: site.ClientTLS(), Table: table})
		}
	} else if l, err = wslink.Listen(b.Context(), "127.0.0.1:0", wslink.ListenConfig{Link: link.Default(), TLS: site.ServerTLS(), Table: table}); err == nil {
		d, err = wslink.NewDialer(wslink.DialConfig{Link: link.Default(), TLS: site.ClientTLS(), Table: table, Wrap: wrap})
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	w := &system{t: b, beats: make(chan message.Message, 100), changes: make(chan message.Message, 100)}
	w.edgeConn, w.cloudConn = linktest.Connect(b, l, d)
	w.cloud = tunnel.New(w.cloudConn, tunnel.Config{Peer: "edge1"})
	w.edge = tunnel.New(w.edgeConn, tunnel.Config{Peer: "the cloud", Edge: true, Accept: func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}})
	w.serve(w.cloudConn, w.cloud, w.beats)
	w.serve(w.edgeConn, w.edge, w.changes)
	return w
}

// ways are the connections to compare: to the server directly, and through a link.
func ways(b *testing.B, address string, run func(*testing.B, func() net.Conn)) {
	b.Run("direct", func(b *testing.B) {
		run(b, func() net.Conn {
			c, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			return c
		})
	})
	for _, transport := range []link.Transport{link.WebSocket, link.QUIC} {
		b.Run(string(transport), func(b *testing.B) {
			w := linked(b, transport, nil, address)
			run(b, func() net.Conn {
				s, err := w.cloud.Open(b.Context(), "kubelet")
				if err != nil {
					b.Fatal(err)
				}
				return s
			})
		})
	}
}

// BenchmarkThroughput reads one stream, in pieces of 32 KiB.
func BenchmarkThroughput(b *testing.B) {
	address := talker(b)
	ways(b, address, func(b *testing.B, open func() net.Conn) {
		c, piece := open(), make([]byte, 32<<10)
		b.Cleanup(func() { _ = c.Close() })
		b.SetBytes(int64(len(piece)))
		for b.Loop() {
			if _, err := io.ReadFull(c, piece); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkFirstByte opens a stream, reads one byte of it, and closes it.
func BenchmarkFirstByte(b *testing.B) {
	address := talker(b)
	ways(b, address, func(b *testing.B, open func() net.Conn) {
		for b.Loop() {
			c := open()
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			_ = c.Close()
		}
	})
}

// BenchmarkTunnel_13_SlowLink measures a heartbeat over an uplink of 256 kbit/s, idle and with a
// bulk copy. The difference is to be compared with the time of one chunk; the median of each is
// reported.
func BenchmarkTunnel_13_SlowLink(b *testing.B) {
	const rate = 32 << 10 // bytes a second
	w := linked(b, link.WebSocket, func(c net.Conn) net.Conn { return &slow{Conn: c, rate: rate} }, talker(b))
	beat := func() float64 {
		began := time.Now()
		if err := w.edgeConn.Send(b.Context(), topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: 1})); err != nil {
			b.Fatal(err)
		}
		<-w.beats
		return float64(time.Since(began).Milliseconds())
	}
	var idle, busy []float64
	for b.Loop() {
		for range 5 {
			idle = append(idle, beat())
		}
		s, err := w.cloud.Open(b.Context(), "kubelet")
		if err != nil {
			b.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, s) }()
		time.Sleep(2 * time.Second)
		for range 9 {
			busy = append(busy, beat())
			time.Sleep(130 * time.Millisecond)
		}
		_ = s.Close()
		time.Sleep(2 * time.Second) // until all of it has arrived
	}
	middle := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(middle(idle), "ms-idle")
	b.ReportMetric(middle(busy), "ms-busy")
	b.ReportMetric(slices.Max(busy), "ms-busy-most")
	b.ReportMetric(float64((15<<10)*1000/rate), "ms-a-chunk")
	b.ReportMetric((middle(busy)-middle(idle))/float64((15<<10)*1000/rate), "chunks-of-delay")
}
