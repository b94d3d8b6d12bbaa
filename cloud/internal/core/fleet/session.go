// Package fleet computes the status of the devices of a cluster: their links, their problems, and
// how to fix those.
//
// It owns the rules and texts for that, and the annotation of a node's Lease in which the replica
// with the link stores the state of the session
// (docs/dev/decisions/0104-the-fleet-is-in-the-leases.md). It refuses to make requests: its input
// are objects that the cluster has anyway. Text from devices is shortened and stripped of control
// characters. Its functions keep no state and may be called by many goroutines at once.
package fleet

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/terminal"
)

// SessionAnnotation of a node's Lease is a Session, as JSON.
const SessionAnnotation = "skerry.io/session"

// maxVersion bounds the version that a device reports, in bytes.
const maxVersion = 64

// Session is the state of a node's link at the time of the Lease's renewal.
type Session struct {
	Transport      string       `json:"transport,omitempty"`
	Since          *metav1.Time `json:"since,omitempty"`
	Version        string       `json:"version,omitempty"` // of edgecore
	CertificateEnd *metav1.Time `json:"certificateEnd,omitempty"`
	// Backlog is the number of writes in the device's outbox, Oldest the time of the oldest of
	// them.
	Backlog int          `json:"backlog,omitempty"`
	Oldest  *metav1.Time `json:"oldest,omitempty"`
	// Traffic of the link since it came up.
	Traffic *Traffic `json:"traffic,omitempty"`
}

// Annotation is the annotation's value.
func (s Session) Annotation() string {
	s.Version = Printable(s.Version, maxVersion)
	text, _ := json.Marshal(s) // strings, times and a number
	return string(text)
}

// SessionOf reads the annotation; false if it is missing or invalid.
func SessionOf(annotations map[string]string) (Session, bool) {
	var s Session
	if err := json.Unmarshal([]byte(annotations[SessionAnnotation]), &s); err != nil {
		return Session{}, false
	}
	if s.Traffic.checked() != nil {
		s.Traffic = nil
	}
	s.Version, s.Transport = Printable(s.Version, maxVersion), Printable(s.Transport, maxVersion)
	return s, true
}

// Printable returns a text as one line without control and direction characters, of at most so many
// bytes.
func Printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case terminal.Controls(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:max(0, most-3)], "") + "..."
	}
	return text
}
