package hollow_test

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/hollow"
)

// cloud behaves as cloudcore does towards a node without pods, and ends a link on request.
type cloud struct {
	t        *testing.T
	listener link.Listener
	conns    chan link.Conn
	seen     chan *topicpb.Interests
}

func (c *cloud) run(ctx context.Context) {
	for {
		conn, err := c.listener.Accept(ctx)
		if err != nil {
			return
		}
		go c.serve(ctx, conn)
		select {
		case c.conns <- conn:
		case <-ctx.Done():
			return
		}
	}
}

func (c *cloud) serve(ctx context.Context, conn link.Conn) {
	for {
		m, err := conn.Receive(ctx)
		if err != nil {
			return
		}
		switch q := m.Content.(type) {
		case *topicpb.Hello:
			m = m.Answer(&topicpb.Welcome{Protocol: topic.Protocol, Version: "test", Instance: "test"})
		case *topicpb.Heartbeat:
			m = m.Answer(q)
		case *topicpb.APIRequest:
			if !strings.HasPrefix(q.Path, "/api/v1/nodes") || q.Method != "POST" {
				c.t.Errorf("unexpected request %s %s", q.Method, q.Path)
			}
			m = m.Answer(&topicpb.APIResponse{Code: 201})
		case *topicpb.Interests:
			c.seen <- q
			if !q.Unnamed {
				c.t.Error("it wants names beside the objects")
			}
			s := &topicpb.State{Sequence: 1}
			for _, i := range q.Interests {
				s.Synced = append(s.Synced, i.Id)
				if i.Resource.GetResource() == "nodes" {
					s.Changes = append(s.Changes, &topicpb.Changes{Resource: i.Resource, Items: []*topicpb.Change{
						{Object: []byte(`{"metadata":{"name":"a","uid":"u1","resourceVersion":"7"}}`)}, {Name: "gone", Deleted: true},
					}})
				}
			}
			m = topic.State.New(m.Route.Resource, s)
		default:
			continue
		}
		if conn.Send(ctx, m) != nil {
			return
		}
	}
}

// A node joins, gets its state, and after the link was lost comes back with the digest of its
// holdings.
func TestFleet(t *testing.T) {
	for _, transport := range []link.Transport{link.WebSocket, link.QUIC} {
		t.Run(string(transport), func(t *testing.T) {
			authority := linktest.NewAuthority(t)
			server := authority.Server(t)
			secure := pki.ServerTLS(pki.Server{Certificate: func() (*tls.Certificate, error) { return &server, nil }, ClientCAs: authority.Pool})
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.New(nil)), time.Minute)
			defer cancel()
			var l link.Listener
			var err error
			if transport == link.QUIC {
				l, err = quiclink.Listen(ctx, "127.0.0.1:0", quiclink.ListenConfig{Link: link.Default(), TLS: secure, Table: topic.NewTable()})
			} else {
				l, err = wslink.Listen(ctx, "127.0.0.1:0", wslink.ListenConfig{Link: link.Default(), TLS: secure, Table: topic.NewTable()})
			}
			must(t, err)
			defer l.Close()
			const nodes = 3
			c := &cloud{t, l, make(chan link.Conn, 2*nodes), make(chan *topicpb.Interests, 2*nodes)}
			go c.run(ctx)
			_, port, err := net.SplitHostPort(l.Addr().String())
			must(t, err)
			number, err := strconv.Atoi(port)
			must(t, err)
			fleet, err := hollow.New(hollow.Config{
				Nodes: nodes, Server: "127.0.0.1", Port: number, Transport: transport, Roots: authority.Pool(),
				Identity: func(_ context.Context, node string) (*tls.Certificate, error) {
					cert := authority.Node(t, node)
					return &cert, nil
				},
			})
			must(t, err)
			running, stop := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- fleet.Run(running) }()
			must(t, fleet.AwaitWhole(ctx))
			for range nodes {
				if digests := (<-c.seen).Digests; len(digests) > 0 {
					t.Errorf("a fresh node holds %v", digests)
				}
				must(t, (<-c.conns).Close(link.CloseShutdown, "the test wants to see them again"))
			}
			must(t, fleet.Await(ctx, func(n hollow.Count) bool { return n.Connects >= 2*nodes && n.Synced == nodes }))
			for range nodes {
				if digests := (<-c.seen).Digests; len(digests) != 1 || digests[0].Count != 1 || digests[0].Resource.Resource != "nodes" {
					t.Errorf("the digests of a node that holds one object are %v", digests)
				}
			}
			stop()
			must(t, <-done)
			if n := fleet.Count(); n.Linked != 0 || n.Synced != 0 || n.Refused != 0 {
				t.Errorf("after the end the fleet is %+v", n)
			}
		})
	}
}

func TestConfig_ReportsEveryMistake(t *testing.T) {
	_, err := hollow.New(hollow.Config{Nodes: -1, Prefix: "A B", Transport: "pigeon", Rate: -1, StatusEvery: time.Millisecond})
	for _, want := range []string{"nodes", "prefix", "server", "transport", "roots", "rate", "statusEvery"} {
		if err == nil || !strings.Contains(err.Error(), want+": ") && !strings.Contains(err.Error(), want+" and ") {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
