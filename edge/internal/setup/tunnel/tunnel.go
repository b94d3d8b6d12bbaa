// Package tunnel is the device's end of the streams within the link: those that the cloud opens,
// for kube-apiserver's connections to this node's own kubelet, and those that the device opens to
// the cloud's services.
//
// It owns the decision which servers the cloud may dial: only the kubelet's server on this device
// and edgecore's read-only status. To kube-apiserver it is a wire, not a permission: TLS,
// authentication and authorisation stay between kube-apiserver and the kubelet. For subresources of
// pods, and for the status, cloudcore has asked kube-apiserver for the user's permission, and the
// connection is this device's own (docs/dev/decisions/0068-subresources.md). A Tunnel's methods may
// be called by many goroutines at once.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"k8s.io/klog/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/sockdiag"
)

// Targets of streams: the kubelet's server itself, or by a connection of this device's own, for
// logs, exec, attach and port-forward; and the content of `edgecore status`.
const (
	Kubelet      = "kubelet"
	Subresources = "subresources"
	Status       = "status"
	// Rehearsal is the output of `edgecore rehearse`, Bundle that of `edgecore bundle`, Recorder
	// the newest records of `edgecore recorder`.
	Rehearsal = "rehearsal"
	Bundle    = "bundle"
	Recorder  = "recorder"
)

// Config configures a Tunnel.
type Config struct {
	// Kubelet returns the address of the kubelet's server; "" without a server.
	Kubelet func() string
	// Subresources connects to the kubelet as this device's own client, by a connection that keeps
	// its answer (sockdiag); nil where that is switched off.
	Subresources func(ctx context.Context) (net.Conn, error)
	// Status is the part of `edgecore status`, in the form that an Accept header asks for, and its
	// content type; nil: it is not shown to the cloud.
	Status func(accept string) (body []byte, contentType string, err error)
	// Rehearsal and Recorder are like Status. Bundle writes an archive. nil: the cloud is refused.
	Rehearsal func(accept string) (body []byte, contentType string, err error)
	Recorder  func(accept string) (body []byte, contentType string, err error)
	Bundle    func(ctx context.Context, w io.Writer) error
	// MaxStreams bounds the streams of a session; 0: the default of common/tunnel.
	MaxStreams int
}

// Tunnel is a edgehub.Part.
type Tunnel struct {
	config  Config
	metrics *metrics
	answers sync.WaitGroup // of questions for the status; Add only while a session's streams are served

	mu  sync.Mutex
	up  linkstate.Link // of mux
	mux *tunnel.Mux    // of the open session, or nil
}

// New returns a Tunnel.
func New(config Config) *Tunnel { return &Tunnel{config: config, metrics: newMetrics()} }

// Open asks the cloud for a stream. A *Refused is the cloud's answer; the stream ends with
// the session.
func (t *Tunnel) Open(ctx context.Context, target string) (net.Conn, error) {
	t.mu.Lock()
	up, mux := t.up, t.mux
	t.mu.Unlock()
	switch {
	case mux == nil:
		return nil, linkstate.ErrNoLink
	case !up.Streams: // it would end the link
		return nil, fmt.Errorf("cloudcore %s takes no streams from devices: it is older than this edgecore, or has no tunnel.listen", up.Version)
	}
	s, err := mux.Open(ctx, target)
	if err != nil {
		return nil, err // not s: it would be no nil net.Conn
	}
	return s, nil
}

// Attach serves the streams of one session.
func (t *Tunnel) Attach(up linkstate.Link, send func(context.Context, message.Message) error) (
	handle func(context.Context, message.Message) error, run func(context.Context)) {
	accept := t.accept
	if up.Rescue {
		accept = nil
	}
	mux := tunnel.New(sender(send), tunnel.Config{Peer: "the cloud", Accept: accept, Edge: true, MaxStreams: t.config.MaxStreams})
	return mux.Handle, func(ctx context.Context) {
		t.mu.Lock()
		t.up, t.mux = up, mux
		t.mu.Unlock()
		defer func() { // the hub begins no session before this one's run has ended
			t.mu.Lock()
			t.mux = nil
			t.mu.Unlock()
		}()
		if err := mux.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to serve the cloud's streams")
		}
		t.answers.Wait() // their streams have ended
	}
}

type sender func(context.Context, message.Message) error

func (s sender) Send(ctx context.Context, m message.Message) error { return s(ctx, m) }

// accept dials the target of the cloud's request. Its error is shown to the user who asked for a
// log.
func (t *Tunnel) accept(ctx context.Context, target string) (net.Conn, error) {
	switch target {
	case Kubelet:
	case Subresources:
		return t.subresources(ctx)
	case Status, Rehearsal, Bundle, Recorder:
		if conn := t.report(target); conn != nil {
			return conn, nil
		}
		fallthrough
	default:
		t.metrics.refuse("target")
		return nil, fmt.Errorf("streams lead to this node's kubelet, not to %.64q", target)
	}
	address := t.config.Kubelet()
	if address == "" {
		t.metrics.refuse("no-kubelet")
		return nil, errors.New("no kubelet with a server runs here")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		t.metrics.refuse("unreachable")
		return nil, fmt.Errorf("the kubelet does not answer: %w", err)
	}
	return t.metrics.begin(sockdiag.KeepAnswer(conn)), nil
}

// report connects to one of edgecore's own reports; nil where it is not offered.
func (t *Tunnel) report(target string) net.Conn {
	var serve func(net.Conn)
	switch {
	case target == Status && t.config.Status != nil:
		serve = func(conn net.Conn) { serveStatus(conn, t.config.Status) }
	case target == Rehearsal && t.config.Rehearsal != nil:
		serve = func(conn net.Conn) { serveStatus(conn, t.config.Rehearsal) }
	case target == Recorder && t.config.Recorder != nil:
		serve = func(conn net.Conn) { serveStatus(conn, t.config.Recorder) }
	case target == Bundle && t.config.Bundle != nil:
		serve = func(conn net.Conn) { serveBundle(conn, t.config.Bundle) }
	default:
		return nil
	}
	near, far := net.Pipe()
	t.answers.Go(func() { serve(far) })
	return near
}

func (t *Tunnel) subresources(ctx context.Context) (net.Conn, error) {
	if t.config.Subresources == nil {
		t.metrics.refuse("switched-off")
		return nil, errors.New("modules.tunnel.subresources is false on this device")
	}
	conn, err := t.config.Subresources(ctx)
	if err != nil {
		t.metrics.refuse("unreachable")
		return nil, err
	}
	return t.metrics.begin(conn), nil
}

// Describe implements prometheus.Collector.
func (t *Tunnel) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range t.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (t *Tunnel) Collect(ch chan<- prometheus.Metric) {
	for _, c := range t.metrics.all() {
		c.Collect(ch)
	}
}
