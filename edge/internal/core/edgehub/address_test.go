package edgehub_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
)

// addressed is a Dialer whose links have their other end at an address.
type addressed struct {
	link.Dialer
	remote net.Addr
}

func (d addressed) Dial(ctx context.Context, address string) (link.Conn, error) {
	c, err := d.Dialer.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return addressedConn{c, d.remote}, nil
}

type addressedConn struct {
	link.Conn
	remote net.Addr
}

func (c addressedConn) Info() link.Info {
	i := c.Conn.Info()
	i.Remote = c.remote
	return i
}

// Where cloudcore has a name, its address is that of the link's other end.
func TestHub_SaysWhereTheLinkGoes(t *testing.T) {
	for name, test := range map[string]struct {
		remote net.Addr
		want   netip.Addr
	}{
		"websocket":  {&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 10000}, netip.MustParseAddr("192.0.2.7")},
		"QUIC":       {&net.UDPAddr{IP: net.ParseIP("2001:db8::7"), Port: 10001}, netip.MustParseAddr("2001:db8::7")},
		"no address": {&net.UnixAddr{Name: "cloud"}, netip.Addr{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(c *edgehub.Config) {
					c.Servers, c.Dialer = []string{"cloud.example.com:10000"}, addressed{c.Dialer, test.remote}
				})
				b.cloud().welcome()
				if up := b.up(); up.Address != test.want || up.Remote != "cloud.example.com:10000" {
					t.Errorf("the link goes to %v, %s; want %v", up.Address, up.Remote, test.want)
				}
			})
		})
	}
}
