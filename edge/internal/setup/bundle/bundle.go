// Package bundle packs the facts that support needs of a device into one archive: status,
// configuration, logs, Events, the flight recorder and the kernel's network, without a secret.
//
// It owns the form of the archive (a .tar.gz), its bounds, and the removal of secrets: the values
// of Secrets and credentials anywhere, texts like credentials, and the values of configuration
// fields that are named like one. It refuses no file that fails: the error is in the archive, in
// place of it. It only reads the device. Write may be called by many goroutines at once; a Scrubber
// is immutable.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"
)

// File is one of the archive.
type File struct {
	Name string
	// Read returns the content, or as much of its end as max bytes.
	Read func(ctx context.Context, max int) ([]byte, error)
	// YAML has the values of fields that are named like a credential taken out too.
	YAML bool
}

// Text returns a file with the given content.
func Text(name string, content []byte) File {
	return File{Name: name, Read: func(_ context.Context, most int) ([]byte, error) { return tail(content, most), nil }}
}

// tail is the end of a text, from a line's beginning on.
func tail(content []byte, most int) []byte {
	if len(content) <= most {
		return content
	}
	content = content[len(content)-most:]
	if i := bytes.IndexByte(content, '\n'); i >= 0 && i < len(content)-1 {
		content = content[i+1:]
	}
	return content
}

const (
	// MaxFile bounds a file of an archive that is made on the device, MaxFileOverLink of one sent
	// over the link; before they are compressed, in bytes.
	MaxFile         = 4 << 20
	MaxFileOverLink = 512 << 10
	// fileTimeout bounds the reading of one: a program that hangs costs its own file.
	fileTimeout = 15 * time.Second
)

// Write packs files below a directory of the archive. most bounds each, in bytes.
func Write(ctx context.Context, w io.Writer, dir string, files []File, scrub *Scrubber, most int, now time.Time) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, f := range files {
		content, err := read(ctx, f, most)
		if err := ctx.Err(); err != nil {
			return err
		}
		name := f.Name
		if err != nil {
			content = append(content, ("\n(" + err.Error() + ")\n")...)
			name += ".failed"
		}
		if f.YAML {
			content = withoutCredentials(content)
		}
		content = scrub.Scrub(content)
		header := &tar.Header{Name: path.Join(dir, name), Mode: 0o600, Size: int64(len(content)), ModTime: now, Typeflag: tar.TypeReg}
		if err := t.WriteHeader(header); err != nil {
			return fmt.Errorf("writing the bundle: %w", err)
		}
		if _, err := t.Write(content); err != nil {
			return fmt.Errorf("writing the bundle: %w", err)
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	return nil
}

func read(ctx context.Context, f File, most int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	content, err := f.Read(ctx, most)
	return tail(content, most), err
}
