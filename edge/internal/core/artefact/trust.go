// Package artefact fetches programs that this device may run: edgecore for its architecture, signed
// by keys of the package or of the operator on the device.
//
// It owns the trusted metadata (TUF's, the newest of which are kept on the device) and the files
// being fetched. It refuses files and metadata not signed by a trusted key, metadata older than
// those it has seen, expired ones over the link, files of another hash or length, and files that
// unpack to more than was signed. A file is unpacked only after its hash was verified.
//
// One goroutine uses a Store at a time.
package artefact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/theupdateframework/go-tuf/v2/metadata"
	"github.com/theupdateframework/go-tuf/v2/metadata/trustedmetadata"

	"github.com/skerry-io/skerry/common/atomicfile"
)

const (
	// MaxSize bounds an artefact, packed and unpacked, in bytes.
	MaxSize = 512 << 20
	// maxMetadata bounds a file of metadata.
	maxMetadata = 1 << 20
	maxAnchors  = 16
	maxRoots    = 64 // rotations that are followed at once
)

// Errors that callers branch on; each is a reason to refuse and is not retried.
var (
	ErrUntrusted = errors.New("it is not signed by keys of this device")
	ErrExpired   = errors.New("its metadata have expired")
	ErrReplayed  = errors.New("its metadata are older than those that this device has seen")
	ErrNoTarget  = errors.New("the metadata name no such version for this device")
	ErrNoKeys    = errors.New("this device has no keys for upgrades: it needs root.json of the repository in /etc/skerry/keys.d (docs/fleet.md#artefacts)")
)

// Source has the files of a repository.
type Source interface {
	// Open returns a file from an offset on. Its error is fs.ErrNotExist where there is no such
	// file.
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)
}

// Config configures a Store.
type Config struct {
	// Keys are directories with root.json files (TUF), each the beginning of a chain of trust.
	Keys []string
	Dir  string // the device's own; made when it is needed
	// Programs is the directory in which programs are unpacked: on the file system of the slots, to
	// which they are renamed. "": Dir.
	Programs string
	Arch     string
	Now      func() time.Time
	// Free returns how many bytes may be written to a directory; nil: it is not asked.
	Free func(dir string) (int64, error)
}

// Store is the artefacts of this device.
type Store struct {
	config Config
	// whole is the file that this process has fetched from its beginning.
	whole string
	// copying is of the last program that was copied from devices of the site.
	copying *copying
}

// copying is how the copy of one program went in this process.
type copying struct {
	digest string
	began  time.Time
	took   time.Duration
	waited time.Duration
	wrong  int
	ends   map[string]int  // streams that ended early, by device
	skip   map[string]bool // devices that are not asked again
	from   map[string]bool // devices whose bytes are in the file
}

// New makes a Store. It does not read the disk.
func New(c Config) *Store {
	if c.Programs == "" {
		c.Programs = c.Dir
	}
	return &Store{config: c}
}

// Target is a program as its metadata describe it.
type Target struct {
	Name   string `json:"-"` // of its file
	Length int64  `json:"-"` // of the packed file
	SHA256 string `json:"-"` // of the packed file, hexadecimal

	Version string `json:"version"`
	Arch    string `json:"arch"`
	Digest  string `json:"digest"` // of the program: "sha256:" and hexadecimal digits
	Size    int64  `json:"size"`   // of the program
	// Kubernetes is the version of its kubelet; Protocol to ProtocolMin the link's versions; Schema
	// that of the store which it writes. It also reads newer ones that state it as one of their
	// readers.
	Kubernetes  string `json:"kubernetes,omitempty"`
	Protocol    uint32 `json:"protocol,omitempty"`
	ProtocolMin uint32 `json:"protocolMin,omitempty"`
	Schema      int    `json:"schema,omitempty"`
	// From is the digest of the program that a delta is to; "" for a whole program.
	From string `json:"from,omitempty"`
}

// Catalogue lists the contents of trusted metadata.
type Catalogue struct {
	Targets []Target
	Warning string // of expired metadata that an operator brought
}

// Find returns the whole program of a version, and the deltas to it. digest may be empty.
func (c *Catalogue) Find(version, arch, digest string) (whole Target, deltas []Target, err error) {
	found, other := false, ""
	for _, t := range c.Targets {
		switch {
		case t.Version != version || digest != "" && t.Digest != digest:
		case t.Arch != arch:
			other = t.Arch
		case t.From != "":
			deltas = append(deltas, t)
		default:
			whole, found = t, true
		}
	}
	if !found && other != "" {
		return whole, nil, fmt.Errorf("%w: %s is there for %s, this is %s", ErrNoTarget, version, other, arch)
	}
	if !found {
		return whole, nil, fmt.Errorf("%w: %s %s", ErrNoTarget, version, digest)
	}
	return whole, deltas, nil
}

// Refresh reads the metadata of a repository and returns their targets. offline means that an
// operator has brought them: expiry is only a warning then.
func (s *Store) Refresh(ctx context.Context, from Source, offline bool) (*Catalogue, error) {
	anchors, err := s.anchors()
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, a := range anchors {
		c, kept, err := s.refresh(ctx, from, a, offline)
		if err == nil {
			return c, s.advance(ctx, from, slices.Delete(anchors, i, i+1), kept)
		}
		errs = append(errs, err)
		if ctx.Err() != nil || !errors.Is(err, ErrUntrusted) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// anchor is the beginning of a chain of trust.
type anchor struct {
	root []byte // the newest that was verified from the device's file on; that file at first
	dir  string // of the metadata that were verified
}

// anchors are the beginnings of the chains of trust, one for each file in the directories of keys.
// A chain begins again at its file only if a disk has damaged the newest root: keys that were
// replaced since are trusted again then, until the next Refresh, but a device that refused would
// have to be visited.
func (s *Store) anchors() ([]anchor, error) {
	var all []anchor
	for _, dir := range s.config.Keys {
		files, err := filepath.Glob(filepath.Join(dir, "*root.json"))
		if err != nil {
			return nil, err
		}
		slices.Sort(files)
		for _, f := range files[:min(len(files), maxAnchors)] {
			raw, err := os.ReadFile(f)
			if err != nil {
				return nil, fmt.Errorf("reading keys: %w", err)
			}
			sum := sha256.Sum256(raw)
			a := anchor{root: raw, dir: filepath.Join(s.config.Dir, "metadata", hex.EncodeToString(sum[:8]))}
			if slices.ContainsFunc(all, func(other anchor) bool { return other.dir == a.dir }) {
				continue
			}
			if newest, err := os.ReadFile(filepath.Join(a.dir, "root.json")); err == nil {
				if _, err := trustedmetadata.New(newest); err == nil {
					a.root = newest
				}
			}
			all = append(all, a)
		}
	}
	if len(all) == 0 {
		return nil, ErrNoKeys
	}
	return all, nil
}

// advance keeps verified metadata for the other anchors, as far as their chains lead to the same
// root: a chain that is not used would still trust keys that were replaced.
func (s *Store) advance(ctx context.Context, from Source, others []anchor, kept map[string][]byte) error {
	for _, a := range others {
		t, err := trustedmetadata.New(a.root)
		if err != nil {
			continue
		}
		newest, err := follow(ctx, from, t, a.root)
		if err != nil || !bytes.Equal(newest, kept["root.json"]) {
			continue // of another repository
		}
		if err := keep(a.dir, kept); err != nil {
			return err
		}
	}
	return nil
}

// follow reads the newer versions of root, each signed by the one before, and returns the newest.
func follow(ctx context.Context, from Source, t *trustedmetadata.TrustedMetadata, root []byte) ([]byte, error) {
	for range maxRoots {
		next, err := read(ctx, from, fmt.Sprintf("%d.root.json", t.Root.Signed.Version+1))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		if _, err := t.UpdateRoot(next); err != nil {
			return nil, reason(err)
		}
		root = next
	}
	return root, nil
}

// refresh verifies a repository from an anchor on. It returns the metadata that it has kept, too.
func (s *Store) refresh(ctx context.Context, from Source, a anchor, offline bool) (_ *Catalogue, kept map[string][]byte, _ error) {
	t, err := trustedmetadata.New(a.root)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	now := s.config.Now().UTC()
	if t.RefTime = now; offline {
		t.RefTime = time.Unix(0, 0).UTC()
	}
	root, err := follow(ctx, from, t, a.root)
	if err != nil {
		return nil, nil, err
	}
	name := func(version int64, file string) string {
		if t.Root.Signed.ConsistentSnapshot {
			return fmt.Sprintf("%d.%s", version, file)
		}
		return file
	}
	known := known(t, a.dir)
	stamp, err := read(ctx, from, "timestamp.json")
	if err != nil {
		return nil, nil, err
	}
	if _, err := t.UpdateTimestamp(stamp); err != nil {
		if _, same := errors.AsType[*metadata.ErrEqualVersionNumber](err); !same {
			return nil, nil, reason(err)
		}
		stamp = known["timestamp.json"]
	}
	if older := known["snapshot.json"]; older != nil {
		_, _ = t.UpdateSnapshot(older, true) // an older one, to compare with
	}
	snapshot, err := read(ctx, from, name(t.Timestamp.Signed.Meta["snapshot.json"].Version, "snapshot.json"))
	if err != nil {
		return nil, nil, err
	}
	if _, err := t.UpdateSnapshot(snapshot, false); err != nil {
		return nil, nil, reason(err)
	}
	version := int64(0)
	if m := t.Snapshot.Signed.Meta["targets.json"]; m != nil {
		version = m.Version
	}
	targets, err := read(ctx, from, name(version, "targets.json"))
	if err != nil {
		return nil, nil, err
	}
	top, err := t.UpdateTargets(targets)
	if err != nil {
		return nil, nil, reason(err)
	}
	kept = map[string][]byte{"root.json": root, "timestamp.json": stamp, "snapshot.json": snapshot}
	if err := keep(a.dir, kept); err != nil {
		return nil, nil, err
	}
	c := &Catalogue{}
	if offline && (t.Root.Signed.IsExpired(now) || t.Timestamp.Signed.IsExpired(now) || t.Snapshot.Signed.IsExpired(now) || top.Signed.IsExpired(now)) {
		c.Warning = "its metadata expired on " + t.Timestamp.Signed.Expires.Format(time.DateOnly)
	}
	for path, f := range top.Signed.Targets {
		if t, ok := target(path, f); ok {
			c.Targets = append(c.Targets, t)
		}
	}
	slices.SortFunc(c.Targets, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	return c, kept, nil
}

// known loads the last seen timestamp, to compare with, and returns the kept metadata.
func known(t *trustedmetadata.TrustedMetadata, dir string) map[string][]byte {
	kept := map[string][]byte{}
	for _, name := range []string{"timestamp.json", "snapshot.json"} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			kept[name] = raw
		}
	}
	if raw := kept["timestamp.json"]; raw != nil {
		_, _ = t.UpdateTimestamp(raw) // one that has expired, or of other keys, is no fault here
	}
	return kept
}

func keep(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keeping metadata: %w", err)
	}
	for name, raw := range files {
		path := filepath.Join(dir, name)
		if have, err := os.ReadFile(path); err == nil && string(have) == string(raw) {
			continue
		}
		if err := atomicfile.Write(path, raw, 0o600); err != nil {
			return fmt.Errorf("keeping metadata: %w", err)
		}
	}
	return nil
}

// reason returns why metadata were refused.
func reason(err error) error {
	if _, ok := errors.AsType[*metadata.ErrExpiredMetadata](err); ok {
		return fmt.Errorf("%w: %w", ErrExpired, err)
	}
	if _, ok := errors.AsType[*metadata.ErrBadVersionNumber](err); ok {
		return fmt.Errorf("%w: %w", ErrReplayed, err)
	}
	return fmt.Errorf("%w: %w", ErrUntrusted, err)
}

// target reads a file's target metadata. Files that are not our programs are skipped.
func target(path string, f *metadata.TargetFiles) (Target, bool) {
	var t Target
	if f == nil || f.Custom == nil || !plain(path) || f.Length <= 0 || f.Length > MaxSize || len(*f.Custom) > maxMetadata {
		return t, false
	}
	sum, ok := f.Hashes["sha256"]
	if !ok || json.Unmarshal(*f.Custom, &t) != nil || t.Size <= 0 || t.Size > MaxSize {
		return t, false
	}
	t.Name, t.Length, t.SHA256 = path, f.Length, sum.String()
	return t, true
}

// plain reports whether a name can be one of a file in a directory, and of a part of a stream's
// target.
func plain(name string) bool {
	if name == "" || len(name) > 200 || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' && c != '+' {
			return false
		}
	}
	return true
}

// stall is how long a stream may bring no byte: it is closed then, so that a cloud whose disk hangs
// does not hold up this device's other operations.
const stall = 5 * time.Minute

// open opens a file of a source. Its stream ends with ctx, and after stall without a byte.
func open(ctx context.Context, from Source, name string, offset int64) (io.ReadCloser, error) {
	opening, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(stall, func() { cancel(errStalled) })
	r, err := from.Open(opening, name, offset)
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	s := &stream{ReadCloser: r, cancel: cancel}
	s.stop = context.AfterFunc(ctx, func() { _ = r.Close() })
	s.timer = time.AfterFunc(stall, func() {
		s.stalled.Store(true)
		_ = r.Close()
	})
	return s, nil
}

var errStalled = fmt.Errorf("no byte came for %v", stall)

// stream is a file that is read.
type stream struct {
	io.ReadCloser
	cancel  context.CancelCauseFunc
	stop    func() bool
	timer   *time.Timer
	stalled atomic.Bool
}

// Read implements io.Reader.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if n > 0 {
		s.timer.Reset(stall)
	}
	if err != nil && s.stalled.Load() {
		err = errStalled
	}
	return n, err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.timer.Stop()
	s.stop()
	s.cancel(nil)
	return s.ReadCloser.Close()
}

// read reads a file of metadata.
func read(ctx context.Context, from Source, name string) ([]byte, error) {
	r, err := open(ctx, from, name, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxMetadata+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", name, err)
	case len(raw) > maxMetadata:
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrUntrusted, name, maxMetadata)
	}
	return raw, nil
}
