package nodemetrics

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// budget is the most that the metrics of a node may cost in an hour, headers of Ethernet, IP and
// TLS and acknowledgements included.
const budget = 20_000

// busy is a device whose metrics change in each sample, as those of a loaded one do.
func busy() func(context.Context) map[uint32]float64 {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	values := map[uint32]float64{}
	for _, s := range nodemetrics.All() {
		values[s.ID] = float64(random.IntN(5))
	}
	for _, id := range []uint32{nodemetrics.CertificateEnd, nodemetrics.BootTime, nodemetrics.StartTime} {
		values[id] = 1.8e9
	}
	for _, id := range []uint32{nodemetrics.DataSize, nodemetrics.RootSize, nodemetrics.DataAvailable, nodemetrics.RootAvailable, nodemetrics.MemorySize, nodemetrics.MemoryAvailable, nodemetrics.EdgecoreMemory} {
		values[id] = 8e9
	}
	values[nodemetrics.DataInodesFree] = 2e6
	return func(context.Context) map[uint32]float64 {
		walk := func(id uint32, most float64) { values[id] += (random.Float64() - 0.5) * most }
		walk(nodemetrics.DataAvailable, 50e6)
		walk(nodemetrics.RootAvailable, 50e6)
		walk(nodemetrics.DataInodesFree, 1000)
		walk(nodemetrics.MemoryAvailable, 200e6)
		walk(nodemetrics.EdgecoreMemory, 10e6)
		walk(nodemetrics.Load, 2)
		values[nodemetrics.CPUSeconds] += random.Float64() * 120
		values[nodemetrics.EdgecoreCPU] += random.Float64() * 3
		values[nodemetrics.ContainerRestarts] += float64(random.IntN(2))
		values[nodemetrics.Backlog] = float64(random.IntN(20))
		values[nodemetrics.BacklogOldest] = 1.8e9 + values[nodemetrics.CPUSeconds]
		return values
	}
}

// The metrics of an hour, sampled each minute and sent each five, stay below 20 kB on the cable.
// Bytes are counted, of messages one after the other: no time passes.
func TestOperate_05_MetricsOfAnHourStayBelowTheirBudget(t *testing.T) {
	for _, name := range []string{"websocket", "quic"} {
		t.Run(name, func(t *testing.T) {
			device, cloud := wire.NewHost(t), wire.NewHost(t)
			for _, h := range []*wire.Host{device, cloud} {
				h.Sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
			}
			wire.Cable(t, device, "up", cloud, "down")
			device.Address(t, "up", "10.0.0.1/24")
			cloud.Address(t, "down", "10.0.0.2/24")
			near, far := dial(t, name, device, cloud)

			// asked counts who has read the clock, which is set again once the session has read it.
			var clock, asked atomic.Int64
			clock.Store(1_800_000_000)
			a := New(Config{Read: busy(), Path: filepath.Join(t.TempDir(), "samples"), Interval: time.Minute, SendInterval: 5 * time.Minute, Keep: 24 * time.Hour})
			a.now = func() time.Time {
				defer asked.Add(1)
				return time.Unix(clock.Load(), 0)
			}
			a.sent = time.Unix(clock.Load(), 0)
			handle, run := a.Attach(linkstate.Link{Metrics: true}, near.Send)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); run(ctx) }()
			defer func() { cancel(); <-ended }()

			exchange := func() int {
				m, err := far.Receive(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				q, err := topic.NodeMetrics.Content(m)
				if err != nil {
					t.Fatal(err)
				}
				samples, err := nodemetrics.Unpack(q)
				if err != nil {
					t.Fatal(err)
				}
				answer := &topicpb.NodeMetricsResult{Stream: q.GetStream(), Through: q.GetFirst() + uint64(len(samples)) - 1}
				if err := far.Send(t.Context(), topic.NodeMetricsResult.New(message.Resource{}, answer)); err != nil {
					t.Fatal(err)
				}
				if m, err = near.Receive(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := handle(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				for a.Status().Waiting > 0 { // the answer is read by the session's goroutine
					time.Sleep(time.Millisecond)
				}
				return len(samples)
			}
			total := func() uint64 {
				l, err := device.Netlink().LinkByName("up")
				if err != nil {
					t.Fatal(err)
				}
				return l.Attrs().Statistics.RxBytes + l.Attrs().Statistics.TxBytes
			}
			reads := int64(1) // the session's first
			minutes := func(n int) (samples int) {
				for minute := 1; minute <= n; minute++ {
					for asked.Load() < reads {
						time.Sleep(time.Millisecond)
					}
					clock.Add(60)
					a.sample(t.Context())
					reads += 2 // the sample's, and the session's
					if minute%5 == 0 {
						samples += exchange()
						reads++                            // the session's, after the answer
						time.Sleep(100 * time.Millisecond) // an acknowledgement is delayed by up to 40 ms (tcp(7)), and the next message must not carry it
					}
				}
				return samples
			}
			minutes(5) // the handshake's tickets and path MTU probes are over then
			before := total()
			if samples := minutes(60); samples != 60 {
				t.Errorf("%d samples came", samples)
			}
			bytes := total() - before
			t.Logf("%s: %d bytes in an hour, %.0f each message", name, bytes, float64(bytes)/12)
			if bytes > budget {
				t.Errorf("%d bytes, the budget is %d", bytes, budget)
			}
		})
	}
}

// dial opens a link between two hosts, on which no heartbeats go.
func dial(t *testing.T, transport string, device, cloud *wire.Host) (near, far link.Conn) {
	t.Helper()
	site, table, bounds := linktest.NewSite(t), topic.NewTable(), link.Default()
	bounds.Keepalive, bounds.IdleTimeout = time.Minute, 10*time.Minute
	client := site.ClientTLS()
	client.ServerName = "localhost"
	const at = "10.0.0.2:7000"
	var l link.Listener
	var d link.Dialer
	cloud.Must(t, func() (err error) {
		if transport == "quic" {
			if l, err = quiclink.Listen(t.Context(), at, quiclink.ListenConfig{Link: bounds, TLS: site.ServerTLS(), Table: table}); err != nil {
				return err
			}
			d, err = quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: client, Table: table})
			return err
		}
		if l, err = wslink.Listen(t.Context(), at, wslink.ListenConfig{Link: bounds, TLS: site.ServerTLS(), Table: table}); err != nil {
			return err
		}
		d, err = wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: client, Table: table})
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	device.Must(t, func() (err error) { near, err = d.Dial(t.Context(), at); return err })
	t.Cleanup(func() { _ = near.Close(link.CloseShutdown, "the test ends") })
	far, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}
