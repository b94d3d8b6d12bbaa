package artefact

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/theupdateframework/go-tuf/v2/metadata"
)

// StreamTarget is how a stream of the link for artefacts is asked for: this, the file's name, a
// slash, and the offset. The same word is in cloud/internal/access/artefacts.
const StreamTarget = "artefact/"

// NotThere is how the refusal of such a stream begins if there is no such file.
const NotThere = "no artefact "

// Link is the repository that the cloud has, over the link.
type Link struct {
	// Dial asks the cloud for a stream.
	Dial func(ctx context.Context, target string) (net.Conn, error)
}

// Open implements Source.
func (l Link) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	if !plain(name) {
		return nil, fmt.Errorf("%q is no name of an artefact", name)
	}
	conn, err := l.Dial(ctx, fmt.Sprintf("%s%s/%d", StreamTarget, name, offset))
	if err != nil {
		if strings.Contains(err.Error(), NotThere) {
			return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
		return nil, err
	}
	return conn, nil
}

// Files is a repository in a directory.
type Files string

// Open implements Source.
func (d Files) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	if !plain(name) {
		return nil, fmt.Errorf("%q is no name of an artefact", name)
	}
	f, err := os.Open(filepath.Join(string(d), name))
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// maxBundle bounds the files of a bundle.
const maxBundle = 64

// ReadBundle puts a repository that an operator has brought, a tar of files without folders, in the
// place of the one in a directory.
func ReadBundle(r io.Reader, dir string) (err error) {
	next := dir + ".next"
	defer func() {
		if err != nil {
			_ = os.RemoveAll(next) // or a bundle that is too large would leave a full disk
		}
	}()
	if err := errors.Join(os.RemoveAll(next), os.MkdirAll(next, 0o700)); err != nil {
		return fmt.Errorf("reading a bundle: %w", err)
	}
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading a bundle: %w", err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeDir && name == "" {
			continue
		}
		if n > maxBundle || h.Typeflag != tar.TypeReg || !plain(name) || h.Size > MaxSize {
			return fmt.Errorf("reading a bundle: %.64q is not a file of a bundle: at most %d files, each at most %d MiB", h.Name, maxBundle, MaxSize>>20)
		}
		if err := writeFile(filepath.Join(next, name), t); err != nil {
			return fmt.Errorf("reading a bundle: %w", err)
		}
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(next, dir)); err != nil {
		return fmt.Errorf("reading a bundle: %w", err)
	}
	return nil
}

func writeFile(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close())
}

// Named returns the programs named by the metadata in a directory, without verification: to
// request, not to trust.
func Named(dir string) ([]Target, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*targets.json"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("the bundle has no targets.json"))
	}
	var all []Target
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := metadata.Targets().FromBytes(raw)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", filepath.Base(file), err)
		}
		for path, f := range m.Signed.Targets {
			if t, ok := target(path, f); ok && t.From == "" {
				all = append(all, t)
			}
		}
	}
	return all, nil
}
