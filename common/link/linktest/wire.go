package linktest

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linkpb"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Wire is a cloud's end whose peer is the test itself.
type Wire struct {
	Cloud link.Conn
	// Write sends bytes in the peer's first stream, past the core.
	Write func([]byte) error
	// Closed waits for the close code and reason that the cloud sends to the peer.
	Closed func() (link.CloseCode, string)
	// Healthy is another link of the same listener, which must not notice anything; may be empty.
	Healthy Ends
}

// TestWire is the contract for bytes of a peer that is not ours: one wrong byte closes that
// link, with the code that gives the reason, and no other.
func TestWire(t *testing.T, open func(*testing.T, link.Config) Wire) {
	config := link.Default()
	config.MaxMessage, config.MaxAssembly = 1<<20, 3<<19
	config.CloseTimeout = 100 * time.Millisecond // a peer that isn't ours need not close its end
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	envelope := func(change func(*linkpb.Envelope)) []byte {
		payload, err := proto.Marshal(&topicpb.Write{Id: 1})
		if err != nil {
			t.Fatal(err)
		}
		entry, err := topic.NewTable().Lookup(topic.EventWrite.Key())
		if err != nil {
			t.Fatal(err)
		}
		e := &linkpb.Envelope{Topic: entry.Number, Payload: payload}
		change(e)
		data, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return whole(topic.Bulk, data)
	}
	for name, test := range map[string]struct {
		bytes  []byte
		want   link.CloseCode
		shared bool // only where all classes share a stream
		lanes  bool // only where they don't
	}{
		"no frame":              {bytes: []byte{0xff, 0, 1, 0}, want: link.CloseProtocol},
		"unknown kind":          {bytes: []byte{3 << 3, 0, 1, 0}, want: link.CloseProtocol},
		"unknown class":         {bytes: []byte{topic.Classes, 0, 1, 0}, want: link.CloseProtocol},
		"HTTP":                  {bytes: []byte("GET / HTTP/1.1\r\n\r\n"), want: link.CloseProtocol},
		"empty frame":           {bytes: []byte{0, 0, 0}, want: link.CloseProtocol},
		"frame too long":        {bytes: []byte{0, 0xff, 0xff}, want: link.CloseTooLarge},
		"message too long":      {bytes: first(topic.Normal, 1<<31, 1), want: link.CloseTooLarge},
		"urgent too long":       {bytes: first(topic.Urgent, 100<<10, 1), want: link.CloseTooLarge},
		"first is all":          {bytes: first(topic.Normal, 10, 10), want: link.CloseProtocol},
		"more of nothing":       {bytes: more(topic.Normal, 10), want: link.CloseProtocol},
		"more than all":         {bytes: append(first(topic.Normal, 20, 10), more(topic.Normal, 11)...), want: link.CloseProtocol},
		"one within another":    {bytes: append(first(topic.Normal, 20, 10), whole(topic.Normal, []byte("x"))...), want: link.CloseProtocol},
		"one begins in another": {bytes: append(first(topic.Normal, 20, 10), first(topic.Normal, 20, 10)...), want: link.CloseProtocol},
		"too many begun":        {bytes: append(first(topic.Normal, 1<<20, 10), first(topic.Bulk, 1<<20, 10)...), want: link.CloseTooLarge, shared: true},
		"another's stream":      {bytes: append(first(topic.Normal, 20, 10), first(topic.Bulk, 20, 10)...), want: link.CloseProtocol, lanes: true},
		"no envelope":           {bytes: whole(topic.Bulk, bytes.Repeat([]byte{0xff}, 30)), want: link.CloseProtocol},
		"unknown topic":         {bytes: envelope(func(e *linkpb.Envelope) { e.Topic = 1 << 20 }), want: link.CloseProtocol},
		"no topic":              {bytes: envelope(func(e *linkpb.Envelope) { e.Topic = 0 }), want: link.CloseProtocol},
		"content of other type": {bytes: envelope(func(e *linkpb.Envelope) { e.Payload = []byte{0xff, 0xff} }), want: link.CloseProtocol},
		"unknown compression":   {bytes: envelope(func(e *linkpb.Envelope) { e.Compression = 9 }), want: link.CloseProtocol},
		"compressed? no":        {bytes: envelope(func(e *linkpb.Envelope) { e.Compression = linkpb.Compression_ZSTD }), want: link.CloseProtocol},
		"a bomb": {bytes: envelope(func(e *linkpb.Envelope) {
			e.Compression, e.Payload = linkpb.Compression_ZSTD, encoder.EncodeAll(make([]byte, 64<<20), nil)
		}), want: link.CloseTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			wire := open(t, config)
			lanes := wire.Cloud.Info().Transport == link.QUIC
			if test.shared && lanes || test.lanes && !lanes {
				t.Skip("not of this transport")
			}
			if err := wire.Write(test.bytes); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = wire.Cloud.Receive(t.Context()) }() // content is read when it is received
			if why := ended(t, wire.Cloud); why.Code != test.want || why.Remote {
				t.Errorf("the cloud ended by %v, want %d", why, test.want)
			}
			if code, reason := wire.Closed(); code != test.want || reason == "" {
				t.Errorf("the peer received close code %d %q, want %d", code, reason, test.want)
			}
			if h := wire.Healthy; h.Edge != nil {
				send(t, h.Edge, heartbeat(1))
				receive(t, h.Cloud)
			}
		})
	}
	t.Run("what is right", func(t *testing.T) {
		wire := open(t, config)
		if err := wire.Write(envelope(func(*linkpb.Envelope) {})); err != nil {
			t.Fatal(err)
		}
		if got, ok := receive(t, wire.Cloud).Content.(*topicpb.Write); !ok || got.Id != 1 {
			t.Errorf("came as %v", got)
		}
	})
}

// The frames as the wire has them, written down once more.
func whole(class topic.Class, data []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{byte(class)}, uint16(len(data))), data...)
}

func first(class topic.Class, total uint32, length int) []byte {
	b := binary.BigEndian.AppendUint16([]byte{1<<3 | byte(class)}, uint16(length))
	return append(binary.BigEndian.AppendUint32(b, total), make([]byte, length)...)
}

func more(class topic.Class, length int) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{2<<3 | byte(class)}, uint16(length)), make([]byte, length)...)
}
