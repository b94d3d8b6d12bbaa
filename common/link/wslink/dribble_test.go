package wslink_test

import (
	"net"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// dribble writes byte by byte, so that its peer is woken within records, frames and messages.
type dribble struct{ net.Conn }

func (d dribble) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// The end that accepted waits beneath TLS and reads without waiting. Whatever part of a record has
// come, the rest of it is found, keepalives between messages count, and no message is left unread
// when the next does not come.
func TestListener_BytesOneByOne(t *testing.T) {
	s := linktest.NewSite(t)
	bounds := link.Default()
	bounds.Keepalive, bounds.IdleTimeout = time.Millisecond, 2*time.Second // so that some keepalives come between the messages
	l := listen(t, wslink.ListenConfig{Link: bounds, TLS: s.ServerTLS()})
	edge, cloud := linktest.Connect(t, l, newDialer(t, wslink.DialConfig{Link: bounds, TLS: s.ClientTLS(), Wrap: func(c net.Conn) net.Conn { return dribble{c} }}))
	for i := range uint64(50) {
		size := 10 + 100*int(i) // up to more than one websocket message carries
		if err := edge.Send(t.Context(), topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: i, Body: make([]byte, size)})); err != nil {
			t.Fatal(err)
		}
		m, err := cloud.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if w, err := topic.EventWrite.Content(m); err != nil || w.GetId() != i || len(w.GetBody()) != size {
			t.Fatalf("message %d came as %v, %v", i, w, err)
		}
	}
	if err := edge.Close(link.CloseShutdown, "the end"); err != nil {
		t.Fatal(err)
	}
	<-cloud.Done()
}
