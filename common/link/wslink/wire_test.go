package wslink_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
)

// dialRaw opens a websocket without a link on it.
func dialRaw(t *testing.T, l *wslink.Listener, c *tls.Config, subprotocol string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	d := websocket.Dialer{TLSClientConfig: c, Subprotocols: []string{subprotocol}}
	ws, response, err := d.DialContext(t.Context(), "wss://"+l.Addr().String()+wslink.Path, nil)
	if err == nil {
		t.Cleanup(func() { _ = ws.Close() })
	}
	return ws, response, err
}

func TestWire(t *testing.T) {
	s := linktest.NewSite(t)
	linktest.TestWire(t, func(t *testing.T, config link.Config) linktest.Wire {
		l := listen(t, wslink.ListenConfig{Link: config, TLS: s.ServerTLS()})
		edge, cloud := linktest.Connect(t, l, newDialer(t, wslink.DialConfig{Link: config, TLS: s.ClientTLS()}))
		ws, _, err := dialRaw(t, l, s.ClientTLS(), fmt.Sprint("skerry.v", link.Framing))
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(link.CloseShutdown, "the test ended") })
		return linktest.Wire{
			Cloud: c, Healthy: linktest.Ends{Edge: edge, Cloud: cloud},
			Write:  func(b []byte) error { return ws.WriteMessage(websocket.BinaryMessage, b) },
			Closed: func() (link.CloseCode, string) { return closedBy(t, ws) },
		}
	})
}

func closedBy(t *testing.T, ws *websocket.Conn) (link.CloseCode, string) {
	t.Helper()
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			why, ok := errors.AsType[*websocket.CloseError](err)
			if !ok {
				t.Fatalf("the websocket ended by %v", err)
			}
			return link.CloseCode(why.Code), why.Text
		}
	}
}

// An error below our frames closes the link as well, by a code of websocket's own.
func TestWire_NoWebsocketFrames(t *testing.T) {
	s := linktest.NewSite(t)
	for name, write := range map[string]func(*websocket.Conn) error{
		"text": func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.TextMessage, []byte("hello")) },
		"reserved bits": func(ws *websocket.Conn) error {
			_, err := ws.NetConn().Write([]byte{0xff, 0x80, 0, 0, 0, 0})
			return err
		},
		"not masked": func(ws *websocket.Conn) error { _, err := ws.NetConn().Write([]byte{0x82, 0x01, 0}); return err },
		"endless control": func(ws *websocket.Conn) error {
			_, err := ws.NetConn().Write([]byte{0x89, 0xfe, 0xff, 0xff})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS()})
			ws, _, err := dialRaw(t, l, s.ClientTLS(), fmt.Sprint("skerry.v", link.Framing))
			if err != nil {
				t.Fatal(err)
			}
			c, err := l.Accept(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if err := write(ws); err != nil {
				t.Fatal(err)
			}
			<-c.Done()
			if why, ok := errors.AsType[*link.CloseError](c.Err()); !ok || why.Code != link.CloseProtocol || why.Remote {
				t.Errorf("ended by %v", c.Err())
			}
			if code, _ := closedBy(t, ws); code != link.CloseProtocol && code != websocket.CloseProtocolError {
				t.Errorf("the peer received close code %d", code)
			}
		})
	}
}
