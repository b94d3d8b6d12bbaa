// Package applog is a device's message with an application's logs, and the answer: JSON, by POST to
// Path.
//
// It owns the format and its bounds. It refuses a batch above them (Check). Values are
// never changed.
package applog

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The bounds of a batch.
const (
	MaxLines = 500
	MaxBytes = 32 << 10 // of text; one line may be longer than the rest of the bound
	MaxLine  = 64 << 10 // a runtime splits lines at 16 KiB
	MaxBatch = 512 << 10
)

// Batch is lines of one container, in their order. A container that was started again is another
// one: its restarts count.
type Batch struct {
	AppUID    string `json:"appUID"`
	Pod       string `json:"pod"`
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	Restart   int    `json:"restart"`
	// Dropped is how many lines in front of these were never sent: they were rotated away first.
	Dropped int64  `json:"dropped,omitempty"`
	Lines   []Line `json:"lines"`
}

// Stream names the container: a line is one of it, at its offset.
func (b *Batch) Stream() string { return fmt.Sprintf("%s/%s/%d", b.PodUID, b.Container, b.Restart) }

// Line is one line as the container runtime wrote it.
type Line struct {
	// End is the offset behind the line in all that the container has written. It grows from line
	// to line, over rotations too.
	End     int64     `json:"end"`
	Time    time.Time `json:"time"`
	Stderr  bool      `json:"stderr,omitempty"`
	Partial bool      `json:"partial,omitempty"` // the next line continues it
	Text    string    `json:"text"`
}

// Answer acknowledges the lines that the sink has.
type Answer struct {
	Through int64 `json:"through"`
}

// Check refuses batches above the bounds or out of order.
func (b *Batch) Check() error {
	if b.AppUID == "" || b.PodUID == "" || b.Container == "" || len(b.AppUID)+len(b.PodUID)+len(b.Container)+len(b.Pod) > 1024 || b.Restart < 0 || b.Dropped < 0 {
		return errors.New("a batch is of one container of one application")
	}
	if len(b.Lines) > MaxLines {
		return fmt.Errorf("%d lines, the bound is %d", len(b.Lines), MaxLines)
	}
	last := int64(-1)
	for i := range b.Lines {
		l := &b.Lines[i]
		if l.End <= last || len(l.Text) > MaxLine {
			return fmt.Errorf("line %d is out of order, or above %d bytes", i, MaxLine)
		}
		last = l.End
	}
	return nil
}

const (
	prefix = "/apis/skerry.io/v1alpha1/namespaces/"
	middle = "/edgeapps/"
	suffix = "/logs"
)

// Path is where the lines of an application are posted.
func Path(namespace, name string) string { return prefix + namespace + middle + name + suffix }

// Parse reads a Path.
func Parse(path string) (namespace, name string, ok bool) {
	rest, begins := strings.CutPrefix(path, prefix)
	rest, ends := strings.CutSuffix(rest, suffix)
	namespace, name, ok = strings.Cut(rest, middle)
	return namespace, name, ok && begins && ends && namespace != "" && name != "" && !strings.Contains(namespace+name, "/")
}
