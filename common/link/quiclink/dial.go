package quiclink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// DialConfig configures a Dialer.
type DialConfig struct {
	Link  link.Config
	TLS   *tls.Config // must verify the server and show a certificate
	Table *topic.Table
	// Codec, if set, was made with Link and Table and is shared with other dialers: it holds the
	// compressor's memory.
	Codec *link.Codec
	// Wrap, if set, wraps each UDP socket.
	Wrap func(net.PacketConn) net.PacketConn
}

// Dialer opens links.
type Dialer struct {
	config DialConfig
	codec  *link.Codec
	lost   atomic.Uint64
}

// NewDialer checks the configuration.
func NewDialer(config DialConfig) (*Dialer, error) {
	if err := config.Link.Validate(); err != nil {
		return nil, err
	}
	var err error
	if config.TLS, err = link.ClientTLS(config.TLS, protocol()); err != nil {
		return nil, err
	}
	return &Dialer{config: config, codec: cmp.Or(config.Codec, link.NewCodec(config.Table, config.Link))}, nil
}

// Lost is how many packets the network of this machine refused to take.
func (d *Dialer) Lost() uint64 { return d.lost.Load() }

// Dial implements link.Dialer. Where the server gave a reason, the error holds a *link.CloseError.
func (d *Dialer) Dial(ctx context.Context, address string) (link.Conn, error) {
	c, err := d.dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("dialling QUIC %s: %w", address, err)
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, address string) (link.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.config.Link.HandshakeTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, ip := range addresses {
		to := netip.AddrPortFrom(ip.Unmap(), uint16(number))
		if err := routed(to); err != nil {
			errs = append(errs, err)
			continue
		}
		// Each address gets its share of the time that is left.
		ctx, cancel := ctx, context.CancelFunc(func() {})
		if end, ok := ctx.Deadline(); ok {
			ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(addresses)-i))
		}
		c, err := d.dialTo(ctx, to, host)
		cancel()
		if err == nil {
			return c, nil
		}
		errs = append(errs, readError(err))
	}
	return nil, errors.Join(errs...)
}

// routed asks the kernel whether it has a route, without sending anything: our socket swallows that
// error, and the handshake would wait in vain.
func routed(to netip.AddrPort) error {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	return c.Close()
}

func (d *Dialer) dialTo(ctx context.Context, to netip.AddrPort, host string) (_ link.Conn, err error) {
	// Bound to no address: the link outlives a change of this device's own.
	udp, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	var pc net.PacketConn = socket{udp, &d.lost}
	if d.config.Wrap != nil {
		pc = d.config.Wrap(pc)
	}
	transport := &quic.Transport{Conn: pc}
	release := func() {
		_ = transport.Close()
		_ = pc.Close()
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	secure := d.config.TLS
	if secure.ServerName == "" {
		secure = secure.Clone()
		secure.ServerName = host
	}
	config := quicConfig(d.config.Link)
	// The server's acknowledgement is its sign of life. A little later than the link sends at
	// that interval anyway: quic-go counts from the last packet, and would send one of its own each
	// time that an acknowledgement takes a moment longer than the one before.
	config.KeepAlivePeriod = d.config.Link.Keepalive + d.config.Link.Keepalive/4
	conn, err := transport.Dial(ctx, net.UDPAddrFromAddrPort(to), secure, config)
	if err != nil {
		return nil, err
	}
	c := newCarrier(conn, d.config.Link, true, release)
	l, err := c.start(c, d.codec)
	if err != nil {
		_ = conn.CloseWithError(quic.ApplicationErrorCode(link.CloseForbidden), err.Error())
	}
	return l, err
}
