package applogs

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A container writes to 0.log as a runtime does, and its kubelet renames, packs and removes files.
type container struct {
	t   *testing.T
	dir string
	n   int // lines written
}

func (c *container) write(lines int) {
	c.t.Helper()
	f, err := os.OpenFile(filepath.Join(c.dir, "0.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	for range lines {
		fmt.Fprintf(f, "2026-01-01T00:00:%02d.%09dZ stdout F line %d\n", c.n/60%60, c.n, c.n)
		c.n++
	}
}

// rotate renames 0.log, and packs the file that was renamed before.
func (c *container) rotate(stamp string) {
	c.t.Helper()
	old, err := filepath.Glob(filepath.Join(c.dir, "0.log.*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range old {
		if filepath.Ext(path) == ".gz" {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(raw)
		if err := z.Close(); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(path+".gz", packed.Bytes(), 0o600); err != nil {
			c.t.Fatal(err)
		}
		c.remove(filepath.Base(path))
	}
	if err := os.Rename(filepath.Join(c.dir, "0.log"), filepath.Join(c.dir, "0.log."+stamp)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *container) remove(name string) {
	c.t.Helper()
	if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *container) stream(at Cursor) *stream {
	at.AppUID = "app"
	return &stream{dir: c.dir, restart: "0", podUID: "uid", container: "c", cursor: at, known: map[string]string{}}
}

// take sends all lines to a sink that takes all of them, and returns the texts and how many lines
// were reported as dropped.
func take(t *testing.T, s *stream) (texts []string, dropped int64) {
	t.Helper()
	if err := s.scan(); err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for {
		b, after, err := s.next(time.Now().Add(time.Hour)) // rotated files are settled
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return texts, dropped
		}
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
		for _, l := range b.Lines {
			if l.End <= last {
				t.Errorf("line %q ends at %d, after one that ends at %d", l.Text, l.End, last)
			}
			last = l.End
			texts = append(texts, l.Text)
		}
		dropped += b.Dropped
		s.cursor = after
	}
}

func numbered(from, to int) (lines []string) {
	for i := from; i < to; i++ {
		lines = append(lines, fmt.Sprintf("line %d", i))
	}
	return lines
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d lines %.200q, want %d %.200q", what, len(got), got, len(want), want)
	}
}

// No line is lost or sent twice over rotations, packing, and restarts with the cursor that
// was kept.
func TestRotations(t *testing.T) {
	c := &container{t: t, dir: t.TempDir()}
	s := c.stream(Cursor{})
	c.write(700) // more than a batch
	got, _ := take(t, s)
	same(t, "first", got, numbered(0, 700))
	c.write(10)
	c.rotate("20260101-000001")
	c.write(5)
	got, _ = take(t, s)
	same(t, "rotated", got, numbered(700, 715))
	// Away while it is rotated twice: its file is packed by then.
	kept := s.cursor
	c.write(3)
	c.rotate("20260101-000002")
	c.write(4)
	c.rotate("20260101-000003")
	c.write(5)
	s = c.stream(kept)
	got, dropped := take(t, s)
	same(t, "restarted", got, numbered(715, 727))
	if got, _ := take(t, s); len(got) > 0 || dropped != 0 {
		t.Errorf("%d lines twice, %d dropped", len(got), dropped)
	}
	// Half a line waits for its end.
	f, err := os.OpenFile(filepath.Join(c.dir, "0.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, "2026-01-01T00:00:00.1Z stderr F hal")
	if got, _ := take(t, s); len(got) > 0 {
		t.Errorf("half a line was sent: %q", got)
	}
	fmt.Fprintln(f, "f")
	f.Close()
	got, _ = take(t, s)
	same(t, "whole", got, []string{"half"})
}

// Lines that are rotated away before they were sent are counted, the oldest first, and reported
// once.
func TestBound(t *testing.T) {
	c := &container{t: t, dir: t.TempDir()}
	s := c.stream(Cursor{})
	c.write(10)
	take(t, s)
	look := func() {
		t.Helper()
		if err := s.scan(); err != nil {
			t.Fatal(err)
		}
	}
	c.write(7)
	look()
	c.rotate("20260101-000001")
	c.write(20)
	look()
	c.rotate("20260101-000002")
	c.write(3)
	look()
	c.remove("0.log.20260101-000001.gz") // 10 sent, 7 not
	c.rotate("20260101-000003")
	c.write(1)
	look() // it may only have been renamed
	look()
	c.remove("0.log.20260101-000002.gz") // 20
	look()
	got, dropped := take(t, s)
	same(t, "rest", got, numbered(37, 41))
	if dropped != 27 {
		t.Errorf("%d lines dropped, want 27", dropped)
	}
	if got, dropped := take(t, s); len(got) > 0 || dropped != 0 {
		t.Errorf("said twice: %q, %d", got, dropped)
	}
	// All files are removed: the unsent lines are reported without a line.
	c.write(2)
	look()
	s.gone()
	if b, _, err := s.next(time.Now()); err != nil || b == nil || b.Dropped != 2 || len(b.Lines) != 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

// While a batch is in flight files are created and deleted: their unsent lines are counted
// nevertheless, and lines in flight are not.
func TestCountedWhileABatchIsOnItsWay(t *testing.T) {
	c := &container{t: t, dir: t.TempDir()}
	s := c.stream(Cursor{})
	c.write(10)
	c.rotate("20260101-000001")
	c.write(10)
	if err := s.scan(); err != nil {
		t.Fatal(err)
	}
	b, after, err := s.next(time.Now())
	if err != nil || b == nil || len(b.Lines) != 10 {
		t.Fatalf("%+v, %v", b, err)
	}
	count := func() {
		t.Helper()
		if err := s.count(); err != nil {
			t.Fatal(err)
		}
	}
	c.write(5)
	count()
	c.rotate("20260101-000002") // 15
	c.write(7)
	count()
	c.remove("0.log.20260101-000001.gz") // under way
	c.rotate("20260101-000003")          // 7
	c.write(3)
	count()
	c.remove("0.log.20260101-000002.gz")
	c.rotate("20260101-000004")
	c.write(2)
	count()
	c.remove("0.log.20260101-000003.gz")
	s.cursor = after                 // the sink has it
	if err := s.scan(); err != nil { // it may only have been renamed
		t.Fatal(err)
	}
	got, dropped := take(t, s)
	same(t, "rest", got, numbered(32, 37))
	if dropped != 22 {
		t.Errorf("%d lines dropped, want 22", dropped)
	}
}

// A file that is not found because it is renamed in that moment is waited for.
func TestFileNotFoundForAMoment(t *testing.T) {
	c := &container{t: t, dir: t.TempDir()}
	s := c.stream(Cursor{})
	c.write(10)
	c.rotate("20260101-000001")
	c.write(10)
	c.rotate("20260101-000002")
	c.write(10)
	if err := s.scan(); err != nil {
		t.Fatal(err)
	}
	hidden, away := filepath.Join(c.dir, "0.log.20260101-000002"), filepath.Join(t.TempDir(), "file")
	if err := os.Rename(hidden, away); err != nil {
		t.Fatal(err)
	}
	got, dropped := take(t, s)
	same(t, "before the file", got, numbered(0, 10))
	if err := os.Rename(away, hidden); err != nil {
		t.Fatal(err)
	}
	more, dropped2 := take(t, s)
	same(t, "all", append(got, more...), numbered(0, 30))
	if dropped+dropped2 != 0 {
		t.Errorf("%d lines dropped", dropped+dropped2)
	}
}

// The file being sent is deleted, with lines that were counted: the scan that misses it ends no
// stream, and then they are dropped.
func TestAFileThatGoesEndsNothing(t *testing.T) {
	c := &container{t: t, dir: t.TempDir()}
	s := c.stream(Cursor{})
	look := func() {
		t.Helper()
		if err := s.scan(); err != nil {
			t.Fatal(err)
		}
		if s.over() {
			t.Fatal("it is over, with files there")
		}
	}
	c.write(10)
	got, _ := take(t, s)
	same(t, "at first", got, numbered(0, 10))
	c.write(20)
	look()
	c.rotate("20260101-000001")
	c.write(5)
	look()
	c.rotate("20260101-000002")
	c.write(5)
	c.remove("0.log.20260101-000001.gz")
	look()
	look()
	got, dropped := take(t, s)
	same(t, "the rest", got, numbered(30, 40))
	if dropped != 20 {
		t.Errorf("%d lines dropped, want 20", dropped)
	}
	for _, name := range []string{"0.log.20260101-000002", "0.log"} {
		c.remove(name)
	}
	for range 2 { // the first does not believe it
		if err := s.scan(); err != nil {
			t.Fatal(err)
		}
	}
	if !s.over() {
		t.Errorf("it is not over, and all files have gone; %d lines dropped", s.cursor.Dropped)
	}
}
