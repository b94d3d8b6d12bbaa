package artefact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory of unpacking in addition to a dictionary.
const maxWindow = 32 << 20

// Errors of a fetch that are reasons to refuse.
var (
	ErrWrongHash = errors.New("its hash is another than the metadata name")
	ErrBomb      = errors.New("it unpacks to another size than the metadata name")
	ErrNoRoom    = errors.New("there is no room on the disk")
)

// Interrupted is an error of the source, or of the way to it: the bytes that have arrived stay,
// and another Fetch continues after them.
type Interrupted struct{ error }

func (e Interrupted) Unwrap() error { return e.error }

// margin is left free on the disk.
const margin = 64 << 20

// unpacked is the path of a program before it is moved into a slot.
func (s *Store) unpacked() string { return filepath.Join(s.config.Programs, "unpacked") }

func (s *Store) part(t Target) string { return filepath.Join(s.config.Dir, t.SHA256+".part") }

const copyExt = ".copy"

// copied is the file of a program that comes from other devices.
func (s *Store) copied(digest string) string {
	return filepath.Join(s.config.Programs, strings.TrimPrefix(digest, "sha256:")+copyExt)
}

// Fetched returns how many bytes of a file are on the device.
func (s *Store) Fetched(t Target) int64 {
	info, err := os.Stat(s.part(t))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Room returns nil if a target can be fetched and unpacked with the free space of the disk. Where
// programs are unpacked on another disk, that has to have room for the file besides, too: which
// directories share a disk is not asked.
func (s *Store) Room(t Target) error {
	if s.config.Free == nil {
		return nil
	}
	file := max(0, t.Length-s.Fetched(t))
	for dir, need := range map[string]int64{s.config.Dir: file + margin, s.config.Programs: file + t.Size + margin} {
		free, err := s.config.Free(dir)
		if err != nil {
			return fmt.Errorf("asking for the room on the disk: %w", err)
		}
		if free < need {
			return fmt.Errorf("%w: %d MiB are free in %s, %d are needed", ErrNoRoom, free>>20, dir, need>>20)
		}
	}
	return nil
}

// Fetch brings the rest of a file to the device; each byte once, whatever cuts there are. progress
// is called now and then.
func (s *Store) Fetch(ctx context.Context, from Source, t Target, progress func(fetched int64)) error {
	if err := os.MkdirAll(s.config.Dir, 0o700); err != nil {
		return fmt.Errorf("fetching %s: %w", t.Name, err)
	}
	f, err := os.OpenFile(s.part(t), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", t.Name, err)
	}
	defer f.Close()
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", t.Name, err)
	}
	if at > t.Length { // of another metadata: it can't be
		if at, err = 0, f.Truncate(0); err != nil {
			return fmt.Errorf("fetching %s: %w", t.Name, err)
		}
	}
	if at == 0 {
		s.whole = t.Name
	}
	progress(at)
	if at < t.Length {
		if err := s.receive(ctx, from, t, f, at, progress); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fetching %s: %w", t.Name, err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, t.Length)); err != nil {
		return fmt.Errorf("reading %s again: %w", t.Name, err)
	}
	if hex.EncodeToString(h.Sum(nil)) != t.SHA256 {
		_ = os.Remove(s.part(t)) // another try begins anew
		if s.whole != t.Name {
			return fmt.Errorf("%s: the part that was fetched before a restart is damaged: fetching it again", t.Name)
		}
		return fmt.Errorf("%s: %w", t.Name, ErrWrongHash)
	}
	return nil
}

// syncEvery is after how many bytes a file that is fetched is synced: no more are fetched twice
// after a power cut.
const syncEvery = 4 << 20

func (s *Store) receive(ctx context.Context, from Source, t Target, f *os.File, at int64, progress func(int64)) error {
	r, err := open(ctx, from, t.Name, at)
	if err != nil {
		return Interrupted{fmt.Errorf("fetching %s: %w", t.Name, err)}
	}
	defer r.Close()
	buffer, unsynced := make([]byte, 32<<10), 0
	for at < t.Length {
		n, err := r.Read(buffer[:min(int64(len(buffer)), t.Length-at)])
		if n > 0 {
			if _, err := f.WriteAt(buffer[:n], at); err != nil {
				return fmt.Errorf("fetching %s: %w", t.Name, err)
			}
			at += int64(n)
			if unsynced += n; unsynced >= syncEvery {
				unsynced = 0
				if err := f.Sync(); err != nil {
					return fmt.Errorf("fetching %s: %w", t.Name, err)
				}
			}
			progress(at)
		}
		switch {
		case err != nil && at < t.Length && errors.Is(err, io.EOF):
			return Interrupted{fmt.Errorf("fetching %s: it ends at %d of %d bytes: %w", t.Name, at, t.Length, io.ErrUnexpectedEOF)}
		case err != nil && at < t.Length:
			return Interrupted{fmt.Errorf("fetching %s: %w", t.Name, err)}
		}
	}
	return nil
}

// Unpack makes an executable file of a fetched one, complete and synced, and returns its path. base
// is the program that a delta is to; "" for a whole program.
func (s *Store) Unpack(t Target, base string) (_ string, err error) {
	in, err := os.Open(s.part(t))
	if err != nil {
		return "", fmt.Errorf("unpacking %s: %w", t.Name, err)
	}
	defer in.Close()
	options := []zstd.DOption{zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(MaxSize)}
	if t.From != "" {
		dictionary, err := os.ReadFile(base)
		if err != nil {
			return "", fmt.Errorf("unpacking %s: %w", t.Name, err)
		}
		options = append(options, zstd.WithDecoderDictRaw(DictionaryID, dictionary), zstd.WithDecoderMaxWindow(MaxDeltaWindow))
	}
	packed := &noted{Reader: in}
	d, err := zstd.NewReader(packed, options...)
	if err != nil {
		return "", fmt.Errorf("unpacking %s: %w", t.Name, err)
	}
	defer d.Close()
	path := s.unpacked()
	if err := os.MkdirAll(s.config.Programs, 0o700); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", t.Name, err)
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o700)
	if err != nil {
		return "", fmt.Errorf("unpacking %s: %w", t.Name, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	h := sha256.New()
	unpacked := &noted{Reader: io.LimitReader(d, t.Size+1)}
	n, err := io.Copy(io.MultiWriter(out, h), unpacked)
	if packed.err != nil { // by the disk: it accuses no program
		_ = out.Close()
		return "", fmt.Errorf("unpacking %s: %w", t.Name, packed.err)
	}
	if unpacked.err != nil { // of a file whose hash is right: the base of the delta is another one, or it was packed wrong
		_ = out.Close()
		return "", fmt.Errorf("%s unpacked: %w: %w", t.Name, ErrWrongHash, unpacked.err)
	}
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", t.Name, err)
	}
	if n != t.Size {
		return "", fmt.Errorf("%s: %w: %d bytes", t.Name, ErrBomb, t.Size)
	}
	if "sha256:"+hex.EncodeToString(h.Sum(nil)) != t.Digest {
		return "", fmt.Errorf("%s unpacked: %w", t.Name, ErrWrongHash)
	}
	return path, nil
}

// noted is a reader whose error can be told from that of the writer.
type noted struct {
	io.Reader
	err error
}

func (r *noted) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// Digest is that of a program's file, as a Target has it.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("computing a digest: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("computing a digest of %s: %w", path, err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// DictionaryID marks the running program as the dictionary of a delta.
const DictionaryID = 1

// MaxDeltaWindow is the window of a delta: it reaches back over the whole running program.
const MaxDeltaWindow = 512 << 20

// Clean removes all fetched files except those of t; with a zero Target all of them.
func (s *Store) Clean(t Target) error {
	var errs []error
	if err := os.Remove(s.unpacked()); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	entries, err := os.ReadDir(s.config.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("cleaning up: %w", err))
	}
	copies, _ := filepath.Glob(s.copied("*"))
	for _, path := range copies {
		if path != s.copied(t.Digest) {
			errs = append(errs, os.Remove(path))
		}
	}
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) != copyExt && filepath.Join(s.config.Dir, e.Name()) != s.part(t) {
			errs = append(errs, os.Remove(filepath.Join(s.config.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
