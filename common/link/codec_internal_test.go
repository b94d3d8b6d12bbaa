package link

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link/linkpb"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

func TestCodec_Bounds(t *testing.T) {
	config := testConfig()
	c := NewCodec(topic.NewTable(), config)
	for name, test := range map[string]struct {
		message message.Message
		want    error
	}{
		"content":   {topic.EventWrite.New(message.Resource{}, &topicpb.Write{Body: make([]byte, config.MaxMessage+1)}), ErrTooLarge},
		"envelope":  {topic.EventWrite.New(message.Resource{Name: strings.Repeat("n", config.MaxMessage+envelopeRoom)}, &topicpb.Write{}), ErrTooLarge},
		"urgent":    {topic.Hello.New(message.Resource{}, &topicpb.Hello{BootId: strings.Repeat("n", 1<<10)}), nil},
		"not ours":  {message.Message{Route: message.Route{Kind: "gossip", Operation: "spread"}}, topic.ErrUnknown},
		"refusal":   {topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{}).Answer(errors.New("")), nil},
		"no answer": {message.Message{Route: message.Route{Kind: "gossip"}, Content: errors.New("x")}, topic.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			_, data, err := c.Encode(test.message)
			if !errors.Is(err, test.want) {
				t.Fatalf("Encode: %v, want %v", err, test.want)
			}
			if test.want != nil {
				return
			}
			m, err := c.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if want := test.message.Err(); want != nil && m.Err() == nil {
				t.Errorf("the refusal came as %v", m.Content)
			}
		})
	}
}

func TestCodec_Decompress(t *testing.T) {
	config := testConfig()
	c := NewCodec(topic.NewTable(), config)
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("skerry "), 1000)
	good := encoder.EncodeAll(text, nil)
	var stream bytes.Buffer // does not state its size
	w, err := zstd.NewWriter(&stream)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil { // the header goes out before the size is known
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		payload []byte
		how     linkpb.Compression
		want    CloseCode // 0: fine
	}{
		"good":              {good, linkpb.Compression_ZSTD, 0},
		"plain":             {text, linkpb.Compression_NONE, 0},
		"a bomb":            {encoder.EncodeAll(make([]byte, 100<<20), nil), linkpb.Compression_ZSTD, CloseTooLarge},
		"just above":        {encoder.EncodeAll(make([]byte, config.MaxMessage+1), nil), linkpb.Compression_ZSTD, CloseTooLarge},
		"a second frame":    {append(bytes.Clone(good), encoder.EncodeAll(make([]byte, 100<<10), nil)...), linkpb.Compression_ZSTD, CloseProtocol},
		"a second bomb":     {append(bytes.Clone(good), encoder.EncodeAll(make([]byte, 100<<20), nil)...), linkpb.Compression_ZSTD, CloseTooLarge},
		"cut":               {good[:len(good)-3], linkpb.Compression_ZSTD, CloseProtocol},
		"no size":           {stream.Bytes(), linkpb.Compression_ZSTD, CloseProtocol},
		"not compressed":    {text, linkpb.Compression_ZSTD, CloseProtocol},
		"nothing":           {nil, linkpb.Compression_ZSTD, CloseProtocol},
		"skippable":         {[]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}, linkpb.Compression_ZSTD, CloseProtocol},
		"unknown algorithm": {text, 7, CloseProtocol},

		"with a dictionary":              {withDictionary(t, 1, dictionaries[0].text(), text), linkpb.Compression_ZSTD, 0},
		"a bomb with a dictionary":       {withDictionary(t, 1, dictionaries[0].text(), make([]byte, 100<<20)), linkpb.Compression_ZSTD, CloseTooLarge},
		"a second bomb with one":         {append(bytes.Clone(good), withDictionary(t, 1, dictionaries[0].text(), make([]byte, 100<<20))...), linkpb.Compression_ZSTD, CloseTooLarge},
		"cut with a dictionary":          {withDictionary(t, 1, dictionaries[0].text(), text)[:20], linkpb.Compression_ZSTD, CloseProtocol},
		"an unknown dictionary":          {withDictionary(t, 2, dictionaries[0].text(), text), linkpb.Compression_ZSTD, CloseProtocol},
		"an unknown one, and a bomb":     {withDictionary(t, 2, dictionaries[0].text(), make([]byte, 100<<20)), linkpb.Compression_ZSTD, CloseProtocol},
		"an unknown one in a later part": {append(bytes.Clone(good), withDictionary(t, 2, dictionaries[0].text(), text)...), linkpb.Compression_ZSTD, CloseProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := c.decompress(test.payload, test.how)
			if test.want == 0 {
				if err != nil || !bytes.Equal(data, text) {
					t.Fatalf("%d bytes, %v", len(data), err)
				}
				return
			}
			if why, ok := errors.AsType[*CloseError](err); !ok || why.Code != test.want {
				t.Errorf("got %v, want code %d", err, test.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	config := testConfig()
	c := NewCodec(topic.NewTable(), config)
	for _, m := range []message.Message{
		topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: 1}),
		topic.EventWrite.New(message.Resource{Namespace: "a", Name: "b"}, &topicpb.Write{Body: bytes.Repeat([]byte("skerry "), 1000)}),
		topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{}).Answer(errors.New("no")),
		// An object as older edges get it, with its name, and one that only names itself.
		topic.State.New(message.Resource{}, &topicpb.State{Sequence: 1, Changes: []*topicpb.Changes{{Resource: &topicpb.Resource{Version: "v1", Resource: "services"}, Items: []*topicpb.Change{
			{Namespace: "default", Name: "a", Object: []byte("{}")}, {Object: []byte("{}")},
		}}}}),
		// A kilobyte on the wire that becomes megabytes, and names that are no names.
		topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: make([]*topicpb.Interest, 50_000)}),
		topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: []*topicpb.Interest{{LabelSelector: strings.Repeat("a", 17<<10)}}}),
		topic.EventWrite.New(message.Resource{Namespace: "../\x00", Name: strings.Repeat("n", 200)}, &topicpb.Write{Body: make([]byte, 200_000)}),
	} {
		_, data, err := c.Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		if _, data, err = c.encode(m, 1, true); err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, m := range typicalMessages(f) {
		_, data, err := c.encode(m.message, 1, true)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := c.Decode(data)
		if err != nil {
			if _, ok := errors.AsType[*CloseError](err); !ok {
				t.Fatalf("error %v says no close code", err)
			}
			return
		}
		if p, ok := m.Content.(proto.Message); ok && proto.Size(p) > 2*config.MaxMessage {
			t.Fatalf("content of %d bytes", proto.Size(p))
		}
		// An accepted message can be encoded again, unless it only fits as it was.
		if _, _, err := c.Encode(m); err != nil && !errors.Is(err, ErrTooLarge) {
			t.Fatalf("encoding what was decoded: %v", err)
		}
	})
}

func FuzzDecompress(f *testing.F) {
	config := testConfig()
	c := NewCodec(topic.NewTable(), config)
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoder.EncodeAll(bytes.Repeat([]byte("skerry "), 1000), nil), int32(1))
	f.Add(encoder.EncodeAll(make([]byte, 10<<20), nil), int32(1))
	f.Add(bytes.Repeat(encoder.EncodeAll(make([]byte, 1<<20), nil), 40), int32(1))                           // many frames, each within the bound
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x01, 0x00, 0x00}, int32(1))                            // a window of gigabytes (RFC 8878, 3.1.1.1.2)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, int32(1)) // a content of exabytes
	text := dictionaries[0].text()
	f.Add(withDictionary(f, 1, text, text), int32(1))
	f.Add(withDictionary(f, 1, text, slices.Concat(text[3000:], []byte(strings.Repeat("skerry ", 1000)), text[:3000])), int32(1))
	f.Add(withDictionary(f, 1, text, make([]byte, 10<<20)), int32(1))
	f.Add(append(withDictionary(f, 1, text, text), withDictionary(f, 2, text, text)...), int32(1))
	f.Add(withDictionary(f, 2, text, text), int32(1))
	f.Add([]byte("plain"), int32(7))
	f.Add([]byte("plain"), int32(0))
	f.Fuzz(func(t *testing.T, payload []byte, how int32) {
		data, err := c.decompress(payload, linkpb.Compression(how))
		if err == nil && len(data) > config.MaxMessage {
			t.Fatalf("%d bytes", len(data))
		}
	})
}

func TestConfig_Validate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	var none Config
	err := none.Validate()
	for _, field := range []string{
		"maxMessage", "maxAssembly", "sendQueue.messages", "receiveQueue.messages", "keepalive", "handshakeTimeout", "closeTimeout",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}
