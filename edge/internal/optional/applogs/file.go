package applogs

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/applog"
)

// settled is how long a rotated file must be unchanged before it counts as complete: the runtime
// writes to it until it is asked to open the new one.
const settled = 2 * time.Second

// file is one of a container's log files: the kubelet renames N.log to N.log.TIME, and packs all
// but the last of these (TIME.gz).
type file struct {
	path   string
	packed bool
	live   bool   // N.log itself
	id     string // identifies its first line, unchanged by a new name or packing
	size   int64  // on the disk
	mtime  time.Time
}

// list finds the files of a container's restart, the oldest first. One without a complete line is
// skipped.
func list(dir, restart string, known map[string]string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []file
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), restart+".log")
		if !ours || strings.HasSuffix(rest, ".tmp") || (rest != "" && rest[0] != '.') {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
			continue // removed since, or empty
		}
		f := file{path: filepath.Join(dir, e.Name()), packed: strings.HasSuffix(rest, ".gz"), live: rest == "", size: info.Size(), mtime: info.ModTime()}
		mark := fmt.Sprintf("%s %v", f.path, f.packed)
		if f.id = known[mark]; f.id == "" || f.live {
			if f.id, err = head(f); err != nil || f.id == "" {
				continue // half a line, or packed by halves
			}
			known[mark] = f.id
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b file) int {
		switch {
		case a.live != b.live && a.live:
			return 1
		case a.live != b.live:
			return -1
		}
		return strings.Compare(a.path, b.path) // by TIME
	})
	return slices.CompactFunc(all, func(a, b file) bool { return a.id == b.id }), nil // both forms exist while one is packed
}

func open(f file) (io.ReadCloser, error) {
	raw, err := os.Open(f.path)
	if err != nil || !f.packed {
		return raw, err
	}
	z, err := gzip.NewReader(raw)
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("reading %s: %w", f.path, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{z, raw}, nil
}

// head is the id of a file; "" where its first line is not whole yet.
func head(f file) (string, error) {
	r, err := open(f)
	if err != nil {
		return "", err
	}
	defer r.Close()
	return identify(r)
}

func identify(r io.Reader) (string, error) {
	const most = 4 << 10
	line, err := bufio.NewReaderSize(io.LimitReader(r, most), most).ReadBytes('\n')
	if err != nil && len(line) < most {
		return "", nil //nolint:nilerr // not whole
	}
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:16]), nil
}

// errMoved: the file of that name is another one by now. The next look finds both.
var errMoved = errors.New("the log was rotated while it was read")

// from opens a file at an offset of its content.
func from(f file, offset int64) (io.ReadCloser, error) {
	r, err := open(f)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errMoved
	}
	if err != nil {
		return nil, err
	}
	if s, ok := r.(io.Seeker); ok {
		var id string
		if id, err = identify(r); err == nil && id != f.id {
			err = errMoved
		}
		if err == nil {
			_, err = s.Seek(offset, io.SeekStart)
		}
	} else {
		_, err = io.CopyN(io.Discard, r, offset)
	}
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("reading %s at %d: %w", f.path, offset, err)
	}
	return r, nil
}

// tally counts the whole lines of a file from an offset on.
func tally(f file, offset int64) (bytesRead, lines int64, err error) {
	r, err := from(f, offset)
	if err != nil {
		return 0, 0, err
	}
	defer r.Close()
	buffer := make([]byte, 64<<10)
	var seen int64
	for {
		n, err := r.Read(buffer)
		if last := bytes.LastIndexByte(buffer[:n], '\n'); last >= 0 {
			lines += int64(bytes.Count(buffer[:n], []byte{'\n'}))
			bytesRead = seen + int64(last) + 1
		}
		seen += int64(n)
		if errors.Is(err, io.EOF) {
			return bytesRead, lines, nil
		}
		if err != nil {
			return bytesRead, lines, err
		}
	}
}

// read takes whole lines from an offset on, up to the bounds of a batch. base is the offset of the
// file's begin in the container's whole output.
func read(f file, base, offset int64) (lines []applog.Line, taken, count int64, err error) {
	r, err := from(f, offset)
	if err != nil {
		return nil, 0, 0, err
	}
	defer r.Close()
	b := bufio.NewReaderSize(r, 32<<10)
	for text := 0; count < applog.MaxLines && text < applog.MaxBytes; {
		raw, err := b.ReadBytes('\n')
		if err != nil {
			return lines, taken, count, nil //nolint:nilerr // half a line waits for the rest
		}
		taken += int64(len(raw))
		count++
		l := parse(strings.TrimSuffix(string(raw), "\n"))
		l.End = base + offset + taken
		text += len(l.Text)
		lines = append(lines, l)
	}
	return lines, taken, count, nil
}

// parse reads a line of the container runtime: TIME stdout|stderr P|F TEXT
// (https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md).
// Any other line is passed on unchanged.
func parse(raw string) applog.Line {
	stamp, rest, _ := strings.Cut(raw, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	stream, rest, ok := strings.Cut(rest, " ")
	tag, text, _ := strings.Cut(rest, " ")
	if err != nil || !ok || (stream != "stdout" && stream != "stderr") {
		return applog.Line{Text: bound(raw)}
	}
	return applog.Line{Time: at.UTC(), Stderr: stream == "stderr", Partial: strings.HasPrefix(tag, "P"), Text: bound(text)}
}

func bound(text string) string { return text[:min(len(text), applog.MaxLine)] }
