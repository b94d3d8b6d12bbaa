package link

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link/linkpb"
	"github.com/skerry-io/skerry/common/topic"
)

// ErrTooLarge is returned for a message that is above the bound. A message that is sent so leaves
// the link as it was.
var ErrTooLarge = errors.New("message is too large for the link")

// Refusal is an error that came over the link as the content of an answer.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// Codec turns messages into bytes and back. One serves all links of a listener or dialer: it holds
// the compressor's memory, which is taken when it is needed, and is garbage once two collections
// have passed without that.
type Codec struct {
	table  *topic.Table
	config Config

	encoders  sync.Pool     // *zstd.Encoder
	encodings chan struct{} // those that are in use
	decoder   func() (*zstd.Decoder, error)
	batches   sync.Pool // *[]byte of MaxBatch
}

// maxEncodings is how many messages are compressed at a time: each takes 1.3 MB meanwhile, and
// links seldom compress at the same moment. Others wait.
const maxEncodings = 2

// NewCodec returns a codec for the topics of table.
func NewCodec(table *topic.Table, config Config) *Codec {
	return &Codec{
		table: table, config: config,
		encodings: make(chan struct{}, maxEncodings),
		decoder: sync.OnceValues(func() (*zstd.Decoder, error) {
			return zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxMemory(uint64(config.maxReceive())), zstd.WithDecoderMaxWindow(uint64(max(config.maxReceive(), zstd.MinWindowSize))))
		}),
		batches: sync.Pool{New: func() any { return new(make([]byte, 0, MaxBatch)) }},
	}
}

// Encode returns the bytes of m and its line in the table.
func (c *Codec) Encode(m message.Message) (topic.Entry, []byte, error) {
	e := &linkpb.Envelope{
		Id: uint64(m.Header.ID), Parent: uint64(m.Header.ParentID), Sync: m.Header.Sync,
		Source: string(m.Route.Source), Group: string(m.Route.Group),
		Namespace: m.Route.Resource.Namespace, Name: m.Route.Resource.Name,
	}
	if !m.Header.Time.IsZero() {
		e.UnixMillis = m.Header.Time.UnixMilli()
	}
	var entry topic.Entry
	var err error
	if refusal := m.Err(); refusal != nil {
		if entry, err = c.table.Lookup(m.Key()); err != nil {
			return entry, nil, err
		}
		e.Refusal = refusal.Error()
		if e.Refusal == "" {
			e.Refusal = "refused"
		}
		e.Refusal = cut(e.Refusal, envelopeRoom/2)
	} else {
		if entry, e.Payload, err = c.table.Encode(m); err != nil {
			return entry, nil, err
		}
		if len(e.Payload) > c.config.MaxMessage {
			return entry, nil, fmt.Errorf("%s of %d bytes, the bound is %d: %w", m.Key(), len(e.Payload), c.config.MaxMessage, ErrTooLarge)
		}
		if !entry.Opaque {
			if e.Payload, e.Compression, err = c.compress(e.Payload); err != nil {
				return entry, nil, err
			}
		}
	}
	e.Topic = entry.Number
	data, err := proto.Marshal(e)
	if err != nil {
		return entry, nil, fmt.Errorf("encoding the envelope of %s: %w", m.Key(), err)
	}
	if around := len(data) - len(e.Payload); around > envelopeRoom {
		return entry, nil, fmt.Errorf("%s with %d bytes around its content, the bound is %d: %w", m.Key(), around, envelopeRoom, ErrTooLarge)
	}
	if bound := maxWire(c.config.MaxMessage, entry.Class == topic.Urgent); len(data) > bound {
		return entry, nil, fmt.Errorf("%s of %d bytes with its envelope, the bound is %d: %w", m.Key(), len(data), bound, ErrTooLarge)
	}
	return entry, data, nil
}

// Decode returns the message in data, which it does not keep. Its error is a *CloseError: the peer
// has said what it must not say.
func (c *Codec) Decode(data []byte) (message.Message, error) {
	s, err := c.open(data)
	if err != nil {
		return message.Message{}, err
	}
	return c.content(s)
}

// sealed is a message whose content is not decoded: whether it has a receiver may not be known yet.
type sealed struct {
	message     message.Message
	payload     []byte // as it came
	compression linkpb.Compression
}

// open reads an envelope, and nothing of what is in it.
func (c *Codec) open(data []byte) (sealed, error) {
	if err := checkEnvelope(data); err != nil {
		return sealed{}, err
	}
	var e linkpb.Envelope
	if err := (proto.UnmarshalOptions{Merge: true, DiscardUnknown: true}).Unmarshal(data, &e); err != nil {
		return sealed{}, &CloseError{Code: CloseProtocol, Reason: "no envelope", Err: err}
	}
	entry, err := c.table.Numbered(e.Topic)
	if err != nil {
		return sealed{}, &CloseError{Code: CloseProtocol, Reason: fmt.Sprintf("unknown topic %d", e.Topic), Err: err}
	}
	m := message.Message{
		Header: message.Header{ID: message.ID(e.Id), ParentID: message.ID(e.Parent), Sync: e.Sync},
		Route: message.Route{
			Source: message.Name(e.Source), Group: message.Group(e.Group), Kind: entry.Key.Kind, Operation: entry.Key.Operation,
			Resource: message.Resource{Namespace: e.Namespace, Name: e.Name},
		},
	}
	if e.UnixMillis != 0 {
		m.Header.Time = time.UnixMilli(e.UnixMillis)
	}
	if e.Refusal != "" {
		m.Content = Refusal(e.Refusal)
		return sealed{message: m}, nil
	}
	if _, err := c.size(e.Payload, e.Compression); err != nil {
		return sealed{}, err
	}
	return sealed{m, e.Payload, e.Compression}, nil
}

// checkEnvelope counts in the bytes what is around the content, before it is read.
func checkEnvelope(data []byte) error {
	around := 0
	for rest := data; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return refuse(CloseProtocol, "no envelope")
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return refuse(CloseProtocol, "no envelope")
		}
		if number != payloadField {
			around += n + size
		}
		rest = rest[n+size:]
	}
	if around > envelopeRoom {
		return refuse(CloseTooLarge, "an envelope of %d bytes, the bound is %d", around, envelopeRoom)
	}
	return nil
}

// payloadField is the number of Envelope.payload.
const payloadField = 12

// content reads what is in an envelope.
func (c *Codec) content(s sealed) (message.Message, error) {
	m := s.message
	if m.Content != nil {
		return m, nil // a refusal
	}
	payload, err := c.decompress(s.payload, s.compression)
	if err != nil {
		return message.Message{}, err
	}
	m.Content, err = c.table.Decode(m.Key(), payload)
	if errors.Is(err, topic.ErrBounds) {
		return message.Message{}, &CloseError{Code: CloseTooLarge, Reason: err.Error(), Err: err}
	}
	if err != nil {
		return message.Message{}, &CloseError{Code: CloseProtocol, Reason: "content of " + m.Key().String() + " is not of its type", Err: err}
	}
	return m, nil
}

func (c *Codec) compress(payload []byte) ([]byte, linkpb.Compression, error) {
	if c.config.CompressAbove < 0 || len(payload) < max(c.config.CompressAbove, 1) {
		return payload, linkpb.Compression_NONE, nil
	}
	c.encodings <- struct{}{}
	defer func() { <-c.encodings }()
	encoder, ok := c.encoders.Get().(*zstd.Encoder)
	if !ok {
		var err error
		encoder, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithSingleSegment(true),
			zstd.WithEncoderCRC(false)) // TLS has checked every byte
		if err != nil {
			return nil, 0, fmt.Errorf("making a compressor: %w", err)
		}
	}
	defer c.encoders.Put(encoder)
	if small := encoder.EncodeAll(payload, make([]byte, 0, len(payload)/2)); len(small) < len(payload) {
		return small, linkpb.Compression_ZSTD, nil
	}
	return payload, linkpb.Compression_NONE, nil
}

// size is how long the content will be, by what its head says.
func (c *Codec) size(payload []byte, how linkpb.Compression) (int, error) {
	size := uint64(len(payload))
	switch how {
	case linkpb.Compression_NONE:
	case linkpb.Compression_ZSTD:
		var h zstd.Header
		if err := h.Decode(payload); err != nil {
			return 0, &CloseError{Code: CloseProtocol, Reason: "content is not compressed as it says", Err: err}
		}
		if h.Skippable || !h.HasFCS {
			return 0, refuse(CloseProtocol, "compressed content does not state its size")
		}
		size = h.FrameContentSize
	default:
		return 0, refuse(CloseProtocol, "unknown compression %d", how)
	}
	if size > uint64(c.config.maxReceive()) {
		return 0, refuse(CloseTooLarge, "content of %d bytes, the bound is %d", size, c.config.maxReceive())
	}
	return int(size), nil
}

func (c *Codec) decompress(payload []byte, how linkpb.Compression) ([]byte, error) {
	size, err := c.size(payload, how)
	if err != nil || how == linkpb.Compression_NONE {
		return payload, err
	}
	decoder, err := c.decoder()
	if err != nil {
		return nil, &CloseError{Code: CloseInternal, Reason: "no decompressor", Err: err}
	}
	data, err := decoder.DecodeAll(payload, make([]byte, 0, size))
	if err != nil {
		code := CloseProtocol
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
			code = CloseTooLarge
		}
		return nil, &CloseError{Code: code, Reason: "content does not decompress", Err: err}
	}
	if len(data) != size {
		return nil, refuse(CloseProtocol, "compressed content of %d bytes states %d", len(data), size)
	}
	return data, nil
}
