package link

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/skerry-io/skerry/common/topic"
)

// Traits describe a transport to the core.
type Traits struct {
	// Lanes: every class has an ordered stream of its own. Otherwise all classes share one.
	Lanes bool
	// Batch is how many bytes one Write may carry, at most MaxBatch. On a shared stream no message
	// passes those already in a batch: a small one keeps heartbeats quick on a thin link.
	Batch int
	// Dialed: this end opened the link.
	Dialed bool
	// PeerIdle is the IdleTimeout of the peer, and asks for Keepalive calls; 0: the transport sees
	// to its own keepalive.
	PeerIdle time.Duration
}

// Carrier moves frames for a Conn. Start owns it: it calls Serve once, Write at most once at a time
// for each class (with Keepalive, at most once at a time where there are no lanes), Stop once, and
// Close once at the end.
type Carrier interface {
	Traits() Traits
	// Serve hands each incoming stream of frames to sink.Read, as whose errors it passes a
	// *CloseError if the peer gave a reason, else the network's error. It returns when the link has
	// ended. A carrier with lanes may call Read for several streams at once.
	Serve(sink Sink) error
	// Write sends whole frames of a class. It fails when not one byte could be written for
	// IdleTimeout.
	Write(class topic.Class, frames []byte) error
	// Keepalive makes the peer receive something from this end.
	Keepalive() error
	// LastHeard is when the peer's last bytes came, as far as the carrier can tell.
	LastHeard() time.Time
	// Stop makes Serve and Write return within CloseTimeout. It doesn't block.
	Stop(why *CloseError)
	// Close is called when Serve has returned and no Write runs. It sends the peer the reason,
	// unless it was the peer that ended the link, and frees everything.
	Close(why *CloseError)
}

// Attacher is a Carrier that is called when something has come, and so needs no goroutine that
// waits for it.
type Attacher interface {
	Carrier
	// Attach is called once, instead of Serve, and does not block. When the link has ended and no
	// call of sink runs, it calls ended with the error that Serve would have returned, once, in a
	// goroutine that may block.
	Attach(sink Sink, ended func(error))
}

// Sink is the core as a carrier calls it.
type Sink interface {
	// Read serves one stream until it fails, and ends the link then.
	Read(io.Reader) error
	// Begin is Read for a carrier that can wait for a stream without reading it: next reads one
	// message, and its error must be given to end, which is called once. A goroutine that has
	// read a message keeps a stack of 8 to 16 KiB while it waits for the next; one that only
	// waits has 4 KiB.
	Begin(io.Reader) (next func() error, end func(error))
	// Alive reports a received keepalive.
	Alive()
	// End reports that the link has ended, for waits on other channels.
	End(err error)
}

// refuse makes the error of an end that closes the link.
func refuse(code CloseCode, format string, args ...any) *CloseError {
	return &CloseError{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// shorten makes a reason fit a websocket's close frame: 125 bytes with the code, UTF-8 (RFC 6455
// section 5.5.1).
func shorten(reason string) string { return cut(reason, 123) }

// cut makes a text valid UTF-8 of at most so many bytes.
func cut(reason string, most int) string {
	if reason = strings.ToValidUTF8(reason, "?"); len(reason) <= most {
		return reason
	}
	reason = reason[:most]
	for !utf8.ValidString(reason) {
		reason = reason[:len(reason)-1]
	}
	return reason
}

// closeError turns an error that ended a link into the CloseError that all callers get.
func closeError(err error) *CloseError {
	if e, ok := errors.AsType[*CloseError](err); ok {
		return e
	}
	var timeout interface{ Timeout() bool }
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return &CloseError{Code: CloseTimeout, Reason: "the peer was silent for too long", Err: err}
	}
	if err == nil {
		err = io.EOF
	}
	return &CloseError{Code: CloseNetwork, Reason: "the network ended the link", Err: err}
}
