package bench_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/hollow"
	"github.com/skerry-io/skerry/tests/hostile"
)

// attackEnv makes the benchmark's program an attacker, as a process of its own: its CPU time is not
// that of the benchmark, which looks at clocks.
const attackEnv = "BENCH_ATTACK"

func TestMain(m *testing.M) {
	if raw := os.Getenv(burnEnv); raw != "" {
		if err := runBurn(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if raw := os.Getenv(attackEnv); raw != "" {
		if err := runAttack(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// An attack configures an attacker.
type attack struct {
	Handshakes          bool     // else links
	Host                string   // of cloudcore
	ServerName          string   // for which its certificate holds
	From                []string // addresses of the attacker, of Handshakes
	CA, CAKey, ServerCA string   // files
	Nodes               int
	Namespace           string // in which stalled devices have a Secret
}

const (
	attackPrefix = "hostile-"
	// attackedSecret is a Secret of nearly a megabyte that the pods of devices need which
	// then don't read it.
	attackedSecret = "big"
)

// runAttack attacks until its standard input ends. It writes a line when it has begun, and one with
// its counts at the end.
func runAttack(raw string) error {
	var a attack
	if err := json.Unmarshal([]byte(raw), &a); err != nil {
		return err
	}
	pem, err := os.ReadFile(a.ServerCA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	identity := hollow.FromCA(a.CA, a.CAKey)
	secure := func(ctx context.Context, i int) (*tls.Config, error) {
		cert, err := identity(ctx, fmt.Sprint(attackPrefix, i))
		if err != nil {
			return nil, err
		}
		c := pki.ClientTLS(pki.Client{Roots: roots, Certificate: func() (*tls.Certificate, error) { return cert, nil }})
		c.ServerName = a.ServerName
		return c, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if a.Handshakes {
		return a.handshakes(ctx, secure)
	}
	return a.links(ctx, secure)
}

// tally counts an attacker's actions, by name.
type tally struct {
	mu    sync.Mutex
	names []string
	n     map[string]int
}

func (c *tally) add(name string, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	if _, known := c.n[name]; !known {
		c.names = append(c.names, name)
	}
	c.n[name] += by
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, name := range c.names {
		all = append(all, fmt.Sprintf("%d %s", c.n[name], name))
	}
	return strings.Join(all, ", ")
}

const linksEnded = "links that ended or were refused"

// links opens a link for each node, and opens it again whenever it ends.
func (a attack) links(ctx context.Context, secure func(context.Context, int) (*tls.Config, error)) error {
	kinds := []struct {
		name string
		do   func(context.Context, *hostile.Device, string, string, *tally) error
	}{{"answers of a megabyte that are not read", stall}, {"events", floodEvents}, {"interests", floodInterests}, {"reports", floodReports}, {"bytes of statuses", floodBytes}}
	var done tally
	var ready sync.WaitGroup
	ready.Add(a.Nodes)
	g, ctx := errgroup.WithContext(ctx)
	for i := range a.Nodes {
		config, err := secure(ctx, i)
		if err != nil {
			return err
		}
		c := hostile.Config{Transport: link.WebSocket, Address: net.JoinHostPort(a.Host, "443"), TLS: config}
		if i/len(kinds)%2 == 1 {
			c.Transport, c.Address = link.QUIC, net.JoinHostPort(a.Host, "443")
		}
		kind, began := kinds[i%len(kinds)], sync.OnceFunc(ready.Done)
		g.Go(func() error {
			for ctx.Err() == nil {
				c.Epoch = uint64(time.Now().UnixMilli())
				d, err := hostile.Dial(ctx, c)
				if err == nil {
					done.add("links", 1)
					began()
					err = kind.do(ctx, d, fmt.Sprint(attackPrefix, i), a.Namespace, &done)
					d.Close()
				}
				if err != nil && ctx.Err() == nil {
					done.add(linksEnded, 1)
				}
				wait(ctx, 100*time.Millisecond)
			}
			return nil
		})
	}
	began := make(chan struct{})
	go func() {
		ready.Wait()
		close(began)
	}()
	select {
	case <-began:
	case <-ctx.Done():
	}
	fmt.Println("begun")
	err := g.Wait()
	fmt.Println(done.String())
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		if done.n[kind.name] == 0 {
			return fmt.Errorf("this is no attack: it made no %s: %s", kind.name, &done)
		}
	}
	if ended := done.n[linksEnded]; ended > a.Nodes {
		return fmt.Errorf("this is no attack by links that stay: %s", &done)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// stall asks for as many megabytes as may be in flight, and never reads.
func stall(ctx context.Context, d *hostile.Device, _, ns string, done *tally) error {
	q := &topicpb.APIRequest{Method: http.MethodGet, Path: "/api/v1/namespaces/" + ns + "/secrets/" + attackedSecret, Accept: "application/json"}
	r, err := d.Ask(ctx, q)
	if err != nil || r.GetCode() != http.StatusOK {
		return errors.Join(err, fmt.Errorf("%d", r.GetCode()))
	}
	defer d.Pause()()
	for range 15 { // of 16 that may be on the way
		if err := d.Send(ctx, topic.APIRequest.New(message.Resource{}, q)); err != nil {
			return err
		}
		done.add("answers of a megabyte that are not read", 1)
	}
	select {
	case <-d.Done():
		return d.Err()
	case <-ctx.Done():
		return nil
	}
}

// flood has so many writers call write until one fails.
func flood(ctx context.Context, writers int, write func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for w := range writers {
		g.Go(func() error {
			for i := w; ctx.Err() == nil; i += writers {
				if err := write(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func floodEvents(ctx context.Context, d *hostile.Device, node, ns string, done *tally) error {
	return flood(ctx, 64, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("%s.%d", node, i)
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Event","metadata":{"name":%q,"namespace":%q},"involvedObject":{"kind":"Node","name":%q},"reason":"Flood","message":%q,"type":"Normal"}`,
			name, ns, node, strings.Repeat("x", 900))
		_, err := d.Write(ctx, topic.EventWrite, &topicpb.Write{Verb: topicpb.Verb_CREATE, Resource: &topicpb.Resource{Version: "v1", Resource: "events"}, Namespace: ns, Name: name, Body: body})
		done.add("events", 1)
		return err
	})
}

// floodInterests declares thousands of new ones again and again.
func floodInterests(ctx context.Context, d *hostile.Device, _, _ string, done *tally) error {
	id := uint64(0)
	for ctx.Err() == nil {
		all := make([]*topicpb.Interest, 4096)
		for i := range all {
			id++
			all[i] = &topicpb.Interest{Id: id, Resource: &topicpb.Resource{Version: "v1", Resource: "services"}, LabelSelector: fmt.Sprintf("a%s=%d", strings.Repeat("b", 40), id)}
		}
		if err := d.Send(ctx, topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: all})); err != nil {
			return err
		}
		done.add("interests", len(all))
		wait(ctx, time.Second)
	}
	return nil
}

// floodReports reports of operations with names that are made up.
func floodReports(ctx context.Context, d *hostile.Device, node, _ string, done *tally) error {
	return flood(ctx, 200, func(ctx context.Context, i int) error { // 256 without an answer end the session
		_, err := d.Write(ctx, topic.ReportWrite, &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: "skerry.io", Version: "v1alpha1", Resource: v1alpha1.NodeOperations},
			Name: fmt.Sprintf("%s-%d", node, i), Subresource: "status", Body: fmt.Appendf(nil, `{"phase":"Requested","message":"%d"}`, i),
		})
		done.add("reports", 1)
		return err
	})
}

// floodBytes sends statuses of half a megabyte, which kube-apiserver would have to read, too.
func floodBytes(ctx context.Context, d *hostile.Device, node, _ string, done *tally) error {
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{"x":%q}}}`, bytes.Repeat([]byte("y"), 512<<10))
	return flood(ctx, 8, func(ctx context.Context, _ int) error {
		_, err := d.Write(ctx, topic.NodeStatusWrite, &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: node, Subresource: "status", Body: body, PatchType: string(types.MergePatchType),
		})
		done.add("bytes of statuses", len(body))
		return err
	})
}

const (
	halfOpenPerAddress = 700 // of TCP
	quicPerAddress     = 100
	newPerSecond       = 500 // of TCP, all together
)

// handshakes holds connections open whose handshakes don't end, and opens one again when it is
// closed: a third sends no bytes, a third one byte a second of a hello, a third completes TLS and
// never asks for a websocket. Over QUIC it sends its hello and receives no answer.
func (a attack) handshakes(ctx context.Context, secure func(context.Context, int) (*tls.Config, error)) error {
	config, err := secure(ctx, 0)
	if err != nil {
		return err
	}
	var done tally
	pace := time.NewTicker(time.Second / newPerSecond)
	defer pace.Stop()
	g, ctx := errgroup.WithContext(ctx)
	for _, from := range a.From {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
		for i := range halfOpenPerAddress {
			g.Go(func() error {
				for ctx.Err() == nil {
					select {
					case <-pace.C:
					case <-ctx.Done():
						return nil
					}
					c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(a.Host, "443"))
					if err != nil {
						done.add("TCP connections refused", 1)
						continue
					}
					done.add("TCP connections", 1)
					halfOpen(ctx, c, i%3, config)
				}
				return nil
			})
		}
		for range quicPerAddress {
			g.Go(func() error { return a.deaf(ctx, from, config, &done) })
		}
	}
	wait(ctx, 5*time.Second) // until most of them stand
	fmt.Println("begun")
	err = g.Wait()
	fmt.Println(done.String())
	return err
}

// halfOpen holds a connection until the other end closes it.
func halfOpen(ctx context.Context, c net.Conn, kind int, config *tls.Config) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	switch kind {
	case 1:
		go func() {
			for _, b := range []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3} { // the beginning of a ClientHello (RFC 8446, 4.1.2)
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				wait(ctx, time.Second)
			}
		}()
	case 2:
		secure := tls.Client(c, config)
		if secure.HandshakeContext(ctx) != nil {
			return
		}
		_, _ = io.Copy(io.Discard, secure)
		return
	}
	_, _ = io.Copy(io.Discard, c)
}

// deafConn is a UDP socket that never receives.
type deafConn struct {
	net.PacketConn
	closed chan struct{}
	once   sync.Once
}

func (c *deafConn) ReadFrom([]byte) (int, net.Addr, error) {
	<-c.closed
	return 0, nil, net.ErrClosed
}

func (c *deafConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && time.Until(t) <= 0 { // how a reader is woken
		c.once.Do(func() { close(c.closed) })
	}
	return nil
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.PacketConn.Close()
}

// deaf begins links over QUIC from an address, one after the other, and receives no answer.
func (a attack) deaf(ctx context.Context, from string, config *tls.Config, done *tally) error {
	for ctx.Err() == nil {
		socket, err := net.ListenPacket("udp", net.JoinHostPort(from, "0"))
		if err != nil {
			return err
		}
		d, err := quiclink.NewDialer(quiclink.DialConfig{Link: link.Default(), TLS: config, Table: topic.NewTable(), Wrap: func(c net.PacketConn) net.PacketConn {
			_ = c.Close() // it has another address
			return &deafConn{PacketConn: socket, closed: make(chan struct{})}
		}})
		if err != nil {
			return err
		}
		some, cancel := context.WithTimeout(ctx, 3*time.Second)
		done.add("QUIC handshakes", 1)
		if c, err := d.Dial(some, net.JoinHostPort(a.Host, "443")); err == nil {
			_ = c.Close(link.CloseShutdown, "it heard something")
		}
		cancel()
	}
	return nil
}
