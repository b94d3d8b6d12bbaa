package applogs

import (
	"errors"
	"slices"
	"time"

	"github.com/skerry-io/skerry/common/applog"
)

// Cursor is how far a container's lines have been taken by the sink. It is kept over restarts.
type Cursor struct {
	App    string `json:"app"` // NAMESPACE/NAME
	AppUID string `json:"appUID"`
	Pod    string `json:"pod"`

	File   string `json:"file,omitempty"` // the id of the file that is being sent; "" before the first
	Base   int64  `json:"base"`           // the offset of its begin in the container's whole output
	Offset int64  `json:"offset"`         // how far it was sent
	Lines  int64  `json:"lines"`          // of it, that is
	// Dropped are lines that were rotated away before they were sent, and have not been
	// reported yet.
	Dropped int64 `json:"dropped,omitempty"`
}

// seen is the state of a file.
type seen struct {
	id    string
	bytes int64 // complete lines, as far as it was read
	lines int64
	size  int64 // on the disk when it was read last
}

// stream is the log of one start of one container. The agent's goroutine owns it.
type stream struct {
	dir, restart      string
	podUID, container string
	number            int

	cursor Cursor
	files  []file
	seen   []seen            // in the order of files, from the cursor's on; also deleted ones
	behind map[string]bool   // ids of existing files that were sent completely
	known  map[string]string // ids by path, so that a file's first line is read once
	absent bool              // the cursor's file was missing at the last scan: it may have been renamed during that
	ended  bool              // all files are deleted, and their unsent lines are counted
}

// over reports whether all of the container was reported. That no file was found at one look is no
// reason: the counts of removed files would be forgotten.
func (s *stream) over() bool { return s.ended && s.cursor.Dropped == 0 }

// scan lists the files, and counts lines: those of a file that is deleted before it was sent are
// dropped, and their number must be known then.
func (s *stream) scan() error {
	files, err := list(s.dir, s.restart, s.known)
	if err != nil {
		return err
	}
	s.files, s.ended = files, false
	there := func(id string) bool { return slices.ContainsFunc(files, func(f file) bool { return f.id == id }) }
	// Files are removed from the oldest on. Those before the cursor's file were sent.
	if s.cursor.File != "" && !there(s.cursor.File) {
		if !s.absent {
			s.absent, s.files = true, nil
			if err := s.tally(files); err != nil && !errors.Is(err, errMoved) {
				return err
			}
			return nil
		}
		s.lose(there)
	}
	s.absent = false
	if s.cursor.File == "" {
		if len(files) == 0 {
			s.ended = true
			return nil
		}
		s.cursor.File, s.cursor.Offset, s.cursor.Lines = files[0].id, 0, 0
	}
	if err := s.tally(files); errors.Is(err, errMoved) {
		s.files = nil
		return nil
	} else if err != nil {
		return err
	}
	s.pass()
	return nil
}

// pass forgets the files before the cursor's: they were sent.
func (s *stream) pass() {
	if at := slices.IndexFunc(s.seen, func(o seen) bool { return o.id == s.cursor.File }); at > 0 {
		s.seen = slices.Delete(s.seen, 0, at)
	}
}

// count notes how many lines there are while a batch is on its way, which may take as long as a
// silent link is believed to live: files may come and go in the meantime.
func (s *stream) count() error {
	files, err := list(s.dir, s.restart, s.known)
	if err != nil {
		return err
	}
	return s.tally(files)
}

// tally counts the lines of the files that are not sent yet. It keeps all that it has counted:
// only lose knows whether they were sent.
func (s *stream) tally(files []file) error {
	at := slices.IndexFunc(files, func(f file) bool { return f.id == s.cursor.File })
	behind := map[string]bool{}
	for i, f := range files {
		if i < at || at < 0 && s.behind[f.id] {
			behind[f.id] = true
		}
	}
	s.behind = behind
	after := len(s.seen) // a new file without one before it is the newest
	for _, f := range files {
		if behind[f.id] {
			continue
		}
		i := slices.IndexFunc(s.seen, func(o seen) bool { return o.id == f.id })
		if i < 0 {
			i = after
			s.seen = slices.Insert(s.seen, i, seen{id: f.id})
		}
		after = i + 1
		is := &s.seen[i]
		if is.size == f.size && is.bytes > 0 {
			continue
		}
		n, lines, err := tally(f, is.bytes)
		if err != nil {
			return err
		}
		is.bytes, is.lines, is.size = is.bytes+n, is.lines+lines, f.size
	}
	return nil
}

// lose moves the cursor behind the removed files, and counts their unsent lines.
func (s *stream) lose(there func(id string) bool) {
	s.pass()
	end := s.cursor.Base + s.cursor.Offset
	sent := s.cursor.Lines
	gone := 0
	for _, o := range s.seen {
		if there(o.id) {
			break
		}
		gone++
		s.cursor.Dropped += max(0, o.lines-sent)
		sent = 0
		if o.id == s.cursor.File {
			end = max(end, s.cursor.Base+o.bytes)
		} else {
			end += o.bytes
		}
	}
	s.seen = slices.Delete(s.seen, 0, gone)
	s.cursor.File, s.cursor.Base, s.cursor.Offset, s.cursor.Lines = "", end, 0, 0
}

// next is the next batch, and the cursor once the sink has it; nil if there are no lines to send.
func (s *stream) next(now time.Time) (*applog.Batch, Cursor, error) {
	after := s.cursor
	for {
		at := slices.IndexFunc(s.files, func(f file) bool { return f.id == after.File })
		if at < 0 {
			break
		}
		f := s.files[at]
		lines, taken, count, err := read(f, after.Base, after.Offset)
		if errors.Is(err, errMoved) {
			break
		}
		if err != nil {
			return nil, after, err
		}
		if len(lines) > 0 {
			after.Offset += taken
			after.Lines += count
			after.Dropped = 0
			return s.batch(lines), after, nil
		}
		if f.live || at+1 >= len(s.files) || now.Sub(f.mtime) < settled || s.between(f.id, s.files[at+1].id) {
			break
		}
		after.File, after.Base, after.Offset, after.Lines = s.files[at+1].id, after.Base+after.Offset, 0, 0
	}
	s.cursor = after // behind files that are complete
	if after.Dropped == 0 {
		return nil, after, nil
	}
	after.Dropped = 0
	return s.batch(nil), after, nil
}

// between reports whether there is a file between two that was not found at the last look: one that
// was being renamed or packed in that moment.
func (s *stream) between(id, next string) bool {
	at := slices.IndexFunc(s.seen, func(o seen) bool { return o.id == id })
	return at >= 0 && at+1 < len(s.seen) && s.seen[at+1].id != next
}

func (s *stream) batch(lines []applog.Line) *applog.Batch {
	return &applog.Batch{
		AppUID: s.cursor.AppUID, Pod: s.cursor.Pod, PodUID: s.podUID, Container: s.container, Restart: s.number, Dropped: s.cursor.Dropped, Lines: lines,
	}
}

// gone counts the unsent lines of a container whose files were all removed.
func (s *stream) gone() {
	s.lose(func(string) bool { return false })
	s.files, s.seen, s.ended = nil, nil, true
}
