// Package sharing passes programs of edgecore between the devices of a site, so that a version
// comes over a thin link once and not once for each device.
//
// It owns the requests for a program's bytes and their answers, over a connection that package
// contact has authenticated; which programs this device has for others; and how much of this
// device's network, time and bytes they get. It judges no program: who asks compares the bytes with
// the digest that was signed. It refuses requests and answers above its bounds: a member may be a
// stolen device.
//
// A Server answers each connection in a goroutine of its caller. A Client may be used by many
// goroutines, each reader of it by one.
package sharing

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// Conn is a connection with a device of the site: a *contact.Stream.
type Conn interface {
	io.ReadWriteCloser
	SetReadDeadline(at time.Time) error
	SetWriteDeadline(at time.Time) error
}

const (
	// maxChunk bounds the bytes of an answer.
	maxChunk    = 1 << 20
	requestSize = digestSize + 8 + 4
	answerSize  = 1 + 8 + 4
	digestSize  = 32
)

var errBounds = errors.New("above the bounds")

// request asks for bytes of a program; without bytes, whether the device has it.
type request struct {
	digest [digestSize]byte // SHA-256 of the program
	offset uint64
	length uint32
}

func (r request) append(b []byte) []byte {
	b = append(b, r.digest[:]...)
	b = binary.BigEndian.AppendUint64(b, r.offset)
	return binary.BigEndian.AppendUint32(b, r.length)
}

// readRequest reads one whose bytes any member may have sent.
func readRequest(from io.Reader) (r request, err error) {
	var b [requestSize]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return r, err
	}
	copy(r.digest[:], b[:])
	r.offset = binary.BigEndian.Uint64(b[digestSize:])
	if r.length = binary.BigEndian.Uint32(b[digestSize+8:]); r.length > maxChunk || r.offset > artefact.MaxSize {
		return r, fmt.Errorf("a request for %d bytes from %d on: %w", r.length, r.offset, errBounds)
	}
	return r, nil
}

// code is the kind of an answer. A Client treats a kind that it does not know as notHere.
type code byte

const (
	hasIt   code = iota // bytes follow
	notHere             // the device does not have the program
	busy                // it has given enough for now
)

// answer is in front of its bytes.
type answer struct {
	code   code
	size   uint64 // of the program
	length uint32 // of the bytes that follow
}

func (a answer) append(b []byte) []byte {
	b = append(b, byte(a.code))
	b = binary.BigEndian.AppendUint64(b, a.size)
	return binary.BigEndian.AppendUint32(b, a.length)
}

// readAnswer reads the answer to a request for a program of that size. One that is not exactly of
// the bytes asked for is refused before they are read.
func readAnswer(from io.Reader, to request, size int64) (a answer, err error) {
	var b [answerSize]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return a, err
	}
	a = answer{code(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint32(b[9:])}
	want := uint32(0)
	if a.code == hasIt {
		if a.size != uint64(size) {
			return a, fmt.Errorf("a program of %d bytes, not of %d: %w", a.size, size, errBounds)
		}
		want = min(to.length, uint32(min(maxChunk, max(0, size-int64(to.offset)))))
	}
	if a.length != want {
		return a, fmt.Errorf("an answer of %d bytes, not of %d: %w", a.length, want, errBounds)
	}
	return a, nil
}

// parse reads a digest as metadata have it: "sha256:" and hexadecimal digits.
func parse(digest string) (d [digestSize]byte, err error) {
	text, ok := strings.CutPrefix(digest, "sha256:")
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != digestSize {
		return d, fmt.Errorf("%.80q is no digest", digest)
	}
	return [digestSize]byte(raw), nil
}

func text(digest [digestSize]byte) string { return "sha256:" + hex.EncodeToString(digest[:]) }
