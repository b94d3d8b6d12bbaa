// Package hollow is many edge nodes in one process, without kubelets: the load that cloudcore and
// kube-apiserver can take is measured with them.
//
// It owns the links of the nodes, each with an identity, an epoch and holdings of its own, led by
// edgehub as it is in edgecore (package edge/hollow), with its dialling, back-off and heartbeats. A
// node registers a Node object, declares the interests of a kubelet and edgecore's agents,
// acknowledges changes, and sends its status every five minutes. It keeps no object, but only the
// data that a digest and an inventory need. It refuses every request for a stream: it runs no
// containers. Run serves until its ctx ends; the other methods of a Fleet may be called by any
// goroutine.
package hollow

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/tests/cluster/edges"
)

// Config configures a Fleet. Every zero value but those of Nodes, Server, Roots and
// Identity means its default.
type Config struct {
	Nodes  int
	Prefix string // of the nodes' names, which end in a number from 1: "hollow-"
	Server string // host of cloudcore
	// ServerName is the expected name in cloudcore's certificate; Server.
	ServerName string
	Transport  link.Transport // websocket or quic: websocket
	Port       int            // of cloudcore: 443
	Roots      *x509.CertPool // by which cloudcore is verified
	// Identity gives a node its certificate. It is called by several goroutines at once.
	Identity func(ctx context.Context, node string) (*tls.Certificate, error)

	// Rate is how many nodes make their first dial in a second: 200.
	Rate int
	// Keepalive is between two heartbeats: 10 s. StatusEvery is between two statuses, as a
	// kubelet's nodeStatusReportFrequency: 5 min.
	Keepalive, StatusEvery time.Duration

	// Operate carries out NodeOperations; nil: the nodes don't ask for any.
	Operate Operate
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "hollow-")
	c.ServerName = cmp.Or(c.ServerName, c.Server)
	c.Transport = cmp.Or(c.Transport, link.WebSocket)
	c.Port = cmp.Or(c.Port, 443)
	c.Rate = cmp.Or(c.Rate, 200)
	c.Keepalive = cmp.Or(c.Keepalive, 10*time.Second)
	c.StatusEvery = cmp.Or(c.StatusEvery, 5*time.Minute)
	return c
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Nodes < 1 {
		errs = append(errs, fmt.Errorf("nodes: %d is below 1", c.Nodes))
	}
	if problems := validation.IsDNS1123Subdomain(c.Prefix + strconv.Itoa(max(c.Nodes, 1))); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("prefix: %q makes no names of nodes: %s", c.Prefix, problems[0]))
	}
	if c.Server == "" {
		errs = append(errs, errors.New("server: name the host of cloudcore"))
	}
	if c.Transport != link.WebSocket && c.Transport != link.QUIC {
		errs = append(errs, fmt.Errorf("transport: %q is neither websocket nor quic", c.Transport))
	}
	if c.Roots == nil || c.Identity == nil {
		errs = append(errs, errors.New("roots and identity must be set"))
	}
	if c.Rate < 1 {
		errs = append(errs, fmt.Errorf("rate: %d is below 1", c.Rate))
	}
	if c.StatusEvery < time.Second {
		errs = append(errs, fmt.Errorf("statusEvery: %v is below 1s", c.StatusEvery))
	}
	return errors.Join(errs...)
}

// Fleet is the nodes.
type Fleet struct {
	config Config
	bounds link.Config
	table  *topic.Table
	codec  *link.Codec // one compressor for all

	linked, synced, registered atomic.Int64 // nodes
	connects, refused, changes atomic.Int64 // since the start

	mu      sync.Mutex
	changed chan struct{} // closed and renewed when one of the numbers of nodes changes
}

// New makes a Fleet.
func New(c Config) (*Fleet, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f := &Fleet{config: c.withDefaults(), bounds: link.Default().OfEdge(), table: topic.NewTable().Receiving(topic.Down, topic.DownBounds()), changed: make(chan struct{})}
	f.bounds.Keepalive = f.config.Keepalive
	f.codec = link.NewCodec(f.table, f.bounds)
	return f, nil
}

// Count is how the fleet is.
type Count struct {
	Linked     int   // nodes with an open session
	Synced     int   // nodes that hold all they want, as this session has reported
	Registered int   // nodes whose Node object kube-apiserver has
	Connects   int64 // sessions that were opened
	Refused    int64 // interests and writes that Kubernetes refused
	Changes    int64 // objects that came down
}

// Count is how the fleet is now.
func (f *Fleet) Count() Count {
	return Count{
		Linked: int(f.linked.Load()), Synced: int(f.synced.Load()), Registered: int(f.registered.Load()),
		Connects: f.connects.Load(), Refused: f.refused.Load(), Changes: f.changes.Load(),
	}
}

func (f *Fleet) note(n *atomic.Int64, by int64) {
	n.Add(by)
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

// Await returns when done is true for the fleet's numbers, or ctx ends.
func (f *Fleet) Await(ctx context.Context, done func(Count) bool) error {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if done(f.Count()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: the hollow nodes are %+v of %d", context.Cause(ctx), f.Count(), f.config.Nodes)
		}
	}
}

// AwaitWhole waits until every node is registered and synced.
func (f *Fleet) AwaitWhole(ctx context.Context) error {
	return f.Await(ctx, func(c Count) bool { return c.Synced == f.config.Nodes && c.Registered == f.config.Nodes })
}

// Run makes the identities, dials, and keeps every node linked until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	nodes := make([]*node, f.config.Nodes)
	makers, making := errgroup.WithContext(ctx)
	makers.SetLimit(32) // a CA may take a while for each
	for i := range nodes {
		makers.Go(func() (err error) {
			nodes[i], err = f.newNode(making, f.config.Prefix+strconv.Itoa(i+1))
			return err
		})
	}
	if err := makers.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	pace := time.NewTicker(time.Second / time.Duration(f.config.Rate))
	defer pace.Stop()
	for _, n := range nodes {
		all.Go(func() error { return n.run(ctx) })
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
	return all.Wait()
}

// Allow lets cloudcore act as the nodes, which never join.
func (f *Fleet) Allow(ctx context.Context, client kubernetes.Interface) error {
	names := make([]string, f.config.Nodes)
	for i := range names {
		names[i] = f.config.Prefix + strconv.Itoa(i+1)
	}
	return edges.Allow(ctx, client, names...)
}

// Remove deletes the Nodes and their Leases, once Run has returned.
func (f *Fleet) Remove(ctx context.Context, client kubernetes.Interface) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range f.config.Nodes {
		g.Go(func() error {
			name := f.config.Prefix + strconv.Itoa(i+1)
			if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting node %s: %w", name, err)
			}
			// A hollow node's Lease has no owner.
			if err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting the Lease of node %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// dialer makes a node's own dialer: with its certificate, and with its sessions of TLS, as a
// device has them.
func (f *Fleet) dialer(cert *tls.Certificate) (link.Dialer, error) {
	secure := pki.ClientTLS(pki.Client{Roots: f.config.Roots, Certificate: func() (*tls.Certificate, error) { return cert, nil }})
	secure.ServerName = f.config.ServerName
	if f.config.Transport == link.QUIC {
		return quiclink.NewDialer(quiclink.DialConfig{Link: f.bounds, TLS: secure, Table: f.table, Codec: f.codec})
	}
	return wslink.NewDialer(wslink.DialConfig{Link: f.bounds, TLS: secure, Table: f.table, Codec: f.codec})
}

func (f *Fleet) address() string {
	return net.JoinHostPort(f.config.Server, strconv.Itoa(f.config.Port))
}
