package tunnel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/tunnel"
)

// naming accepts everything and answers with its own name, the target and the data.
func naming(name string) func(context.Context, string) (net.Conn, error) {
	return func(_ context.Context, target string) (net.Conn, error) {
		if target == "closed" {
			return nil, errors.New(name + " refuses")
		}
		near, far := halves()
		go func() {
			got, _ := io.ReadAll(far)
			_, _ = io.WriteString(far, name+" "+target+" "+string(got))
			_ = far.CloseWrite()
		}()
		return near, nil
	}
}

// Both ends open streams at the same time, and their ids never collide.
func TestOpen_BothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &system{t: t, beats: make(chan message.Message, 1), changes: make(chan message.Message, 1)}
		w.edgeConn, w.cloudConn = linktest.Pipe(t, linktest.PipeOptions{})
		w.cloud = tunnel.New(w.cloudConn, tunnel.Config{Peer: "edge1", Accept: naming("cloud"), MaxAccepted: 3})
		w.edge = tunnel.New(w.edgeConn, tunnel.Config{Peer: "the cloud", Accept: naming("edge"), Edge: true})
		w.serve(w.cloudConn, w.cloud, w.beats)
		w.serve(w.edgeConn, w.edge, w.changes)
		ask := func(from *tunnel.Mux, want string) {
			s, err := from.Open(t.Context(), "x")
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			_, _ = io.WriteString(s, "hello")
			_ = s.CloseWrite()
			if got, err := io.ReadAll(s); err != nil || string(got) != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
		held, err := w.edge.Open(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			for range 3 {
				go ask(w.cloud, "edge x hello")
			}
			ask(w.edge, "cloud x hello")
			synctest.Wait() // the cloud has closed it too: three are its bound
		}
		if _, err := w.edge.Open(t.Context(), "closed"); err == nil || !strings.Contains(err.Error(), "the cloud: cloud refuses") {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if c, e := w.cloud.Len(), w.edge.Len(); c != 1 || e != 1 {
			t.Errorf("%d streams in the cloud and %d at the edge, want the one that is held", c, e)
		}
		// The peer's own bound counts the peer's streams alone.
		for range 2 {
			if _, err := w.edge.Open(t.Context(), "held"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.edge.Open(t.Context(), "held"); err == nil || !strings.Contains(err.Error(), "3 streams are open already") {
			t.Errorf("got %v", err)
		}
		ask(w.cloud, "edge x hello")
		_ = held.Close()
		synctest.Wait()
		if s, err := w.edge.Open(t.Context(), "held"); err != nil {
			t.Errorf("after one has ended: %v", err)
		} else if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A peer that opens streams of the other side, or more than it may and waits for no answer,
// loses its link.
func TestHandle_ForeignStreams(t *testing.T) {
	open := func(id uint64) message.Message {
		return topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: id, Window: 100})
	}
	const edges = 1 << 40
	for name, test := range map[string]struct {
		config tunnel.Config
		script []message.Message
		want   string // of the last one
	}{
		"the cloud's id":      {tunnel.Config{}, []message.Message{open(5)}, "not of those that side opens"},
		"the edge's id":       {tunnel.Config{Edge: true}, []message.Message{open(edges + 5)}, "not of those that side opens"},
		"twice":               {tunnel.Config{}, []message.Message{open(edges + 1), open(edges + 1)}, "was opened before"},
		"one after the other": {tunnel.Config{}, []message.Message{open(edges + 1), open(edges + 2)}, ""},
		"without an end":      {tunnel.Config{MaxAccepted: 2}, []message.Message{open(edges + 1), open(edges + 2), open(edges + 3), open(edges + 4), open(edges + 5)}, "more than 2 streams"},
	} {
		t.Run(name, func(t *testing.T) {
			test.config.Accept = func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
			mux := tunnel.New(discard{}, test.config)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- mux.Run(ctx) }()
			var err error
			for i, m := range test.script {
				if err = mux.Handle(ctx, m); err != nil && i < len(test.script)-1 {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			cancel()
			<-done
			end, ok := errors.AsType[*link.CloseError](err)
			if test.want == "" && err != nil || test.want != "" && (!ok || end.Code != link.CloseProtocol || !strings.Contains(end.Reason, test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
