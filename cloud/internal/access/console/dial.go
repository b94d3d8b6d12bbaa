package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	gorilla "github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/websocket"
)

// plainStream is the websocket subprotocol of KubeVirt's consoles: binary messages, whose
// bounds have no effect.
const plainStream = "plain.kubevirt.io"

// Dialer opens consoles at kube-apiserver by the configuration of a node.
func Dialer(config func(types.NodeName) *rest.Config) func(ctx context.Context, node types.NodeName, path string) (net.Conn, error) {
	return func(ctx context.Context, node types.NodeName, path string) (net.Conn, error) {
		as := config(node)
		transport, holder, err := websocket.RoundTripperFor(as)
		if err != nil {
			return nil, fmt.Errorf("transport to kube-apiserver: %w", err)
		}
		base, _, err := rest.DefaultServerUrlFor(as)
		if err != nil {
			return nil, fmt.Errorf("address of kube-apiserver: %w", err)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path).String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		ws, err := websocket.Negotiate(transport, holder, request, plainStream)
		if err != nil {
			return nil, err
		}
		return &stream{ws: ws}, nil
	}
}

// stream is a websocket's messages as one stream of bytes.
type stream struct {
	ws      *gorilla.Conn
	reader  io.Reader // of the message that is read; used by Read alone
	writing sync.Mutex
}

// Read implements net.Conn. A message is never held whole, so a long one takes no memory.
func (s *stream) Read(b []byte) (int, error) {
	for {
		if s.reader == nil {
			_, r, err := s.ws.NextReader()
			if err != nil {
				return 0, ended(err)
			}
			s.reader = r
		}
		n, err := s.reader.Read(b)
		if errors.Is(err, io.EOF) {
			s.reader, err = nil, nil
			if n == 0 {
				continue
			}
		}
		return n, err
	}
}

// ended makes io.EOF of a close that gives no reason.
func ended(err error) error {
	if gorilla.IsCloseError(err, gorilla.CloseNormalClosure, gorilla.CloseGoingAway, gorilla.CloseNoStatusReceived) {
		return io.EOF
	}
	return fmt.Errorf("the console ended: %w", err)
}

// Write implements net.Conn.
func (s *stream) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.WriteMessage(gorilla.BinaryMessage, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close implements net.Conn: it sends a close frame without waiting for an answer.
func (s *stream) Close() error {
	goodbye := gorilla.FormatCloseMessage(gorilla.CloseNormalClosure, "")
	_ = s.ws.WriteControl(gorilla.CloseMessage, goodbye, time.Now().Add(time.Second)) // the other end may be gone
	return s.ws.Close()
}

func (s *stream) LocalAddr() net.Addr                { return s.ws.LocalAddr() }
func (s *stream) RemoteAddr() net.Addr               { return s.ws.RemoteAddr() }
func (s *stream) SetReadDeadline(t time.Time) error  { return s.ws.SetReadDeadline(t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.ws.SetWriteDeadline(t) }
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.ws.SetReadDeadline(t), s.ws.SetWriteDeadline(t))
}
