package artefact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

// Neighbours are the devices of this one's site. One that runs a program can give it to others as
// it is: unpacked, since no device keeps the packed file.
type Neighbours interface {
	// Open returns a program from an offset on, and the device that it comes from: one that is not
	// in skip. Its error is ErrNoNeighbour where none has the program, and ErrNeighboursBusy where
	// one may have it later.
	Open(ctx context.Context, t Target, offset int64, skip map[string]bool) (from io.ReadCloser, node string, err error)
}

// Errors of a copy after which the program is taken from its source.
var (
	ErrNoNeighbour    = errors.New("no device of the site has the program")
	ErrNeighboursBusy = errors.New("the devices of the site that have the program are busy")
)

// Bounds of what the devices of a site may cost, each of which may be a stolen one: after them the
// program is taken from its source.
const (
	copyTime   = 30 * time.Minute // for one program
	copyWait   = 5 * time.Minute  // of that for devices that are busy, or away for a moment
	copyPause  = 5 * time.Second
	maxWrong   = 3 // copies whose digest is another one
	maxEnds    = 3 // streams of one device that ended early
	copyForget = 6 * time.Hour
)

var isDigest = regexp.MustCompile(`\Asha256:[0-9a-f]{64}\z`)

// Copy brings a program from devices of the site, without its source, and returns its path: an
// executable file, complete and synced, whose digest is the one that was signed. It continues after
// the bytes that are there, whichever devices they are from. Bytes that turn out to be others judge
// no program: they are removed, the devices that sent them are not asked again, and others are.
// After ErrNoNeighbour the program has to be fetched. After an error nothing of the copy is left on
// the disk, which may be full, except where ctx has ended: the next Copy continues then.
func (s *Store) Copy(ctx context.Context, from Neighbours, t Target, progress func(copied int64)) (_ string, err error) {
	if !isDigest.MatchString(t.Digest) { // it becomes the name of a file
		return "", fmt.Errorf("%w: %.80q is no digest", ErrNoNeighbour, t.Digest)
	}
	path := s.copied(t.Digest)
	c := s.copyingOf(t.Digest)
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, max(0, copyTime-c.took))
	defer cancel()
	defer func() {
		c.took += time.Since(began)
		if err == nil || ctx.Err() != nil {
			return
		}
		c.from = map[string]bool{}
		if gone := os.Remove(path); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = fmt.Errorf("removing a copy: %w", gone)
		}
	}()
	if err := s.copyRoom(t); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("copying a program: %w", err)
	}
	defer f.Close()
	for {
		err := s.copyOnce(limited, from, t, f, c, progress)
		switch {
		case err == nil:
			return path, nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		case limited.Err() != nil:
			return "", fmt.Errorf("%w in %v", ErrNoNeighbour, copyTime)
		case !errors.Is(err, errAgain):
			return "", err
		}
	}
}

// copyRoom returns nil if the disk has room for the rest of a copy.
func (s *Store) copyRoom(t Target) error {
	if err := os.MkdirAll(s.config.Programs, 0o700); err != nil {
		return fmt.Errorf("copying a program: %w", err)
	}
	if s.config.Free == nil {
		return nil
	}
	free, err := s.config.Free(s.config.Programs)
	if err != nil {
		return fmt.Errorf("asking for the room on the disk: %w", err)
	}
	var has int64
	if info, err := os.Stat(s.copied(t.Digest)); err == nil {
		has = info.Size()
	}
	if need := max(0, t.Size-has) + margin; free < need {
		return fmt.Errorf("%w: %d MiB are free in %s, %d are needed", ErrNoRoom, free>>20, s.config.Programs, need>>20)
	}
	return nil
}

// copyingOf is the account of a program, a new one after copyForget.
func (s *Store) copyingOf(digest string) *copying {
	if c := s.copying; c == nil || c.digest != digest || time.Since(c.began) > copyForget {
		s.copying = &copying{digest: digest, began: time.Now(), ends: map[string]int{}, skip: map[string]bool{}, from: map[string]bool{}}
	}
	return s.copying
}

// errAgain: another device is asked, or the same one again.
var errAgain = errors.New("the copy is not complete")

// copyOnce takes the next bytes of one device, or judges a file that has them all.
func (s *Store) copyOnce(ctx context.Context, from Neighbours, t Target, f *os.File, c *copying, progress func(int64)) error {
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("copying a program: %w", err)
	}
	if at >= t.Size {
		return s.judgeCopy(t, f, c)
	}
	if c.wrong >= maxWrong {
		return fmt.Errorf("%w as it was signed: %d sent another one", ErrNoNeighbour, c.wrong)
	}
	r, node, err := from.Open(ctx, t, at, c.skip)
	if err != nil {
		if ctx.Err() != nil || !errors.Is(err, ErrNeighboursBusy) && (at == 0 || !errors.Is(err, ErrNoNeighbour)) || c.waited >= copyWait {
			return fmt.Errorf("%w: %w", ErrNoNeighbour, err)
		}
		select { // the device that had it may be starting again
		case <-ctx.Done():
		case <-time.After(copyPause):
			c.waited += copyPause
		}
		return errAgain
	}
	defer r.Close()
	c.from[node] = true
	n, err := s.takeCopy(r, f, at, t.Size, progress)
	if err != nil {
		return fmt.Errorf("copying a program: %w", err)
	}
	if at+n < t.Size {
		if c.ends[node]++; n == 0 || c.ends[node] >= maxEnds {
			c.skip[node] = true
		}
	}
	return errAgain
}

// takeCopy writes what comes; its error is the disk's.
func (s *Store) takeCopy(r io.Reader, f *os.File, at, size int64, progress func(int64)) (n int64, _ error) {
	buffer, unsynced := make([]byte, 32<<10), 0
	for at+n < size {
		got, err := r.Read(buffer[:min(int64(len(buffer)), size-at-n)])
		if _, err := f.WriteAt(buffer[:got], at+n); err != nil {
			return n, err
		}
		n += int64(got)
		if unsynced += got; unsynced >= syncEvery {
			unsynced = 0
			if err := f.Sync(); err != nil {
				return n, err
			}
		}
		if progress(at + n); err != nil {
			break
		}
	}
	return n, nil
}

// judgeCopy compares a complete file with its digest, and makes it executable.
func (s *Store) judgeCopy(t Target, f *os.File, c *copying) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading a copy: %w", err)
	}
	digest := ""
	if info.Size() == t.Size {
		if digest, err = Digest(f.Name()); err != nil {
			return fmt.Errorf("reading a copy: %w", err)
		}
	}
	if digest == t.Digest {
		if err := errors.Join(f.Sync(), f.Chmod(0o700)); err != nil {
			return fmt.Errorf("keeping a copy: %w", err)
		}
		return nil
	}
	c.wrong++
	for node := range c.from {
		c.skip[node] = true
	}
	c.from = map[string]bool{}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("removing a wrong copy: %w", err)
	}
	return errAgain
}
