package link

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link/linkpb"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// How many bytes the typical messages have on top of their payload, compressed alone.
func TestDictionary_Bytes(t *testing.T) {
	most := map[string]int{
		"a map": 188, "a service": 203, "event": 259, "interests": 626, "node status": 147, "pod status": 373, "ten maps": 462, "ten services": 626, "token request": 122,
	}
	c := NewCodec(topic.NewTable(), Default())
	alone, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	all := typicalMessages(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		_, plain, err := c.encode(all[name].message, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		_, small, err := c.encode(all[name].message, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		core := len(alone.EncodeAll(all[name].core, nil))
		t.Logf("%-13s %4d bytes, %.2f of what it is for; without a dictionary %d, %.2f", name, len(small), float64(len(small))/float64(core), len(plain), float64(len(plain))/float64(core))
		if len(small) > most[name] {
			t.Errorf("%s: %d bytes, want at most %d", name, len(small), most[name])
		}
		for how, data := range map[string][]byte{"plain": plain, "small": small} {
			m, err := c.Decode(data)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, how, err)
			}
			if have, want := m.Content.(proto.Message), all[name].message.Content.(proto.Message); !proto.Equal(have, want) {
				t.Errorf("%s, %s: came as %v", name, how, have)
			}
		}
	}
}

// Peers of other releases have the text of an id: a change of it would make garbage of their
// messages. A better text gets an id of its own.
func TestDictionaries_NeverChange(t *testing.T) {
	want := map[uint32]string{1: "b7c0d4d593f67fc6b723fe082b620da148f1fa1aee09dfad9143716940fa7887"}
	have := map[uint32]string{}
	for _, d := range dictionaries {
		sum := sha256.Sum256(d.text())
		have[d.id] = hex.EncodeToString(sum[:])
		if len(d.text()) > 5<<10 {
			t.Errorf("dictionary %d has %d bytes, which each message in it copies", d.id, len(d.text()))
		}
		if d.id == 0 || d.id > 255 {
			t.Errorf("dictionary %d: an id takes one byte in each message", d.id)
		}
	}
	if len(have) != len(dictionaries) {
		t.Error("two dictionaries have one id")
	}
	for id, sum := range have {
		if want[id] != sum {
			t.Errorf("dictionary %d sums up to %s, want %q", id, sum, want[id])
		}
	}
}

// Only short content takes a dictionary, and only if it gets shorter.
func TestDictionary_ShortContent(t *testing.T) {
	c := NewCodec(topic.NewTable(), Default())
	for name, test := range map[string]struct {
		body []byte
		id   uint32
		how  linkpb.Compression
	}{
		"short":    {bytes.Repeat([]byte("skerry "), smallContent/7-20), 1, linkpb.Compression_ZSTD},
		"long":     {bytes.Repeat([]byte("skerry "), smallContent/7+20), 0, linkpb.Compression_ZSTD},
		"tiny":     {[]byte("skerry"), 0, linkpb.Compression_NONE},
		"noise":    {randomly{newRand()}.noise(10_000), 0, linkpb.Compression_NONE},
		"in blank": {make([]byte, 5000), 1, linkpb.Compression_ZSTD},
	} {
		t.Run(name, func(t *testing.T) {
			_, data, err := c.encode(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Body: test.body}), 1, false)
			if err != nil {
				t.Fatal(err)
			}
			e := envelopeOf(t, data)
			if e.Compression != test.how || dictionaryOf(t, e) != test.id {
				t.Errorf("%v with dictionary %d, want %v with %d", e.Compression, dictionaryOf(t, e), test.how, test.id)
			}
			m, err := c.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if w, err := topic.EventWrite.Content(m); err != nil || !bytes.Equal(w.GetBody(), test.body) {
				t.Errorf("came as %v, %v", w, err)
			}
		})
	}
}

// A peer is sent no dictionary that it has not announced. A release from before there were
// dictionaries announces an empty list, and reads messages as it always has.
func TestConn_Dictionary(t *testing.T) {
	before, err := zstd.NewReader(nil) // has no dictionaries
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	state := typicalMessages(t)["ten services"].message
	for name, test := range map[string]struct {
		says []uint32
		want uint32
	}{
		"an older release":      {nil, 0},
		"this release":          {dictionaryIDs(), 1},
		"a newer one":           {[]uint32{200, 1}, 1},
		"a newer one, without":  {[]uint32{200, 201}, 0},
		"one that says it much": {slices.Repeat([]uint32{0, 1, 1 << 31}, 300), 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newByHand(t)
			// Before its first message it is unknown; and a dictionary that a later message may
			// take the place of does not introduce this end.
			for range 2 {
				p.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: 1}))
				if e := p.next(); !slices.Equal(e.Dictionaries, dictionaryIDs()) {
					t.Errorf("this end says that it reads %v", e.Dictionaries)
				}
			}
			p.send(state)
			if e := p.next(); !slices.Equal(e.Dictionaries, dictionaryIDs()) || dictionaryOf(t, e) != 0 {
				t.Errorf("the first message says %v and is compressed with dictionary %d", e.Dictionaries, dictionaryOf(t, e))
			}
			p.writeValid(func(e *linkpb.Envelope) { e.Dictionaries = test.says })
			p.writeValid(func(*linkpb.Envelope) {}) // which withdraws no dictionary
			for range 2 {
				p.send(state)
				e := p.next()
				if len(e.Dictionaries) != 0 {
					t.Errorf("it is said again: %v", e.Dictionaries)
				}
				if got := dictionaryOf(t, e); got != test.want {
					t.Errorf("sent with dictionary %d, want %d", got, test.want)
				}
				if test.want == 0 {
					if _, err := before.DecodeAll(e.Payload, nil); err != nil {
						t.Error("an older release can't read it:", err)
					}
				}
			}
		})
	}
}

// A peer that takes a dictionary that this end does not have has broken the contract.
func TestConn_UnknownDictionary(t *testing.T) {
	p := newByHand(t)
	p.send(topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{}))
	p.next()
	p.write(func(e *linkpb.Envelope) {
		e.Payload, e.Compression = withDictionary(t, 77, dictionaries[0].text(), []byte(strings.Repeat("skerry ", 100))), linkpb.Compression_ZSTD
	})
	<-p.conn.Done()
	if why, ok := errors.AsType[*CloseError](p.conn.Err()); !ok || why.Code != CloseProtocol || !strings.Contains(why.Reason, "dictionary 77") {
		t.Errorf("ended by %v", p.conn.Err())
	}
}

func BenchmarkCodec(b *testing.B) {
	all := typicalMessages(b)
	for _, name := range []string{"ten services", "a service", "pod status"} {
		for id, how := range []string{"plain", "dictionary"} {
			c := NewCodec(topic.NewTable(), Default())
			_, data, err := c.encode(all[name].message, uint32(id), false)
			if err != nil {
				b.Fatal(err)
			}
			b.Run("Encode/"+strings.ReplaceAll(name, " ", "-")+"/"+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, _, err := c.encode(all[name].message, uint32(id), false); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(len(data)), "bytes")
			})
			b.Run("Decode/"+strings.ReplaceAll(name, " ", "-")+"/"+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Decode(data); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func withDictionary(t testing.TB, id uint32, text, content []byte) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderDictRaw(id, text))
	if err != nil {
		t.Fatal(err)
	}
	return e.EncodeAll(content, nil)
}

func envelopeOf(t *testing.T, data []byte) *linkpb.Envelope {
	t.Helper()
	var e linkpb.Envelope
	if err := proto.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	return &e
}

// dictionaryOf is the id of the dictionary that content is compressed with; 0 without one.
func dictionaryOf(t *testing.T, e *linkpb.Envelope) uint32 {
	t.Helper()
	if e.Compression != linkpb.Compression_ZSTD {
		return 0
	}
	var h zstd.Header
	if err := h.Decode(e.Payload); err != nil {
		t.Fatal(err)
	}
	return h.DictionaryID
}

// byHand is a link whose peer is the test itself: it reads and writes frames.
type byHand struct {
	t     *testing.T
	conn  Conn
	codec *Codec
	out   *assembler
	read  io.Reader // the link's messages
	into  io.Writer
}

func newByHand(t *testing.T) *byHand {
	config := testConfig()
	p := &byHand{t: t, codec: NewCodec(topic.NewTable(), config), out: newAssembler(config, false)}
	in, into := io.Pipe()
	read, out := io.Pipe()
	p.into, p.read = into, read
	p.conn = Start(&pipes{in: in, out: out}, NewCodec(topic.NewTable(), config), config, Info{})
	t.Cleanup(func() { _ = p.conn.Close(CloseShutdown, "the test ended") })
	return p
}

func (p *byHand) send(m message.Message) {
	p.t.Helper()
	if err := p.conn.Send(p.t.Context(), m); err != nil {
		p.t.Fatal(err)
	}
}

// next is the link's next message.
func (p *byHand) next() *linkpb.Envelope {
	p.t.Helper()
	_, data, _, err := p.out.next(p.t.Context(), p.read)
	if err != nil {
		p.t.Fatal(err)
	}
	return envelopeOf(p.t, data)
}

// write sends an answer with a change of its envelope to the link.
func (p *byHand) write(change func(*linkpb.Envelope)) {
	p.t.Helper()
	entry, data, err := p.codec.Encode(topic.APIResponse.New(message.Resource{}, &topicpb.APIResponse{Code: 200}))
	if err != nil {
		p.t.Fatal(err)
	}
	e := envelopeOf(p.t, data)
	change(e)
	if data, err = proto.Marshal(e); err != nil {
		p.t.Fatal(err)
	}
	frame, _ := appendFrame(nil, entry.Class, data, 0, MaxBatch)
	if _, err := p.into.Write(frame); err != nil {
		p.t.Fatal(err)
	}
}

// writeValid writes an answer that the link accepts.
func (p *byHand) writeValid(change func(*linkpb.Envelope)) {
	p.t.Helper()
	p.write(change)
	if _, err := p.conn.Receive(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// pipes is a carrier without a network.
type pipes struct {
	in  *io.PipeReader
	out *io.PipeWriter
}

func (p *pipes) Traits() Traits       { return Traits{Batch: MaxBatch} }
func (p *pipes) Serve(s Sink) error   { return s.Read(p.in) }
func (p *pipes) Keepalive() error     { return nil }
func (p *pipes) LastHeard() time.Time { return time.Time{} }
func (p *pipes) Close(*CloseError)    {}
func (p *pipes) Stop(*CloseError)     { _, _ = p.in.Close(), p.out.Close() }
func (p *pipes) Write(_ topic.Class, frames []byte) error {
	_, err := p.out.Write(frames)
	return err
}
