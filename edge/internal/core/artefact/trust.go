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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	Arch string
	Now  func() time.Time
	// Free returns how many bytes may be written to Dir; nil: it is not asked.
	Free func() (int64, error)
}

// Store is the artefacts of this device.
type Store struct{ config Config }

// New makes a Store. It does not read the disk.
func New(c Config) *Store { return &Store{c} }

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
	// the oldest schema of the store that it can read to the newest.
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
	for _, root := range anchors {
		c, err := s.refresh(ctx, from, root, offline)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || !errors.Is(err, ErrUntrusted) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// anchors are the roots to begin with: the newest that was ever verified first.
func (s *Store) anchors() ([][]byte, error) {
	var all [][]byte
	for _, dir := range append([]string{s.metadata()}, s.config.Keys...) {
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
			all = append(all, raw)
		}
	}
	if len(all) == 0 {
		return nil, ErrNoKeys
	}
	return all, nil
}

func (s *Store) metadata() string { return filepath.Join(s.config.Dir, "metadata") }

func (s *Store) refresh(ctx context.Context, from Source, root []byte, offline bool) (*Catalogue, error) {
	t, err := trustedmetadata.New(root)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	now := s.config.Now().UTC()
	if t.RefTime = now; offline {
		t.RefTime = time.Unix(0, 0).UTC()
	}
	keep := map[string][]byte{"root.json": root}
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
		keep["root.json"] = next
	}
	name := func(version int64, file string) string {
		if t.Root.Signed.ConsistentSnapshot {
			return fmt.Sprintf("%d.%s", version, file)
		}
		return file
	}
	known := s.known(t)
	stamp, err := read(ctx, from, "timestamp.json")
	if err != nil {
		return nil, err
	}
	if _, err := t.UpdateTimestamp(stamp); err != nil {
		if _, same := errors.AsType[*metadata.ErrEqualVersionNumber](err); !same {
			return nil, reason(err)
		}
		stamp = known["timestamp.json"]
	}
	if kept := known["snapshot.json"]; kept != nil {
		_, _ = t.UpdateSnapshot(kept, true) // an older one, to compare with
	}
	snapshot, err := read(ctx, from, name(t.Timestamp.Signed.Meta["snapshot.json"].Version, "snapshot.json"))
	if err != nil {
		return nil, err
	}
	if _, err := t.UpdateSnapshot(snapshot, false); err != nil {
		return nil, reason(err)
	}
	version := int64(0)
	if m := t.Snapshot.Signed.Meta["targets.json"]; m != nil {
		version = m.Version
	}
	targets, err := read(ctx, from, name(version, "targets.json"))
	if err != nil {
		return nil, err
	}
	top, err := t.UpdateTargets(targets)
	if err != nil {
		return nil, reason(err)
	}
	keep["timestamp.json"], keep["snapshot.json"] = stamp, snapshot
	if err := s.keep(keep); err != nil {
		return nil, err
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
	return c, nil
}

// known loads the last seen timestamp, to compare with, and returns the kept metadata.
func (s *Store) known(t *trustedmetadata.TrustedMetadata) map[string][]byte {
	kept := map[string][]byte{}
	for _, name := range []string{"timestamp.json", "snapshot.json"} {
		if raw, err := os.ReadFile(filepath.Join(s.metadata(), name)); err == nil {
			kept[name] = raw
		}
	}
	if raw := kept["timestamp.json"]; raw != nil {
		_, _ = t.UpdateTimestamp(raw) // one that has expired, or of other keys, is no fault here
	}
	return kept
}

func (s *Store) keep(files map[string][]byte) error {
	if err := os.MkdirAll(s.metadata(), 0o700); err != nil {
		return fmt.Errorf("keeping metadata: %w", err)
	}
	for name, raw := range files {
		path := filepath.Join(s.metadata(), name)
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

// read reads a file of metadata.
func read(ctx context.Context, from Source, name string) ([]byte, error) {
	r, err := from.Open(ctx, name, 0)
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
