// Package flightrecorder keeps the history of this device, with causes: boots, starts and ends of
// edgecore, changes of the link, ends of containers, evictions, operations, and the kubelet's
// warnings, each with its time and its cause. It is read when the device is back.
//
// It owns the files of the recorder: text, one record in JSON a line, in segments of which the
// oldest are removed (MaxBytes). A record is in the kernel when Add returns, so it outlives a
// kill -9; it is on the disk within syncAfter, so it outlives a power cut. Idle, it
// neither writes nor syncs. It refuses more than floodRate records a second for
// long, and counts those. It keeps no Secret: names, reasons and messages of Events alone.
// A Recorder may be used by many goroutines at once; Read works while one runs.
package flightrecorder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

// Kind is the subject of a record.
type Kind string

// The kinds.
const (
	Boot      Kind = "Boot"      // the device booted; the cause is why the boot before ended
	Start     Kind = "Start"     // edgecore started; the cause is why the run before ended
	Stop      Kind = "Stop"      // edgecore ended in order
	Shutdown  Kind = "Shutdown"  // the device was asked to shut down or reboot
	Link      Kind = "Link"      // the link to the cloud opened or ended
	Container Kind = "Container" // a container ended, and may have been started again
	OOM       Kind = "OOM"       // killed by the kernel's OOM killer
	Eviction  Kind = "Eviction"  // the kubelet ended a pod
	Operation Kind = "Operation" // progress of a NodeOperation or a drain
	Event     Kind = "Event"     // other warnings of the kubelet or an agent
	Dropped   Kind = "Dropped"   // records were refused
)

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{Boot, Start, Stop, Shutdown, Link, Container, OOM, Eviction, Operation, Event, Dropped}
}

// Record is one thing that happened.
type Record struct {
	Time time.Time `json:"time"` // by the device's clock, which may have been wrong
	// Up is for how long the device had run, in seconds: it orders the records of a boot where the
	// clock was set.
	Up     int64  `json:"up"`
	Boot   string `json:"boot"` // the kernel's boot ID
	Kind   Kind   `json:"kind"`
	Object string `json:"object,omitempty"` // NAMESPACE/POD, NAMESPACE/POD/CONTAINER, or the name of something else
	Reason string `json:"reason,omitempty"`
	Cause  string `json:"cause,omitempty"`
	// ID is the same for two records of the same occurrence: a new process that sees it again
	// does not record it again.
	ID  string `json:"id,omitempty"`
	PID int    `json:"pid,omitempty"`
}

const (
	// MaxBytes bounds the files: segments of segmentBytes each.
	MaxBytes     = segments * segmentBytes
	segments     = 8
	segmentBytes = 2 << 20
	// maxText bounds each text of a record, in bytes.
	maxText = 1 << 10
	// syncAfter is for how long a record may be in the page cache alone.
	syncAfter = 2 * time.Second
	// floodRate and floodBurst bound the records of a restless device.
	floodRate, floodBurst = 2, 500
	suffix                = ".jsonl"
)

// Recorder writes records.
type Recorder struct {
	dir   string // set by Open, never changed
	boot  string
	dirty chan struct{} // buffer of one: there are unsynced records

	mu      sync.Mutex
	file    *os.File // the newest segment; nil: it could not be opened
	number  int      // of it
	size    int
	cut     bool // the last line of file is not whole
	limit   *rate.Limiter
	dropped int
	seen    map[string]struct{} // IDs in the two newest segments at Open, and those since
	failed  bool                // the last write failed: it is logged once
}

// Open opens the recorder in a directory, which it makes. If it can't write, as on a full disk, Add
// retries.
func Open(dir, boot string) (*Recorder, error) {
	r := &Recorder{dir: dir, boot: boot, dirty: make(chan struct{}, 1), limit: rate.NewLimiter(floodRate, floodBurst), seen: map[string]struct{}{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, fmt.Errorf("making the flight recorder's directory: %w", err)
	}
	numbers, err := numbersIn(dir)
	if err != nil {
		return r, err
	}
	for _, n := range numbers[max(0, len(numbers)-2):] {
		records, err := readSegment(r.path(n))
		if err != nil {
			return r, err
		}
		for _, rec := range records {
			if rec.ID != "" {
				r.seen[rec.ID] = struct{}{}
			}
		}
	}
	if len(numbers) > 0 {
		r.number = numbers[len(numbers)-1]
	}
	return r, r.reopen()
}

func (r *Recorder) path(number int) string {
	return filepath.Join(r.dir, fmt.Sprintf("%08d%s", number, suffix))
}

// reopen opens the newest segment, whose last line may be half of one. The lock is held, or nobody
// else has the recorder.
func (r *Recorder) reopen() error {
	f, err := os.OpenFile(r.path(r.number), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the flight recorder: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	r.file, r.size, r.cut = f, int(info.Size()), false
	if r.size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] != '\n' {
			r.cut = true
		}
	}
	return nil
}

// Add appends a record. Boot, Time and Up are filled in if unset. A record with a known ID is
// skipped. Errors are logged, once: the device does not wait for its records.
func (r *Recorder) Add(ctx context.Context, rec Record) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.ID != "" {
		if _, known := r.seen[rec.ID]; known {
			return
		}
	}
	if !r.limit.Allow() {
		r.dropped++
		return
	}
	if r.dropped > 0 {
		lost := Record{Kind: Dropped, Reason: "Flood", Cause: fmt.Sprintf("%d records came faster than %d a second", r.dropped, floodRate)}
		if r.write(r.filled(lost)) == nil {
			r.dropped = 0
		}
	}
	err := r.write(r.filled(rec))
	if err != nil && !r.failed {
		klog.FromContext(ctx).Error(err, "Failed to write to the flight recorder; records are lost until there is disk space", "directory", r.dir)
	}
	r.failed = err != nil
	if err == nil && rec.ID != "" {
		if len(r.seen) >= maxSeen {
			clear(r.seen) // at worst a record is written twice
		}
		r.seen[rec.ID] = struct{}{}
	}
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

// maxSeen bounds the IDs that are kept in memory.
const maxSeen = 5000

func (r *Recorder) filled(rec Record) Record {
	if rec.Time.IsZero() {
		rec.Time = time.Now()
	}
	rec.Time = rec.Time.UTC().Truncate(time.Millisecond)
	if rec.Up == 0 {
		rec.Up = int64(uptime().Seconds())
	}
	rec.Boot = r.boot
	for _, text := range []*string{&rec.Object, &rec.Reason, &rec.Cause} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), maxText)], "")
	}
	return rec
}

func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// write appends a record. The lock is held.
func (r *Recorder) write(rec Record) error {
	line, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if r.file != nil && r.size+len(line) > segmentBytes {
		err := errors.Join(r.file.Sync(), r.file.Close())
		r.file = nil
		r.number++
		if err != nil {
			return err
		}
		r.removeOldest()
	}
	if r.file == nil {
		if err := errors.Join(os.MkdirAll(r.dir, 0o700), r.reopen()); err != nil {
			return err
		}
	}
	if r.cut {
		line = append([]byte{'\n'}, line...)
	}
	n, err := r.file.Write(line)
	r.size += n
	r.cut = err != nil && n > 0 || r.cut && n == 0
	return err
}

// removeOldest makes room for one more segment.
func (r *Recorder) removeOldest() {
	numbers, err := numbersIn(r.dir)
	if err != nil {
		return // retried with the next segment
	}
	for len(numbers) >= segments {
		_ = os.Remove(r.path(numbers[0]))
		numbers = numbers[1:]
	}
}

// Sync brings the records to the disk.
func (r *Recorder) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	return r.file.Sync()
}

// SyncLoop syncs syncAfter a record, until ctx ends.
func (r *Recorder) SyncLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.dirty:
		}
		select {
		case <-ctx.Done():
		case <-time.After(syncAfter):
		}
		_ = r.Sync() // a full disk has been logged by Add
	}
}

// Close ends the recorder; its records are on the disk.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := errors.Join(r.file.Sync(), r.file.Close())
	r.file = nil
	return err
}

// Read returns the records in a directory, the oldest first. Lines that a power cut or a damaged
// disk has left half are passed over. fs.ErrNotExist: there is no recorder.
func Read(dir string) (all []Record, err error) {
	numbers, err := numbersIn(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		records, err := readSegment(filepath.Join(dir, fmt.Sprintf("%08d%s", n, suffix)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the oldest may go while it is read
			return all, err
		}
		all = append(all, records...)
	}
	return all, nil
}

func readSegment(path string) (all []Record, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the flight recorder: %w", err)
	}
	return parse(data), nil
}

// parse reads the lines of a segment.
func parse(data []byte) (all []Record) {
	for line := range bytes.Lines(data) {
		var rec Record
		if json.Unmarshal(line, &rec) == nil && slices.Contains(Kinds(), rec.Kind) {
			all = append(all, rec)
		}
	}
	return all
}

// numbersIn are the numbers of the segments in a directory, in order.
func numbersIn(dir string) (numbers []int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the flight recorder: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if n, err := strconv.Atoi(name); ok && err == nil && n >= 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// ReadRaw returns the lines of the newest segments, the oldest first.
func ReadRaw(dir string) (raw []byte, err error) {
	numbers, err := numbersIn(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range numbers[max(0, len(numbers)-2):] {
		part, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%08d%s", n, suffix)))
		if err != nil {
			return raw, fmt.Errorf("reading the flight recorder: %w", err)
		}
		raw = append(raw, part...)
	}
	return raw, nil
}

// Newest returns the newest records, the oldest of them first: at most so many, of at most so many
// bytes.
func Newest(dir string, most, size int) ([]json.RawMessage, error) {
	raw, err := ReadRaw(dir)
	if err != nil {
		return nil, err
	}
	all := []json.RawMessage{}
	for len(raw) > 0 && len(all) < most {
		at := bytes.LastIndexByte(bytes.TrimSuffix(raw, []byte("\n")), '\n') + 1
		line := bytes.TrimSpace(raw[at:])
		raw = raw[:at]
		if len(parse(line)) == 0 {
			continue
		}
		if size -= len(line) + 1; size < 0 {
			break
		}
		all = append(all, line)
	}
	slices.Reverse(all)
	return all, nil
}
