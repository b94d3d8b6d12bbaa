// Package history holds the actions and observations of a campaign's clients, and the rules that
// they must satisfy.
//
// It owns the records and does not know the system: Check is a pure function of a History. A
// Recorder may be used by any goroutine; a History does not change any more.
package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Cloud is the viewer that reads kube-apiserver itself; every other viewer is a node, which reads
// the API of its own device.
const Cloud = "cloud"

// A Kind is the kind of a Record.
type Kind string

const (
	// Put is a write of Value to an object, or its creation: by the cloud's clients for objects
	// that come down, by the node's for those that go up. A refused write is no record.
	Put Kind = "put"
	// Get is a read of Value through the device's own API.
	Get Kind = "get"
	// Seen is an object with Value in the stream of a watch, or in a list.
	Seen Kind = "seen"
	// Going is an object that is seen with a deletion time.
	Going Kind = "going"
	// Gone is an object that a watch reports as deleted, or that a list has no longer.
	Gone Kind = "gone"
	// Remove is a request of the cloud's clients to delete an object.
	Remove Kind = "remove"
	// Restore is etcd's data replaced by a copy: the copy was made at At, and kube-apiserver serves
	// it from End on.
	Restore Kind = "restore"
	// Damage is a bit of a device's store that was flipped while it was off. Events that had not
	// gone up may be lost with it, and statuses are written again by the kubelet; no pod may be.
	Damage Kind = "damage"
	// Fault is a fault, from At to End; Who names the broken part.
	Fault Kind = "fault"
	// Unanswered is an object that a running edgecore did not answer for, though it had
	// answered before.
	Unanswered Kind = "unanswered"
	// Missing is an object that a device had and has no longer, after a restart without a link and
	// without damage to it, or a while after such a cause has passed.
	Missing Kind = "missing"
	// Dropped is the end of a pod that a device has shown and taken back, to run the pod again. It
	// had Value; the device's value before it was Base.
	Dropped Kind = "dropped"
	// Ended is a pod that the cloud sees in a terminal phase. The pods of a campaign never end.
	Ended Kind = "ended"
	// Unready is a node of which Ready became another than True, without a fault of its own.
	Unready Kind = "unready"
	// Load is how many watches a cloudcore opened from At to End: Value.
	Load Kind = "load"
	// Final is an object as a viewer has it when the campaign is over.
	Final Kind = "final"
)

// A Record is one thing that was done or seen.
type Record struct {
	Kind Kind `json:"kind"`
	// At and End are the times since the campaign began at which a request was sent and answered.
	// An observation has one time.
	At  time.Duration `json:"at"`
	End time.Duration `json:"end,omitempty"`
	Who string        `json:"who"` // the viewer, or whose client it was

	Resource string `json:"resource,omitempty"`
	Name     string `json:"name,omitempty"` // with its namespace
	UID      string `json:"uid,omitempty"`
	About    string `json:"about,omitempty"` // of an event: the uid of what it is about
	Node     string `json:"node,omitempty"`  // that the object is for
	Value    int64  `json:"value,omitempty"` // a counter that its writer never sets back
	Base     int64  `json:"base,omitempty"`
	// Unknown is a request without an answer: it may have been done, also later. For an
	// observation: it was in a list, whose order has no meaning.
	Unknown bool `json:"unknown,omitempty"`
}

func (r Record) String() string {
	s := fmt.Sprintf("%9.3fs %-7s %-8s", r.At.Seconds(), r.Kind, r.Who)
	if r.Resource != "" {
		s += fmt.Sprintf(" %s %s uid %s value %d", r.Resource, r.Name, r.UID, r.Value)
	}
	if r.End != 0 && r.End != r.At {
		s += fmt.Sprintf(" until %.3fs", r.End.Seconds())
	}
	if r.Unknown {
		s += ", not answered"
	}
	return s
}

// object identifies an object over its life. Objects of a name that come one after the
// other differ.
type object struct{ resource, name, uid string }

func (r Record) object() object { return object{r.Resource, r.Name, r.UID} }

// A History is all records of a campaign in the order of their times.
type History []Record

// A Recorder collects records. It keeps all of them: a campaign of an hour has some
// hundred thousand.
type Recorder struct {
	began time.Time

	mu      sync.Mutex
	records []Record
}

// NewRecorder returns a recorder for a campaign that begins now.
func NewRecorder() *Recorder { return &Recorder{began: time.Now()} }

// Now is the time since the campaign began.
func (r *Recorder) Now() time.Duration { return time.Since(r.began) }

// Add adds a record; one without a time has that of now.
func (r *Recorder) Add(x Record) {
	if x.At == 0 {
		x.At = r.Now()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, x)
}

// History returns the records so far, in the order of their times.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := slices.Clone(r.records)
	slices.SortStableFunc(h, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	return h
}

// Write writes a line of JSON for each record.
func (h History) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	for _, r := range h {
		if err := e.Encode(r); err != nil {
			return fmt.Errorf("writing the history: %w", err)
		}
	}
	return nil
}

// Read reads the output of Write.
func Read(r io.Reader) (h History, err error) {
	for d := json.NewDecoder(r); ; {
		var x Record
		if err := d.Decode(&x); err == io.EOF {
			return h, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the history: %w", err)
		}
		h = append(h, x)
	}
}

// each gives the records of a kind, in order.
func (h History) each(kind Kind) (found []Record) {
	for _, r := range h {
		if r.Kind == kind {
			found = append(found, r)
		}
	}
	return found
}
