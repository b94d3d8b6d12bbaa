package cloudhub_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Over the real transports: a node opens a session over either, the newer one replaces the older
// whatever carries it, and a refusal arrives with its code and reason although the edge was saying
// hello at that moment.
func TestHub_OverWebsocketAndQUIC(t *testing.T) {
	authority := linktest.NewAuthority(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{authority.Server(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool(),
	}
	table := topic.NewTable()
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.New(nil)))
	ws, err := wslink.Listen(ctx, "127.0.0.1:0", wslink.ListenConfig{Link: link.Default(), TLS: server, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	quic, err := quiclink.Listen(ctx, "127.0.0.1:0", quiclink.ListenConfig{Link: link.Default(), TLS: server, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	h := cloudhub.New(cloudhub.Config{Admission: admission(func(node types.NodeName, _ *x509.Certificate) error {
		if node == "banned" {
			return errors.New("its certificate was revoked")
		}
		return nil
	})}, []link.Listener{ws, quic}, nil)
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	open := func(transport link.Transport, node string) (link.Conn, error) {
		t.Helper()
		client := &tls.Config{Certificates: []tls.Certificate{authority.Node(t, node)}, RootCAs: authority.Pool()}
		var d link.Dialer
		var err error
		address := ws.Addr().String()
		if transport == link.QUIC {
			address = quic.Addr().String()
			d, err = quiclink.NewDialer(quiclink.DialConfig{Link: link.Default(), TLS: client, Table: table})
		} else {
			d, err = wslink.NewDialer(wslink.DialConfig{Link: link.Default(), TLS: client, Table: table})
		}
		if err != nil {
			t.Fatal(err)
		}
		return d.Dial(t.Context(), address)
	}
	hello := func(c link.Conn, epoch uint64) *edge {
		t.Cleanup(func() { _ = c.Close(link.CloseShutdown, "the test ended") })
		// The hub may have closed the link before this is sent.
		_ = c.Send(t.Context(), topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Epoch: epoch}))
		return &edge{t, c}
	}
	for _, transport := range []link.Transport{link.WebSocket, link.QUIC} {
		for range 20 {
			c, err := open(transport, "banned")
			end, early := errors.AsType[*link.CloseError](err) // by QUIC the refusal may come while it still dials
			if err == nil {
				end = hello(c, 1).ended()
			} else if !early {
				t.Fatal(err)
			}
			if end.Code != link.CloseForbidden || !end.Remote || !strings.Contains(end.Reason, "revoked") {
				t.Fatalf("%s: refused with %v", transport, end)
			}
		}
	}
	var last *edge
	for epoch, transport := range []link.Transport{link.WebSocket, link.QUIC, link.QUIC, link.WebSocket, link.WebSocket} {
		c, err := open(transport, "edge-1")
		if err != nil {
			t.Fatal(err)
		}
		e := hello(c, uint64(epoch+1))
		if m := e.receive(); m.Key() != topic.Welcome.Key() {
			t.Fatalf("got %s", m.Key())
		}
		if last != nil {
			if end := last.ended(); end.Code != link.CloseReplaced || !end.Remote {
				t.Errorf("the older session ended with %v", end)
			}
		}
		e.heartbeat(7, true)
		if m := e.receive(); m.Key() != topic.HeartbeatAnswer.Key() {
			t.Errorf("got %s", m.Key())
		}
		if s := h.Sessions(); len(s) != 1 || s[0].Transport != transport || s[0].Epoch != uint64(epoch+1) || !s[0].KubeletAlive {
			t.Errorf("sessions: %+v", s)
		}
		last = e
	}
	stop()
	if end := last.ended(); end.Code != link.CloseShutdown || !end.Remote {
		t.Errorf("at the end: %v", end)
	}
}
