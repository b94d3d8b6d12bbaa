package link_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// The bytes on the wire that the cloud's end of a link counts, which `kubectl skerry top` shows,
// agree within 2 % with those that crossed the cable: of a link that carried some megabytes down
// and some hundred small messages up.
func TestOperate_03_TrafficAgreesWithTheCable(t *testing.T) {
	for _, transport := range []string{"websocket", "quic"} {
		t.Run(transport, func(t *testing.T) {
			device, cloud := wire.NewHost(t), wire.NewHost(t)
			for _, h := range []*wire.Host{device, cloud} {
				h.Sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
			}
			wire.Cable(t, device, "up", cloud, "down")
			device.Address(t, "up", "10.0.0.1/24")
			cloud.Address(t, "down", "10.0.0.2/24")
			wholePackets(t, device, "up")
			wholePackets(t, cloud, "down")
			near, far := wiredLink(t, transport, device, cloud)

			const large, small, size = 12, 300, 300 << 10
			content := make([]byte, size)
			_, _ = rand.Read(content)
			var all errgroup.Group
			all.Go(func() error {
				for range large {
					m := topic.APIResponse.New(message.Resource{}, &topicpb.APIResponse{Code: 200, Body: content})
					if err := far.Send(t.Context(), m); err != nil {
						return err
					}
				}
				return nil
			})
			all.Go(func() error {
				for range small {
					if err := near.Send(t.Context(), topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true, Sequence: 7})); err != nil {
						return err
					}
					time.Sleep(2 * time.Millisecond) // a heartbeat that waits is replaced by the next
				}
				return nil
			})
			for range large {
				if _, err := near.Receive(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := all.Wait(); err != nil {
				t.Fatal(err)
			}
			var counted link.Wire
			var cable uint64
			for range 50 { // until the last acknowledgements have come
				time.Sleep(20 * time.Millisecond)
				before := cable
				w, ok := far.(link.Wired).Wire()
				if !ok {
					t.Fatal("the transport does not count")
				}
				l, err := device.Netlink().LinkByName("up")
				if err != nil {
					t.Fatal(err)
				}
				if counted, cable = w, l.Attrs().Statistics.RxBytes+l.Attrs().Statistics.TxBytes; cable == before {
					break
				}
			}
			ratio := float64(counted.Sent+counted.Received) / float64(cable)
			t.Logf("counted %d to the device and %d from it, on the cable %d: %+.2f %%", counted.Sent, counted.Received, cable, 100*(ratio-1))
			if ratio < 0.98 || ratio > 1.02 || counted.Sent < large*size {
				t.Errorf("the counts differ")
			}
		})
	}
}

// wholePackets has a host send packets as they are on a cable: else one of 64 kB counts as one,
// with one header.
func wholePackets(t *testing.T, h *wire.Host, name string) {
	t.Helper()
	l, err := h.Netlink().LinkByName(name)
	if err == nil {
		err = h.Netlink().LinkSetGSOMaxSegs(l, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wiredLink opens a link between two hosts.
func wiredLink(t *testing.T, transport string, device, cloud *wire.Host) (near, far link.Conn) {
	t.Helper()
	const at = "10.0.0.2:7000"
	site, table, bounds := linktest.NewSite(t), topic.NewTable(), link.Default()
	client := site.ClientTLS()
	client.ServerName = "localhost"
	var l link.Listener
	var d link.Dialer
	cloud.Must(t, func() (err error) {
		if transport == "quic" {
			var dial error
			l, err = quiclink.Listen(t.Context(), at, quiclink.ListenConfig{Link: bounds, TLS: site.ServerTLS(), Table: table})
			d, dial = quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: client, Table: table})
			return errors.Join(err, dial)
		}
		var dial error
		l, err = wslink.Listen(t.Context(), at, wslink.ListenConfig{Link: bounds, TLS: site.ServerTLS(), Table: table})
		d, dial = wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: client, Table: table})
		return errors.Join(err, dial)
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
