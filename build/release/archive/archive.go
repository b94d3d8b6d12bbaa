// Package archive writes tar files and lists of sums that depend on their input alone.
//
// It owns the things that make archives differ from machine to machine elsewhere: order, owners,
// times, gzip's header. Entries are written in the order of their names. It is stateless; its
// functions may be called from any goroutine.
package archive

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is a file of an archive.
type Entry struct {
	Name    string
	Mode    int64  // 0o755
	Content []byte // or, where it is nil, that of
	Path    string
}

// File is the entry of a file on disk: 0755 if any execute bit is set, else 0644.
func File(name, path string) (Entry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Name: name, Mode: 0o644, Path: path}
	if info.Mode()&0o111 != 0 {
		e.Mode = 0o755
	}
	return e, nil
}

// Write writes the entries as a tar; each belongs to root and has the time at.
func Write(out io.Writer, entries []Entry, at time.Time) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	w := tar.NewWriter(out)
	for _, e := range entries {
		if err := add(w, e, at); err != nil {
			return fmt.Errorf("archiving %s: %w", e.Name, err)
		}
	}
	return w.Close()
}

func add(w *tar.Writer, e Entry, at time.Time) error {
	h := &tar.Header{Name: e.Name, Typeflag: tar.TypeReg, Mode: e.Mode, Size: int64(len(e.Content)), ModTime: at.UTC(), Format: tar.FormatUSTAR}
	if e.Content != nil {
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(e.Content)
		return err
	}
	f, err := os.Open(e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// WriteFile is Write to a file, which appears whole or not at all; it is compressed if its
// name ends in gz.
func WriteFile(path string, entries []Entry, at time.Time) (err error) {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	buffered := bufio.NewWriterSize(f, 1<<20)
	var out io.Writer = buffered
	finish := func() error { return nil }
	if strings.HasSuffix(path, "gz") {
		z, err := gzip.NewWriterLevel(buffered, gzip.BestCompression) // its header has neither name nor time
		if err != nil {
			return err
		}
		out, finish = z, z.Close
	}
	if err := Write(out, entries, at); err != nil {
		return err
	}
	if err := errors.Join(finish(), buffered.Flush()); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Sums lists the SHA-256 of each file with its base name, in the order of the names, as
// sha256sum prints it.
func Sums(paths []string) ([]byte, error) {
	paths = slices.Clone(paths)
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	var out []byte
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("reading %s: %w", p, err)
		}
		out = fmt.Appendf(out, "%x  %s\n", h.Sum(nil), filepath.Base(p))
	}
	return out, nil
}
