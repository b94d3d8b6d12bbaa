package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/tunnel"
)

// scripted makes messages of bytes: the kind, the stream, the length.
func scripted(script []byte) (out []message.Message) {
	for ; len(script) >= 3; script = script[3:] {
		what, id, n := script[0], uint64(script[1]%128), int(script[2])<<(script[0]>>4)
		if script[1] >= 128 {
			id += 1 << 40 // an edge's
		}
		switch what % 6 {
		case 0:
			out = append(out, topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: id, Window: uint32(n), Target: "kubelet"}))
		case 1:
			out = append(out, topic.StreamWindow.New(message.Resource{}, &topicpb.StreamWindow{Id: id, Bytes: uint32(n)}))
		case 2:
			out = append(out, topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: id, Data: make([]byte, min(n, 64<<10))}))
		case 3:
			out = append(out, topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: id, Fin: true}))
		case 4:
			out = append(out, topic.StreamClose.New(message.Resource{}, &topicpb.StreamClose{Id: id, Reason: string(make([]byte, n%7))}))
		case 5:
			out = append(out, topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{}))
		}
	}
	return out
}

// Messages of any kind in any order are accepted, or end the link as a breach of the
// protocol; and the end frees everything.
func FuzzHandle(f *testing.F) {
	f.Add([]byte{0, 1, 100, 2, 1, 5, 3, 1, 0, 4, 1, 0}, true)
	f.Add([]byte{0, 1, 0, 4, 2, 0, 0, 2, 9, 0xf1, 2, 255}, true)
	f.Add([]byte{1, 1, 9, 2, 1, 9, 3, 1, 0, 2, 1, 1}, false)
	// More streams than the limit, all at once, and data for unknown ones.
	f.Add(bytes.Repeat([]byte{0, 1, 255, 0, 2, 255, 0, 3, 255}, 20), true)
	f.Add(bytes.Repeat([]byte{1, 9, 255}, 60), true)
	f.Add([]byte{0, 129, 100, 2, 129, 5, 1, 1, 9, 0, 1, 9}, true)
	f.Add([]byte{4, 130, 0, 0, 130, 9, 0, 131, 9, 2, 131, 200, 4, 131, 0}, true)
	f.Fuzz(func(t *testing.T, script []byte, accepts bool) {
		for _, edge := range []bool{false, true} {
			fuzzEnd(t, script, accepts, edge)
		}
	})
}

// fuzzEnd plays the script to one end of a link.
func fuzzEnd(t *testing.T, script []byte, accepts, edge bool) {
	if len(script) > 3*200 {
		return // no deeper, only slower
	}
	config := tunnel.Config{MaxStreams: 8, Edge: edge}
	if accepts {
		config.Accept = func(ctx context.Context, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			context.AfterFunc(t.Context(), func() { _ = far.Close() })
			return near, nil
		}
	}
	mux := tunnel.New(discard{}, config)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- mux.Run(ctx) }()
	opened := make(chan struct{})
	go func() { // the other side's streams have ids too
		defer close(opened)
		if s, err := mux.Open(ctx, "kubelet"); err == nil && !accepts {
			_, _ = s.Write(make([]byte, 100))
		}
	}()
	for _, m := range scripted(script) {
		if err := mux.Handle(ctx, m); err != nil {
			if end, ok := errors.AsType[*link.CloseError](err); !ok || end.Code != link.CloseProtocol {
				t.Errorf("%s ends the link by %v", m.Key(), err)
			}
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-opened
	if n := mux.Len(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}
