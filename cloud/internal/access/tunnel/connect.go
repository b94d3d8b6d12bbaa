package tunnel

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/httpserver"
	"github.com/skerry-io/skerry/common/tunnel"
)

// headTimeout is for a client to send its request.
const headTimeout = 10 * time.Second

// Serve answers CONNECT (RFC 9110, 9.3.6) on a listener whose connections have shown a verified
// client certificate. It returns when ctx has ended, and every connection with it.
func (t *Tunnel) Serve(ctx context.Context, listener net.Listener) error {
	open := new(gate)
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.connect(ctx, open, w, r) }),
		ReadHeaderTimeout: headTimeout, IdleTimeout: headTimeout, MaxHeaderBytes: maxAnswer,
		BaseContext: func(net.Listener) context.Context { return ctx },
		Protocols:   new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	defer open.shut()
	return httpserver.Serve(ctx, server, listener, "kube-apiserver's egress")
}

// gate counts the server's running handlers: the server does not wait for them, and does not track
// a connection that they have hijacked.
type gate struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // Add only with mu held and closed not set
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.running.Add(1)
	}
	return !g.closed
}

// shut lets no more handlers in and waits for those within.
func (g *gate) shut() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.running.Wait()
}

// client is the caller's identity.
type client int

const (
	stranger client = iota
	apiserver
	peer
)

// who identifies the client by its certificate, which the handshake has verified against the
// cluster's CA and ours.
func (t *Tunnel) who(r *http.Request) client {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return stranger
	}
	cert := r.TLS.PeerCertificates[0]
	ours := slices.ContainsFunc(r.TLS.VerifiedChains, func(chain []*x509.Certificate) bool { return chain[len(chain)-1].Equal(t.config.PeerCA) })
	switch {
	case ours && cert.Subject.CommonName == PeerName:
		return peer
	case !ours && slices.Contains(t.config.Clients, cert.Subject.CommonName):
		return apiserver
	}
	return stranger
}

func (t *Tunnel) connect(ctx context.Context, open *gate, w http.ResponseWriter, r *http.Request) {
	if !open.enter() {
		http.Error(w, "cloudcore stops", http.StatusServiceUnavailable)
		return
	}
	defer open.running.Done()
	who := t.who(r)
	logger := klog.FromContext(ctx).WithValues("target", r.Host, "remote", r.RemoteAddr)
	switch {
	case who == stranger:
		t.metrics.refuse(byConnect, "stranger")
		logger.Info("Refused a client: it is not kube-apiserver", "client", subject(r))
		http.Error(w, "this is for kube-apiserver", http.StatusForbidden)
		return
	case r.Method != http.MethodConnect:
		http.Error(w, "this server accepts only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	way := byConnect
	if who == peer {
		way = byPeer
	}
	back, ok := t.take()
	if !ok {
		t.metrics.refuse(way, "busy")
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("cloudcore carries %d connections already", t.config.MaxStreams))
		return
	}
	defer back()
	target := cmp.Or(r.Header.Get(streamTarget), kubelet)
	if who != peer || target != subresources && !slices.Contains(reports(), target) {
		target = kubelet // kube-apiserver itself asks for no other
	}
	far, code, err := t.reach(r.Context(), who, r.Host, target)
	if err != nil {
		t.metrics.refuse(way, "unreachable")
		logger.V(2).Info("Failed to connect to the target", "err", err)
		refuse(w, code, err.Error())
		return
	}
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = far.Close()
		logger.Error(err, "Failed to hijack a connection, closing it")
		return
	}
	early, err := buffered.Reader.Peek(buffered.Reader.Buffered())
	if err == nil {
		err = near.SetDeadline(time.Time{})
	}
	if err == nil {
		head := "HTTP/1.1 200 Connection established\r\n"
		if who == peer {
			head += streamTarget + ": " + target + "\r\n"
		}
		_, err = near.Write([]byte(head + "\r\n"))
	}
	if err != nil {
		_, _ = near.Close(), far.Close()
		return
	}
	defer t.metrics.begin(way)()
	tunnel.Splice(ctx, t.metrics.meter(after(near, slices.Clone(early))), far)
}

func subject(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return r.TLS.PeerCertificates[0].Subject.String()
}

// refuse answers with a reason in the status line: kube-apiserver shows that, and not the body, to
// its client.
func refuse(w http.ResponseWriter, code int, reason string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, reason, code)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(headTimeout))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", code, oneLine(reason))
}

// oneLine makes a reason phrase (RFC 9112, section 4) of a text.
func oneLine(text string) string {
	const most = 1000
	if len(text) > most {
		text = text[:most]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text)
}

// reach finds the way to an address, "host:port"; target is a replica's target on a node
// whose link is here.
func (t *Tunnel) reach(ctx context.Context, who client, address, target string) (net.Conn, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("%q is not HOST:PORT", address)
	}
	if who == peer {
		conn, err := t.own(ctx, types.NodeName(host), target)
		return conn, http.StatusServiceUnavailable, err
	}
	to, err := t.config.Nodes.find(host, port)
	if err != nil {
		return nil, http.StatusBadGateway, err
	}
	if to.edge {
		conn, err := t.Dial(ctx, to.node)
		return conn, http.StatusServiceUnavailable, err
	}
	dialer := net.Dialer{Timeout: t.config.DialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(to.address, port))
	return conn, http.StatusBadGateway, err
}
