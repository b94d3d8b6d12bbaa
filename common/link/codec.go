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

	encoders  map[uint32]*sync.Pool // of *zstd.Encoder, by the id of their dictionary; 0: of those without
	encodings chan struct{}         // those that are in use
	decoder   func() (*zstd.Decoder, error)
	batches   sync.Pool // *[]byte of MaxBatch
}

// maxEncodings is how many messages are compressed at a time: each takes 1.3 MB while it runs, or
// 0.7 MB with a dictionary, and links seldom compress at the same moment. Others wait.
const maxEncodings = 2

// smallContent is the longest content that is compressed with a dictionary, which gains little in
// longer ones. It is the window too, which must be a power of two: the compressor has memory for
// window and dictionary.
const smallContent = 32 << 10

// NewCodec returns a codec for the topics of table.
func NewCodec(table *topic.Table, config Config) *Codec {
	encoders := map[uint32]*sync.Pool{0: {}}
	for _, d := range dictionaries {
		encoders[d.id] = &sync.Pool{}
	}
	return &Codec{
		table: table, config: config,
		encoders: encoders, encodings: make(chan struct{}, maxEncodings),
		decoder: sync.OnceValues(func() (*zstd.Decoder, error) {
			options := []zstd.DOption{
				zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxMemory(uint64(config.maxReceive())), zstd.WithDecoderMaxWindow(uint64(max(config.maxReceive(), zstd.MinWindowSize))),
			}
			for _, d := range dictionaries {
				options = append(options, zstd.WithDecoderDictRaw(d.id, d.text()))
			}
			return zstd.NewReader(nil, options...)
		}),
		batches: sync.Pool{New: func() any { return new(make([]byte, 0, MaxBatch)) }},
	}
}

// Encode returns the bytes of m and its line in the table. Every peer can read them.
func (c *Codec) Encode(m message.Message) (topic.Entry, []byte, error) {
	return c.encode(m, 0, false)
}

// encode is Encode for a peer that reads a dictionary; 0: no dictionary. introduce tells the peer
// which ones this end reads.
func (c *Codec) encode(m message.Message, dictionary uint32, introduce bool) (topic.Entry, []byte, error) {
	e := &linkpb.Envelope{
		Id: uint64(m.Header.ID), Parent: uint64(m.Header.ParentID), Sync: m.Header.Sync,
		Source: string(m.Route.Source), Group: string(m.Route.Group),
		Namespace: m.Route.Resource.Namespace, Name: m.Route.Resource.Name,
	}
	if !m.Header.Time.IsZero() {
		e.UnixMillis = m.Header.Time.UnixMilli()
	}
	if introduce {
		e.Dictionaries = dictionaryIDs()
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
			if e.Payload, e.Compression, err = c.compress(e.Payload, dictionary); err != nil {
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
// broke the protocol.
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
	reads       uint32 // the best dictionary that the peer announces here; 0 without one
}

// open reads an envelope without its content.
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
	reads := best(e.Dictionaries)
	if e.Refusal != "" {
		m.Content = Refusal(e.Refusal)
		return sealed{message: m, reads: reads}, nil
	}
	if _, err := c.size(e.Payload, e.Compression); err != nil {
		return sealed{}, err
	}
	return sealed{m, e.Payload, e.Compression, reads}, nil
}

// checkEnvelope counts the bytes around the content, before it is read.
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

// content reads the content of an envelope.
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

func (c *Codec) compress(payload []byte, dictionary uint32) ([]byte, linkpb.Compression, error) {
	if c.config.CompressAbove < 0 || len(payload) < max(c.config.CompressAbove, 1) {
		return payload, linkpb.Compression_NONE, nil
	}
	if len(payload) > smallContent {
		dictionary = 0
	}
	pool := c.encoders[dictionary]
	c.encodings <- struct{}{}
	defer func() { <-c.encodings }()
	encoder, ok := pool.Get().(*zstd.Encoder)
	if !ok {
		var err error
		if encoder, err = zstd.NewWriter(nil, encoderOptions(dictionary)...); err != nil {
			return nil, 0, fmt.Errorf("making a compressor: %w", err)
		}
	}
	defer pool.Put(encoder)
	if small := encoder.EncodeAll(payload, make([]byte, 0, len(payload)/2)); len(small) < len(payload) {
		return small, linkpb.Compression_ZSTD, nil
	}
	return payload, linkpb.Compression_NONE, nil
}

func encoderOptions(dictionary uint32) []zstd.EOption {
	options := []zstd.EOption{
		zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithSingleSegment(true),
		zstd.WithEncoderCRC(false), // TLS has checked every byte
	}
	if d, ok := withID(dictionary); ok {
		// The default level has twice the tables with a dictionary, of 1.3 MB each, restores the
		// state that a message has changed in them, and finds hardly more.
		options = append(options, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(smallContent), zstd.WithEncoderDictRaw(d.id, d.text()))
	}
	return options
}

// size is how long the content will be, by its head.
func (c *Codec) size(payload []byte, how linkpb.Compression) (int, error) {
	size := uint64(len(payload))
	switch how {
	case linkpb.Compression_NONE:
	case linkpb.Compression_ZSTD:
		var h zstd.Header
		if err := h.Decode(payload); err != nil {
			return 0, &CloseError{Code: CloseProtocol, Reason: "content is not compressed as its header declares", Err: err}
		}
		if h.Skippable || !h.HasFCS {
			return 0, refuse(CloseProtocol, "compressed content does not state its size")
		}
		if _, ok := withID(h.DictionaryID); !ok && h.DictionaryID != 0 {
			return 0, refuse(CloseProtocol, "content is compressed with dictionary %d, which this end does not have", h.DictionaryID)
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
