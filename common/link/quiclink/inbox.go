package quiclink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// accepted is the carrier of a connection that was accepted. It has no goroutine while no data
// comes, where Serve has one for each stream and one for the next of them.
type accepted struct {
	*carrier
	in *inbox
}

func (a accepted) Attach(sink link.Sink, ended func(error)) { a.in.attach(a.conn, sink, ended) }

// inbox has the received data of a connection's streams. The library has no call for that, but it
// tells a recorder of events of each packet, when it has handled its frames: data read then is
// there. No event is recorded.
type inbox struct {
	mu      sync.Mutex
	conn    *quic.Conn // with sink, set by attach
	sink    link.Sink
	ended   bool
	readers sync.WaitGroup // Add only with mu held and before ended is set
	streams [topic.Classes]incoming

	accepting sync.Mutex // held while the library is asked for streams, which come in order
	accepted  int
}

// incoming is one stream. Its first three fields are guarded by the inbox's mu.
type incoming struct {
	come    int64 // up to where bytes have come, perhaps with gaps
	over    bool  // the peer has ended or reset it
	reading bool  // a goroutine reads it, which owns the rest; or it will never be read

	taken  int64               // how much has been read
	stream *quic.ReceiveStream // set by accept
	next   func() error        // with end, of Sink.Begin
	end    func(error)
}

var _ link.Attacher = accepted{}

// AddProducer implements qlogwriter.Trace.
func (i *inbox) AddProducer() qlogwriter.Recorder { return i }

// Close implements qlogwriter.Recorder.
func (i *inbox) Close() error { return nil }

// RecordEvent implements qlogwriter.Recorder.
func (i *inbox) RecordEvent(e qlogwriter.Event) {
	p, ok := e.(qlog.PacketReceived)
	if !ok {
		return
	}
	for _, f := range p.Frames {
		switch f := f.Frame.(type) {
		case *qlog.StreamFrame:
			i.came(f.StreamID, f.Offset+f.Length, f.Fin)
		case *qlog.ResetStreamFrame:
			i.came(f.StreamID, 0, true)
		}
	}
}

// came notes that bytes of a stream have come, or its end. Streams that no link opens are the
// library's to refuse.
func (i *inbox) came(id quic.StreamID, come int64, over bool) {
	const kind, clientUni = 4, 2 // RFC 9000 section 2.1: the two low bits of a stream's number
	n := int(id / kind)
	if id%kind != clientUni || n >= len(i.streams) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	s := &i.streams[n]
	s.come, s.over = max(s.come, come), s.over || over
	i.wake(n)
}

// wake starts the reader of a stream if there is something to read and it does not run. mu is held.
func (i *inbox) wake(n int) {
	s := &i.streams[n]
	if s.reading || !s.more() || i.sink == nil || i.ended {
		return
	}
	s.reading = true
	i.readers.Add(1)
	go i.read(n)
}

// attach begins to read. Something may have come already.
func (i *inbox) attach(conn *quic.Conn, sink link.Sink, ended func(error)) {
	i.mu.Lock()
	i.conn, i.sink = conn, sink
	for n := range i.streams {
		i.wake(n)
	}
	i.mu.Unlock()
	context.AfterFunc(conn.Context(), func() {
		err := readError(context.Cause(conn.Context()))
		sink.End(err) // a reader may be waiting for quota instead of for the connection
		i.mu.Lock()
		i.ended = true
		i.mu.Unlock()
		i.readers.Wait()
		for n := range i.streams {
			if end := i.streams[n].end; end != nil {
				end(err)
			}
		}
		ended(err)
	})
}

// read reads all received data of a stream. Of a message that has begun it waits
// for the rest.
func (i *inbox) read(n int) {
	defer i.readers.Done()
	s := &i.streams[n]
	if s.next == nil {
		if err := i.accept(n); err != nil {
			i.sink.End(readError(err))
			return
		}
		s.next, s.end = i.sink.Begin(s)
	}
	for {
		err := s.next()
		if err == nil && !i.left(s) {
			if err = s.release(); err == nil && i.rest(s) {
				return
			}
		}
		if err != nil {
			s.end(err)
			s.end = nil
			return
		}
	}
}

// accept takes the streams up to n, all of which the peer has opened with n.
func (i *inbox) accept(n int) error {
	i.accepting.Lock()
	defer i.accepting.Unlock()
	for ; i.accepted <= n; i.accepted++ {
		s, err := i.conn.AcceptUniStream(context.Background()) // ends with the connection
		if err != nil {
			return err
		}
		i.streams[i.accepted].stream = s
	}
	return nil
}

func (s *incoming) more() bool { return s.taken < s.come || s.over }

func (i *inbox) left(s *incoming) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return s.more()
}

// rest lets the reader of a stream end, unless there is something to read.
func (i *inbox) rest(s *incoming) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	s.reading = s.more()
	return !s.reading
}

// Read counts.
func (s *incoming) Read(b []byte) (int, error) {
	n, err := stream{s.stream}.Read(b)
	s.taken += int64(n)
	return n, err
}

// release gives the buffer of the last packet that was read back to the library, which does so
// when it looks for the next. If the link has ended, the next read returns the reason.
func (s *incoming) release() error {
	_ = s.stream.SetReadDeadline(time.Now())
	n, _ := s.stream.Read(make([]byte, 1))
	_ = s.stream.SetReadDeadline(time.Time{})
	if n != 0 {
		return errors.New("quic: bytes came after the deadline")
	}
	return nil
}
