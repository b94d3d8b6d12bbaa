// Package fleet says how the devices of a cluster are: who is linked, what is wrong, and what to do
// about it.
//
// It owns the rules and the words for that, and the annotation of a node's Lease in which the
// replica that has the link says what it knows of the session
// (docs/decisions/0104-the-fleet-is-in-the-leases.md). It refuses to ask anybody: all comes from
// objects that the cluster has anyway. What a device says of itself is cut to what fits a terminal.
// Its functions keep nothing and may be called by many goroutines at once.
package fleet

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SessionAnnotation of a node's Lease is a Session, as JSON.
const SessionAnnotation = "skerry.io/session"

// maxVersion bounds what is kept of a device's word for its version, in bytes.
const maxVersion = 64

// Session is what cloudcore knows of a node's link as it writes the node's Lease, and so at the
// time of its renewal.
type Session struct {
	Transport      string       `json:"transport,omitempty"`
	Since          *metav1.Time `json:"since,omitempty"`
	Version        string       `json:"version,omitempty"` // of edgecore
	CertificateEnd *metav1.Time `json:"certificateEnd,omitempty"`
	// Backlog is how many writes the device holds that kube-apiserver has not accepted, Oldest
	// since when the oldest of them waits.
	Backlog int          `json:"backlog,omitempty"`
	Oldest  *metav1.Time `json:"oldest,omitempty"`
}

// Annotation is the annotation's value.
func (s Session) Annotation() string {
	s.Version = Printable(s.Version, maxVersion)
	text, _ := json.Marshal(s) // strings, times and a number
	return string(text)
}

// SessionOf reads the annotation; false: there is none that can be read.
func SessionOf(annotations map[string]string) (Session, bool) {
	var s Session
	if err := json.Unmarshal([]byte(annotations[SessionAnnotation]), &s); err != nil {
		return Session{}, false
	}
	s.Version, s.Transport = Printable(s.Version, maxVersion), Printable(s.Transport, maxVersion)
	return s, true
}

// Printable is a text in one line without what a terminal would take for a command, of at most so
// many bytes.
func Printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069':
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:max(0, most-3)], "") + "..."
	}
	return text
}
