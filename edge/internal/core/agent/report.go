package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Reporter brings a node's entry in an object's status to the cloud, now or later; metamanager's
// outbox. When Report returns nil the entry is on the disk. The body is JSON; null removes the
// node's entry.
type Reporter interface {
	Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error
}

const (
	// reportsAtOnce is how many entries are written at once: one sync of the disk serves them.
	reportsAtOnce = 64
	// reportPause is the pause between two batches when all entries are repeated, so that they
	// don't crowd a thin link.
	reportPause = time.Second
)

// Reports are the entries of one run. There is one for each object; a newer one replaces an older
// one. An entry is sent when it is set and differs from the last one sent, or the object is another
// one of that name, and after Repeat. Their number is bounded by the objects.
type Reports struct {
	reporter Reporter

	mu      sync.Mutex
	doubted bool // the cloud may have lost the reports of earlier runs
	entries map[object.Ref]*entry
	due     map[object.Ref]*entry // those of entries that are to be sent: thousands may be idle
}

type entry struct {
	uid  types.UID
	body []byte    // nil: withdrawn
	sent time.Time // when it was handed over; zero: not yet
}

func newReports(reporter Reporter) *Reports {
	return &Reports{reporter: reporter, entries: map[object.Ref]*entry{}, due: map[object.Ref]*entry{}}
}

// Set makes v, which is written as JSON, the node's entry of an object.
func (p *Reports) Set(ref object.Ref, uid types.UID, v any) error {
	return p.set(ref, uid, v, true)
}

// Assume notes that an earlier run has reported v.
func (p *Reports) Assume(ref object.Ref, uid types.UID, v any) error {
	return p.set(ref, uid, v, false)
}

func (p *Reports) set(ref object.Ref, uid types.UID, v any, due bool) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the report of %s: %w", ref, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[ref]; e != nil && e.uid == uid && bytes.Equal(e.body, body) {
		return nil
	}
	e := &entry{uid: uid, body: body}
	p.entries[ref] = e
	if due || p.doubted {
		p.due[ref] = e
	} else {
		e.sent = time.Now()
		delete(p.due, ref)
	}
	return nil
}

// Withdraw removes this node's entry of an object; uid is the object's. It is dropped once that is
// sent.
func (p *Reports) Withdraw(ref object.Ref, uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[ref]; e == nil || e.body != nil || e.uid != uid {
		p.entries[ref] = &entry{uid: uid}
		p.due[ref] = p.entries[ref]
	}
}

// Drop forgets an entry without a word: of an object that is gone there is no status.
func (p *Reports) Drop(ref object.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.entries, ref)
	delete(p.due, ref)
}

// Repeat makes every entry due again, those too that an earlier run reported: the cloud has
// forgotten them.
func (p *Reports) Repeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubted = true
	maps.Copy(p.due, p.entries)
}

// Sent reports whether the last word on an object is in the outbox.
func (p *Reports) Sent(ref object.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, due := p.due[ref]
	return !due
}

// Flush passes the due entries to the reporter, bounded in number to keep one call short. The kit
// calls it after each Sync; a Sync that needs its entries on the disk calls it itself.
func (p *Reports) Flush(ctx context.Context) error { return p.flush(ctx) }

func (p *Reports) flush(ctx context.Context) error {
	type job struct {
		ref object.Ref
		entry
		of *entry
	}
	var jobs []job
	p.mu.Lock()
	for ref, e := range p.due {
		if !e.sent.IsZero() && len(jobs) >= reportsAtOnce { // repetitions wait for the next batch, news don't
			continue
		}
		jobs = append(jobs, job{ref, *e, e})
	}
	p.mu.Unlock()
	if len(jobs) == 0 || p.reporter == nil {
		return nil
	}
	var g errgroup.Group
	g.SetLimit(reportsAtOnce)
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		g.Go(func() error {
			body := j.body
			if body == nil {
				body = []byte("null")
			}
			if err := p.reporter.Report(ctx, j.ref, j.uid, body); err != nil {
				errs[i] = fmt.Errorf("reporting %s: %w", j.ref, err)
				return nil
			}
			p.done(j.ref, j.of)
			return nil
		})
	}
	_ = g.Wait() // each failure is in errs
	return errors.Join(firstOf(errs)...)
}

// firstOf keeps the first error: thousands that fail for one reason are one line of the log.
func firstOf(errs []error) []error {
	for _, err := range errs {
		if err != nil {
			return []error{err}
		}
	}
	return nil
}

func (p *Reports) done(ref object.Ref, of *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entries[ref] != of {
		return // replaced in the meantime
	}
	of.sent = time.Now()
	delete(p.due, ref)
	if of.body == nil {
		delete(p.entries, ref)
	}
}

// again returns when the next batch is due; err is the last one's error, whose delay the supervisor
// determines.
func (p *Reports) again(err error) time.Duration {
	if err == nil && p.reporter != nil && p.unsent() > 0 {
		return reportPause
	}
	return 0
}

func (p *Reports) unsent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.due)
}
