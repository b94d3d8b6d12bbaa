// Package tunnel leads kube-apiserver to the kubelets of edge nodes, which can't be dialled:
// through the links that the nodes have opened.
//
// It owns the streams of each session, the HTTP CONNECT server that kube-apiserver's egress goes
// through, the endpoint by names for all others, and the way from the replica that is asked to the
// one that holds the link. It is a wire, not a right: TLS, authentication and authorisation stay
// between kube-apiserver and the kubelet. It refuses every client that is neither kube-apiserver
// nor another replica, and leads to no port of an edge node but its kubelet's. Any other node
// is dialled directly. To cloud/internal/access/aggregated/subresources, in this process, it also
// gives connections that are the device's own. A Tunnel may be used by many goroutines at once.
package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/tunnel"
)

// Targets of streams: the kubelet's TLS, for users with rights there, or a connection that the
// device itself makes to its kubelet, for callers that have authorized the user before, as for
// edgecore's status. The names are those of edge/internal/setup/tunnel.
const (
	kubelet      = "kubelet"
	subresources = "subresources"
)

// PeerName is the common name of the certificate by which replicas of cloudcore authenticate each
// other.
const PeerName = "cloudcore"

// Config configures a Tunnel. Every zero duration and bound means its default.
type Config struct {
	// Instance names this replica, as it stands in the Leases of the nodes whose links it holds.
	Instance string
	// Nodes distinguishes edge nodes from all others.
	Nodes *Nodes
	// Leases reads the Lease of a node: it names the replica that holds the link.
	Leases func(ctx context.Context, node types.NodeName) (*coordinationv1.Lease, error)
	// AnnounceKey signs where replicas are asked, in the Leases of nodes; the same on
	// every replica.
	AnnounceKey [32]byte
	// Peer is the TLS by which another replica is dialled.
	Peer *tls.Config
	// PeerCA signs the replicas' certificates.
	PeerCA *x509.Certificate
	// Clients are the common names of the client certificates that may use the server:
	// kube-apiserver's.
	Clients []string

	// AnswerTimeout is for the way to a kubelet to be found or not: 2 s.
	AnswerTimeout time.Duration
	// DialTimeout is for addresses that are dialled directly: 10 s.
	DialTimeout time.Duration
	// MaxStreams bounds the connections of all nodes together: 4096. At the bound one more
	// is refused.
	MaxStreams int
	// MaxNodeStreams bounds those of one node; 0: the default of common/tunnel.
	MaxNodeStreams int

	// Accept connects a stream that a node has opened to its target; nil refuses all. ctx ends
	// within 10 s. Its error is sent to the node.
	Accept func(ctx context.Context, node types.NodeName, target string) (net.Conn, error)
	// MaxAccepted bounds the streams that one node may have open: 24.
	MaxAccepted int
}

// Tunnel is a cloudhub.Part and a server for CONNECT.
type Tunnel struct {
	// Set by New, never changed.
	config  Config
	places  chan struct{} // a token for each connection
	metrics *metrics

	mu       sync.Mutex
	sessions map[types.NodeName]*session
	lost     map[types.NodeName]time.Time // when the last link of an unlinked node ended
}

// session is the streams of one link.
type session struct {
	cloudhub.Session
	tunnel *Tunnel
	mux    *tunnel.Mux

	silent     atomic.Pointer[time.Time] // when the edge gave no sign of life; nil: never
	superseded atomic.Bool               // by a newer session on another replica
}

var _ cloudhub.Part = (*Tunnel)(nil)

// New returns a Tunnel.
func New(config Config) *Tunnel {
	config.AnswerTimeout = cmp.Or(config.AnswerTimeout, 2*time.Second)
	config.DialTimeout = cmp.Or(config.DialTimeout, 10*time.Second)
	config.MaxStreams = cmp.Or(config.MaxStreams, 4096)
	config.MaxAccepted = cmp.Or(config.MaxAccepted, 24)
	return &Tunnel{
		config: config, places: make(chan struct{}, config.MaxStreams), metrics: newMetrics(),
		sessions: map[types.NodeName]*session{}, lost: map[types.NodeName]time.Time{},
	}
}

// Attach implements cloudhub.Part.
func (t *Tunnel) Attach(s cloudhub.Session, mux *message.Mux) cloudhub.Service {
	own := &session{tunnel: t, Session: s}
	own.mux = tunnel.New(s, tunnel.Config{Peer: string(s.Node()), MaxStreams: t.config.MaxNodeStreams, Accept: own.accept, MaxAccepted: t.config.MaxAccepted})
	message.Handle(mux, topic.StreamOpen, handler[*topicpb.StreamOpen](own.mux))
	message.Handle(mux, topic.StreamWindow, handler[*topicpb.StreamWindow](own.mux))
	message.Handle(mux, topic.StreamData, handler[*topicpb.StreamData](own.mux))
	message.Handle(mux, topic.StreamClose, handler[*topicpb.StreamClose](own.mux))
	return own
}

// accept connects a stream that the node has opened. It is a wire too: Accept judges.
func (s *session) accept(ctx context.Context, target string) (net.Conn, error) {
	if s.tunnel.config.Accept == nil {
		return nil, errors.New("this cloudcore takes no streams from devices")
	}
	return s.tunnel.config.Accept(ctx, s.Node(), target)
}

// Start implements cloudhub.Service.
func (s *session) Start(context.Context, func(error)) {
	s.tunnel.enter(s)
	s.mux.Start()
}

// Stop implements cloudhub.Service.
func (s *session) Stop() {
	s.mux.Stop()
	s.tunnel.leave(s)
}

func handler[T any](mux *tunnel.Mux) func(context.Context, message.Message, T) error {
	return func(ctx context.Context, m message.Message, _ T) error { return mux.Handle(ctx, m) }
}

func (t *Tunnel) enter(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions[s.Node()] = s
	delete(t.lost, s.Node())
}

// lostKept bounds how many nodes without a link are remembered.
const lostKept = 50_000

func (t *Tunnel) leave(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[s.Node()] != s {
		return
	}
	delete(t.sessions, s.Node())
	if len(t.lost) >= lostKept {
		clear(t.lost) // the Leases tell nearly as much
	}
	t.lost[s.Node()] = time.Now()
}

func (t *Tunnel) held(node types.NodeName) (*session, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[node], t.lost[node]
}

// Busy reports whether streams to or from a node are open, as of `kubectl logs -f` and exec.
func (t *Tunnel) Busy(node types.NodeName) bool {
	s, _ := t.held(node)
	return s != nil && s.mux.Len() > 0
}

// Unavailable is why a kubelet can't be reached. Its text is for the people who asked for a log.
type Unavailable struct {
	Node   types.NodeName
	Reason string
}

func (e *Unavailable) Error() string { return string(e.Node) + " " + e.Reason }

func unavailable(node types.NodeName, format string, args ...any) error {
	return &Unavailable{node, fmt.Sprintf(format, args...)}
}

// Dial connects to the kubelet of an edge node, whichever replica holds its link. An error comes
// within AnswerTimeout.
func (t *Tunnel) Dial(ctx context.Context, node types.NodeName) (net.Conn, error) {
	return t.dial(ctx, node, kubelet)
}

// reports are those of edgecore's own that a stream can be opened to (edge/internal/setup/tunnel).
func reports() []string { return []string{"status", "rehearsal", "bundle", "recorder"} }

// ErrNoEdge is for nodes that are no edges.
var ErrNoEdge = errors.New("it is no edge node")

// DialSubresources connects to the kubelet of an edge node as that device's own client, which may
// ask for logs, exec, attach and port-forward. It is HTTP/1.1 without TLS, as the link is
// encrypted. The caller alone judges the user.
func (t *Tunnel) DialSubresources(ctx context.Context, node types.NodeName) (net.Conn, error) {
	edge, _, err := t.config.Nodes.kubelet(node)
	switch {
	case err != nil:
		return nil, err
	case !edge:
		return nil, ErrNoEdge
	}
	return t.dialOwn(ctx, node, subresources)
}

// DialReport connects to a report of edgecore on an edge node, also of one whose kubelet has never
// made a Node: HTTP/1.1 without TLS, one question. The caller alone judges the user.
func (t *Tunnel) DialReport(ctx context.Context, node types.NodeName, report string) (net.Conn, error) {
	if !slices.Contains(reports(), report) {
		return nil, fmt.Errorf("edgecore has no report %q", report)
	}
	return t.dialOwn(ctx, node, report)
}

// dialOwn connects for cloudcore's own API.
func (t *Tunnel) dialOwn(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
	back, ok := t.take()
	if !ok {
		t.metrics.refuse(bySubresources, "busy")
		return nil, unavailable(node, "can't be asked: cloudcore carries %d connections already", t.config.MaxStreams)
	}
	conn, err := t.dial(ctx, node, target)
	if err != nil {
		back()
		t.metrics.refuse(bySubresources, "unreachable")
		return nil, err
	}
	end := t.metrics.begin(bySubresources)
	return &counted{Conn: conn, metrics: t.metrics, end: sync.OnceFunc(func() { end(); back() })}, nil
}

// counted is a connection to a kubelet that gives its place back when it is closed.
type counted struct {
	net.Conn
	metrics *metrics
	end     func()
}

// Read implements net.Conn.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.metrics.got.Add(float64(n))
	return n, err
}

// Write implements net.Conn.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.metrics.sent.Add(float64(n))
	return n, err
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

func (t *Tunnel) dial(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.config.AnswerTimeout)
	defer cancel()
	own, _ := t.held(node)
	if own == nil || own.superseded.Load() {
		return t.elsewhere(ctx, node, target)
	}
	began := time.Now()
	try, cancelTry := context.WithCancel(ctx)
	defer cancelTry()
	defer time.AfterFunc(lookAfter, func() {
		if !own.heardSince(began) && own.newer(try) {
			cancelTry()
		}
	}).Stop()
	conn, err := own.open(try, target)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	select {
	case <-own.Done(): // it may have come back by now, here or on another replica
		return t.elsewhere(ctx, node, target)
	default:
	}
	if !own.heardSince(began) && own.newer(ctx) {
		return t.elsewhere(ctx, node, target)
	}
	return nil, err
}

// newer reports whether the node has a newer session on another replica, as its Lease has it. A
// device whose edgecore was killed is linked there long before this one's link has been idle for
// too long.
func (s *session) newer(ctx context.Context) bool {
	if s.superseded.Load() {
		return true
	}
	lease, err := s.tunnel.config.Leases(ctx, s.Node())
	if err != nil {
		return false
	}
	if _, ok := errors.AsType[*fence.Superseded](fence.Compare(lease.Annotations, s.Epoch())); !ok {
		return false
	}
	s.superseded.Store(true)
	return true
}

// DialKubelet connects to the kubelet of any node: through its link, or directly where it
// is no edge node.
func (t *Tunnel) DialKubelet(ctx context.Context, node types.NodeName) (net.Conn, error) {
	edge, address, err := t.config.Nodes.kubelet(node)
	switch {
	case err != nil:
		return nil, err
	case edge:
		return t.Dial(ctx, node)
	}
	return (&net.Dialer{Timeout: t.config.DialTimeout}).DialContext(ctx, "tcp", address)
}

// own connects to the kubelet of a node whose link is here.
func (t *Tunnel) own(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.config.AnswerTimeout*3/4) // the replica that asked waits for AnswerTimeout
	defer cancel()
	s, lost := t.held(node)
	if s == nil {
		return nil, noLink(node, lost, time.Time{})
	}
	return s.open(ctx, target)
}

func (s *session) open(ctx context.Context, target string) (net.Conn, error) {
	// A client whose kept connection has ended for that retries at once, and need not wait for the
	// same once more.
	if at := s.silent.Load(); at != nil && time.Since(*at) < silentFor && !s.heardSince(*at) {
		return nil, s.noAnswer()
	}
	stream, err := s.mux.Open(ctx, target)
	if err == nil {
		return s.watch(stream), nil
	}
	if refused, ok := errors.AsType[*tunnel.Refused](err); ok {
		return nil, unavailable(s.Node(), "refuses: %s", refused.Reason)
	}
	if ctx.Err() != nil {
		return nil, s.noAnswer()
	}
	return nil, unavailable(s.Node(), "can't be reached: %v", err)
}

// noAnswer is the error that names since when a linked node has been silent, if that is known.
func (s *session) noAnswer() error {
	if heard, ok := s.Session.(interface{ LastHeard() time.Time }); ok {
		return unavailable(s.Node(), "does not answer; it was last heard of at %s%s", clock(heard.LastHeard()), where)
	}
	return unavailable(s.Node(), "does not answer")
}

// where is a remedy.
const where = "; its logs are on the device: edgecore kubectl logs"

// noLink is the error that names since when a node has been out of reach, if that is known.
func noLink(node types.NodeName, lost, heard time.Time) error {
	switch {
	case lost.After(heard):
		return unavailable(node, "has had no link since %s%s", clock(lost), where)
	case !heard.IsZero():
		return unavailable(node, "has no link; it was last heard of at %s%s", clock(heard), where)
	}
	return unavailable(node, "has no link")
}

// clock is a time as people read it.
func clock(at time.Time) string {
	at = at.UTC()
	if time.Since(at) < 12*time.Hour {
		return at.Format("15:04:05 UTC")
	}
	return at.Format("2006-01-02 15:04:05 UTC")
}

// take claims a place for one connection. The returned function gives it back.
func (t *Tunnel) take() (func(), bool) {
	select {
	case t.places <- struct{}{}:
		return func() { <-t.places }, true
	default:
		return nil, false
	}
}

// Streams is how many connections there are.
func (t *Tunnel) Streams() int { return len(t.places) }

// elsewhere connects through the replica that holds the link, as the node's Lease has it.
func (t *Tunnel) elsewhere(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
	_, lost := t.held(node)
	lease, err := t.config.Leases(ctx, node)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read the Lease of a node", "node", node, "err", err)
		return nil, noLink(node, lost, time.Time{})
	}
	var heard time.Time
	if lease.Spec.RenewTime != nil {
		heard = lease.Spec.RenewTime.Time
	}
	announced, holder := lease.Annotations[fence.TunnelAnnotation], lease.Annotations[fence.InstanceAnnotation]
	// A link that was lost here after that renewal may be there all the same: the device goes to
	// another replica before this one notices, and a Lease is renewed each 20 s.
	if announced == "" || holder == t.config.Instance {
		return nil, noLink(node, lost, heard)
	}
	address, err := verify(t.config.AnnounceKey, node, holder, announced, time.Now())
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Ignored a node's Lease: its tunnel address is invalid", "node", node, "holder", holder, "err", err)
		return nil, noLink(node, lost, heard)
	}
	conn, err := t.forward(ctx, address, node, target)
	if err == nil {
		return conn, nil
	}
	if _, ok := errors.AsType[*Unavailable](err); ok {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Failed to connect to another replica", "node", node, "holder", holder, "address", address, "err", err)
	return nil, unavailable(node, "was last linked to %s (%s), which does not answer: %v; last heard of at %s", holder, address, err, clock(heard))
}
