package check

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/version"
)

// Cloud describes the cloud that a device wants to join: its own answer, and the endpoints of its
// links.
type Cloud struct {
	Server     string // as the caller named it
	Err        error  // why the cloud could not be asked; the rest is empty then
	Mend       string // what helps against Err
	Roots      *x509.CertPool
	Now        func() time.Time // by which its certificates are verified
	WebSocket  []string         // "host:port"
	QUIC       []string         // "host:port"
	Skew       time.Duration    // how far this device's clock is ahead of the cloud's
	Kubelet    string           // the version of the kubelet in this edgecore
	Kubernetes string           // of kube-apiserver; "" where it is not known
	// Proxy is the way of TCP to there, as the link will take it.
	Proxy func(*http.Request) (*url.URL, error)
}

// reachTimeout bounds each way to the cloud that is tried.
const reachTimeout = 3 * time.Second

// Reach checks a cloud before a device joins it: whether it is the one that the token pins, which
// endpoints are reachable, whether the clocks and the versions fit. It makes no change, here or
// there.
func Reach(ctx context.Context, c Cloud) []Finding {
	if c.Err != nil {
		return []Finding{{"cloud", Fail, c.Err.Error(), c.Mend}}
	}
	findings := []Finding{{Name: "cloud", Level: Fine, Message: c.Server + " shows the CA that the token pins"}}
	ways := len(findings)
	for _, at := range c.WebSocket {
		findings = append(findings, reachWebSocket(ctx, c, at))
	}
	for _, at := range c.QUIC {
		findings = append(findings, reachQUIC(ctx, at, len(c.WebSocket) > 0))
	}
	oneIsEnough(findings[ways:])
	return append(findings, cloudClock(c), kubernetes(c))
}

// oneIsEnough downgrades unreachable endpoints to warnings if another one is reachable: the link
// uses any of them, and of several addresses a device may need to reach only one.
func oneIsEnough(ways []Finding) {
	if !slices.ContainsFunc(ways, func(f Finding) bool { return f.Level == Fine }) {
		return
	}
	for i, f := range ways {
		if f.Level == Fail {
			ways[i].Level, ways[i].Mend = Warn, "another way leads to the cloud, which is enough; to have this one too: "+f.Mend
		}
	}
}

// reachWebSocket does the handshake of a link, but for the certificate that this device does not
// have yet: TLS 1.3 asks for it only when the server's is verified.
func reachWebSocket(ctx context.Context, c Cloud, at string) Finding {
	name := "websocket " + at
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	transport := &http.Transport{
		Proxy: c.Proxy, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS13, Time: c.Now, NextProtos: []string{link.Protocol, "http/1.1"}},
	}
	defer transport.CloseIdleConnections()
	var shaken atomic.Pointer[error] // a cancelled dial may end later than the request
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{TLSHandshakeDone: func(_ tls.ConnectionState, err error) { shaken.Store(&err) }})
	request, bad := http.NewRequestWithContext(traced, http.MethodGet, "https://"+at+"/", http.NoBody)
	if bad != nil {
		return Finding{name, Fail, bad.Error(), "correct advertise in cloudcore.yaml"}
	}
	// Any answer to a client without a device certificate will do: the handshake counts.
	answer, err := transport.RoundTrip(request)
	if answer != nil {
		_ = answer.Body.Close()
	}
	if failed := shaken.Load(); failed != nil && *failed == nil {
		return Finding{Name: name, Level: Fine, Message: "leads to this cloud"}
	}
	if err == nil {
		err = errors.New("no TLS handshake")
	}
	var unknown *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	if errors.As(err, &unknown) && errors.As(err, &authority) && len(unknown.UnverifiedCertificates) > 0 {
		shown := unknown.UnverifiedCertificates[len(unknown.UnverifiedCertificates)-1]
		return Finding{
			name, Fail, fmt.Sprintf("a proxy seems to end TLS on the way: the certificate there is of %q", shown.Issuer.CommonName),
			"let TLS to this host and port through untouched: edgecore and cloudcore know each other by their certificates",
		}
	}
	return Finding{name, Fail, err.Error(), "let this device reach it by TCP, or name the right hosts under advertise in cloudcore.yaml"}
}

// reachQUIC asks a server for the versions of QUIC that it speaks: any answers a long header with a
// version that is reserved for this (RFC 9000, 6.1 and 15; 0x?a?a?a?a), and keeps no state. Packets
// may be lost, so it asks again.
func reachQUIC(ctx context.Context, at string, otherwise bool) Finding {
	name := "quic " + at
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	err := askVersions(ctx, at)
	switch {
	case err == nil:
		return Finding{Name: name, Level: Fine, Message: "answers"}
	case otherwise:
		return Finding{name, Warn, "no answer by UDP: " + err.Error(), "the link will be a websocket, which a lossy network slows down more; let UDP through if you can"}
	}
	return Finding{name, Fail, "no answer by UDP: " + err.Error(), "let this device reach it by UDP, or let cloudcore listen for websockets too"}
}

// leastDatagram is the minimum size of a datagram that a server answers (RFC 9000, 14.1), in bytes.
const leastDatagram = 1200

func askVersions(ctx context.Context, at string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	var ids [16]byte
	if _, err := rand.Read(ids[:]); err != nil {
		return fmt.Errorf("making connection IDs: %w", err)
	}
	packet := make([]byte, leastDatagram)
	packet[0] = 0xc0
	binary.BigEndian.PutUint32(packet[1:], 0x1a2a3a4a)
	packet[5] = 8
	copy(packet[6:], ids[:8])
	packet[14] = 8
	copy(packet[15:], ids[8:])
	answer := make([]byte, 2048)
	for wait := 250 * time.Millisecond; ctx.Err() == nil; wait *= 2 {
		if _, err := conn.Write(packet); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait)) // a UDP socket has deadlines
		n, err := conn.Read(answer)
		// A version negotiation has version 0, and our connection IDs the other way round.
		if err == nil && n >= 23 && answer[0]&0x80 != 0 && binary.BigEndian.Uint32(answer[1:]) == 0 &&
			answer[5] == 8 && string(answer[6:14]) == string(ids[8:]) && answer[14] == 8 && string(answer[15:23]) == string(ids[:8]) {
			return nil
		}
		var timer net.Error
		if err != nil && (!errors.As(err, &timer) || !timer.Timeout()) {
			return err // ICMP reports an unreachable host or a closed port
		}
	}
	return fmt.Errorf("nothing in %v", reachTimeout)
}

func cloudClock(c Cloud) Finding {
	if c.Skew.Abs() <= time.Minute {
		return Finding{Name: "cloud's clock", Level: Fine, Message: "agrees"}
	}
	way := "ahead of"
	if c.Skew < 0 {
		way = "behind"
	}
	return Finding{
		"cloud's clock", Warn, fmt.Sprintf("this device's clock is %v %s the cloud's: it works, but logs and events bear the wrong time", c.Skew.Abs().Round(time.Second), way),
		"set the clock, or let it be set: apt-get install chrony",
	}
}

func kubernetes(c Cloud) Finding {
	if err := version.KubeletFits(c.Kubelet, c.Kubernetes); err != nil {
		message, mend, _ := strings.Cut(err.Error(), ": ")
		return Finding{"kubernetes", Fail, message, mend}
	}
	if c.Kubernetes == "" {
		return Finding{Name: "kubernetes", Level: Note, Message: "the cloud does not say the version of its kube-apiserver"}
	}
	return Finding{Name: "kubernetes", Level: Fine, Message: fmt.Sprintf("the kubelet is %s, kube-apiserver %s", c.Kubelet, c.Kubernetes)}
}
