// Package artefactrepo makes signed repositories of artefacts: for releases, and for tests.
//
// It owns the metadata (TUF) and the files of a directory, and reads keys from another. It refuses
// to sign without the keys that a change needs, and to sign again what these keys have not signed:
// writing to the directory adds no program. A Repository is used by one goroutine, and a directory
// by one process.
package artefactrepo

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"

	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Target is a program as the metadata describe it.
type Target = artefact.Target

const (
	rootYears = 10
	// standardExpiry is how long devices take the metadata over the link.
	standardExpiry = 90 * 24 * time.Hour
)

// Repository is a repository in a directory, and its keys.
type Repository struct {
	Dir     string
	Expires time.Time
	version int64
	keys    keys
	targets map[string]*metadata.TargetFiles
	read    *metadata.Metadata[metadata.TargetsType] // that targets are from; nil once verified
}

// New makes an empty repository with fresh keys, which exist as long as the process does.
func New(dir string) (*Repository, error) {
	k := memory{}
	if err := generate(k, roles()...); err != nil {
		return nil, err
	}
	r, err := create(dir, k)
	if err != nil {
		return nil, err
	}
	r.Expires = time.Now().Add(24 * time.Hour)
	return r, nil
}

// Create makes an empty repository, and its keys in a directory: root-1.pem to root-3.pem,
// targets.pem, snapshot.pem and timestamp.pem. It refuses directories that have some already.
func Create(dir, keysDir string) (*Repository, error) {
	for _, d := range []string{dir, keysDir} {
		if found, err := filepath.Glob(filepath.Join(d, "*")); err != nil || len(found) > 0 {
			return nil, errors.Join(err, fmt.Errorf("%s is not empty", d))
		}
	}
	k := files(keysDir)
	if err := generate(k, roles()...); err != nil {
		return nil, err
	}
	r, err := create(dir, k)
	if err != nil {
		return nil, err
	}
	return r, r.Publish()
}

func create(dir string, k keys) (*Repository, error) {
	r := &Repository{Dir: dir, Expires: time.Now().Add(standardExpiry), keys: k, targets: map[string]*metadata.TargetFiles{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root := metadata.Root(time.Now().AddDate(rootYears, 0, 0))
	for _, role := range roles() {
		for _, name := range namesOf(role) {
			if err := addKey(root, k, role, name); err != nil {
				return nil, err
			}
		}
	}
	root.Signed.Roles[metadata.ROOT].Threshold = rootThreshold
	return r, r.signRoot(root, namesOf(metadata.ROOT))
}

// Open reads a repository. Keys are read from keysDir once something is signed.
func Open(dir, keysDir string) (*Repository, error) {
	r := &Repository{Dir: dir, Expires: time.Now().Add(standardExpiry), keys: files(keysDir), targets: map[string]*metadata.TargetFiles{}}
	timestamp, err := metadata.Timestamp().FromFile(filepath.Join(dir, "timestamp.json"))
	if err != nil {
		return nil, fmt.Errorf("%s is no repository: %w", dir, err)
	}
	r.version = timestamp.Signed.Version
	targets, err := metadata.Targets().FromFile(filepath.Join(dir, fmt.Sprintf("%d.targets.json", r.version)))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", dir, err)
	}
	r.read, r.targets = targets, maps.Clone(targets.Signed.Targets)
	return r, nil
}

// verify reports whether the programs that Open has read were signed by the key of targets, and are
// the newest.
func (r *Repository) verify() error {
	if err := r.newest(); err != nil {
		return err
	}
	if r.read == nil {
		return nil
	}
	if err := signedBy(r.keys, metadata.TARGETS, namesOf(metadata.TARGETS), r.read); err != nil {
		return fmt.Errorf("%d.targets.json in %s, which this would sign again: %w", r.version, r.Dir, err)
	}
	r.read = nil
	return nil
}

// signedBy reports whether of these keys as many have signed metadata of a role as have to.
func signedBy(k keys, role string, names []string, signed any) error {
	trusted := metadata.Root(time.Now().Add(time.Hour))
	for _, name := range names {
		if err := addKey(trusted, k, role, name); err != nil {
			return err
		}
	}
	trusted.Signed.Roles[role].Threshold = min(len(names), rootThreshold)
	return trusted.VerifyDelegate(role, signed)
}

// Programs are those of the repository, by name.
func (r *Repository) Programs() (all []Target) {
	for name, f := range r.targets {
		var t Target
		if f.Custom == nil || json.Unmarshal(*f.Custom, &t) != nil {
			continue
		}
		t.Name, t.Length, t.SHA256 = name, f.Length, f.Hashes["sha256"].String()
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Target) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Expiry is when devices stop taking the metadata over the link.
func (r *Repository) Expiry() (time.Time, error) {
	m, err := metadata.Timestamp().FromFile(filepath.Join(r.Dir, "timestamp.json"))
	if err != nil {
		return time.Time{}, err
	}
	return m.Signed.Expires, nil
}

// OfThisRelease sets the facts by which devices judge a program of this very release.
func OfThisRelease(t *Target) {
	t.Kubernetes, t.Protocol, t.ProtocolMin, t.Schema = version.Kubernetes(), protocol.Current, protocol.Oldest, store.Schema
}

// Rotate replaces the keys of a role, by a new root.json that two of the root keys sign: devices
// follow it. Those of root itself are replaced by three new ones.
func (r *Repository) Rotate(role string) error {
	if !slices.Contains(roles(), role) {
		return fmt.Errorf("there is no role %q: %s", role, strings.Join(roles(), ", "))
	}
	root, err := metadata.Root().FromFile(r.Root())
	if err != nil {
		return err
	}
	// The keys of now have to sign too, and are gone from the directory afterwards.
	present, before, err := r.rootKeys()
	if err != nil {
		return err
	}
	if err := r.verifyRoot(root, present); err != nil {
		return err
	}
	if err := r.verify(); err != nil {
		return err
	}
	for _, id := range slices.Clone(root.Signed.Roles[role].KeyIDs) {
		if err := root.Signed.RevokeKey(id, role); err != nil {
			return err
		}
	}
	// The new keys replace the old ones once there is a root.json that names them.
	fresh := memory{}
	if err := generate(fresh, role); err != nil {
		return err
	}
	for _, name := range namesOf(role) {
		if err := errors.Join(r.keys.put(name+next, fresh[name]), addKey(root, fresh, role, name)); err != nil {
			return err
		}
	}
	signers := before
	if role == metadata.ROOT {
		after, err := load(fresh, namesOf(role))
		if err != nil {
			return err
		}
		signers = append(signers, after...)
	}
	root.Signed.Version++
	root.Signed.Expires = time.Now().AddDate(rootYears, 0, 0).UTC()
	if err := r.writeRoot(root, signers); err != nil {
		return err
	}
	for _, name := range namesOf(role) {
		if err := r.keys.rename(name+next, name); err != nil {
			return err
		}
	}
	return r.Publish()
}

// rootKeys are those of root's keys that are at hand: as many as have to sign, or an error.
func (r *Repository) rootKeys() (names []string, all []ed25519.PrivateKey, err error) {
	var missing error
	for _, name := range namesOf(metadata.ROOT) {
		k, err := r.keys.get(name)
		if errors.Is(err, fs.ErrNotExist) {
			missing = errors.Join(missing, err)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		names, all = append(names, name), append(all, k)
	}
	if len(all) < rootThreshold {
		return nil, nil, fmt.Errorf("%d of root's keys have to sign: %w", rootThreshold, missing)
	}
	return names, all, nil
}

// verifyRoot follows the versions of root.json up to this one, as devices do, from the newest that
// enough of the keys at hand have signed.
func (r *Repository) verifyRoot(root *metadata.Metadata[metadata.RootType], names []string) error {
	chain := []*metadata.Metadata[metadata.RootType]{root} // the newest first
	var err error
	for {
		oldest := chain[len(chain)-1]
		if err = signedBy(r.keys, metadata.ROOT, names, oldest); err == nil {
			break
		}
		m, missing := metadata.Root().FromFile(filepath.Join(r.Dir, fmt.Sprintf("%d.root.json", oldest.Signed.Version-1)))
		if missing != nil || m.Signed.Version != oldest.Signed.Version-1 {
			return fmt.Errorf("%s, which this would sign again: %w", r.Root(), err)
		}
		chain = append(chain, m)
	}
	for i := len(chain) - 1; i > 0; i-- {
		if err := chain[i].VerifyDelegate(metadata.ROOT, chain[i-1]); err != nil {
			return fmt.Errorf("%s, which this would sign again: %w", r.Root(), err)
		}
	}
	return nil
}

func (r *Repository) signRoot(root *metadata.Metadata[metadata.RootType], names []string) error {
	signers, err := load(r.keys, names)
	if err != nil {
		return err
	}
	return r.writeRoot(root, signers)
}

// writeRoot writes a root under its version, for devices that follow the chain, and as root.json,
// for those that begin with it.
func (r *Repository) writeRoot(root *metadata.Metadata[metadata.RootType], signers []ed25519.PrivateKey) error {
	for _, name := range []string{fmt.Sprintf("%d.root.json", root.Signed.Version), "root.json"} {
		if err := sign(root, signers, filepath.Join(r.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func sign[T metadata.Roles](m *metadata.Metadata[T], keys []ed25519.PrivateKey, file string) error {
	m.ClearSignatures()
	for _, k := range keys {
		s, err := signature.LoadSigner(k, crypto.Hash(0))
		if err != nil {
			return err
		}
		if _, err := m.Sign(s); err != nil {
			return err
		}
	}
	raw, err := m.ToBytes(false)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, raw, 0o644)
}

// Pack packs a program as a release does.
func Pack(program []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Delta packs a program as the difference to another.
func Delta(base, program []byte) ([]byte, error) {
	window := 1 << 20
	for window < len(base)+len(program) && window < artefact.MaxDeltaWindow {
		window <<= 1
	}
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderDictRaw(artefact.DictionaryID, base))
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Digest is a program's.
func Digest(program []byte) string {
	sum := sha256.Sum256(program)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Add adds a program. change, which may be nil, changes its metadata.
func (r *Repository) Add(version, arch string, program []byte, change func(*Target)) (Target, error) {
	packed, err := Pack(program)
	if err != nil {
		return Target{}, err
	}
	return r.AddPacked(version, arch, packed, program, change)
}

// AddPacked is Add of a file that is packed already.
func (r *Repository) AddPacked(version, arch string, packed, program []byte, change func(*Target)) (Target, error) {
	t := Target{Name: fmt.Sprintf("edgecore-%s-%s.zst", version, arch), Version: version, Arch: arch, Digest: Digest(program), Size: int64(len(program))}
	if change != nil {
		change(&t)
	}
	if t.Name != filepath.Base(t.Name) {
		return t, fmt.Errorf("version %q, architecture %q: no slash can be in them", version, arch)
	}
	if err := r.verify(); err != nil {
		return t, err
	}
	for _, have := range r.Programs() {
		if have.Name == t.Name && have.Digest != t.Digest { // devices may be fetching it
			return t, fmt.Errorf("the repository has another program as %s for %s (%s): remove %s first, or add this one as another version", version, arch, have.Digest, version)
		}
	}
	if err := atomicfile.Write(filepath.Join(r.Dir, t.Name), packed, 0o644); err != nil {
		return t, err
	}
	f, err := metadata.TargetFile().FromBytes(t.Name, packed, "sha256")
	if err != nil {
		return t, err
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return t, err
	}
	f.Custom = (*json.RawMessage)(&raw)
	r.targets[t.Name] = f
	t.Length, t.SHA256 = f.Length, f.Hashes["sha256"].String()
	return t, r.Publish()
}

// AddDelta adds the difference from one program to another (Delta), which the repository has as a
// whole.
func (r *Repository) AddDelta(version, arch string, base, packed, program []byte, change func(*Target)) (Target, error) {
	return r.AddPacked(version, arch, packed, program, func(t *Target) {
		if change != nil {
			change(t)
		}
		t.From = Digest(base)
		t.Name = fmt.Sprintf("edgecore-%s-%s-from-%.12s.zst", version, arch, strings.TrimPrefix(t.From, "sha256:"))
	})
}

// Remove removes a version, with its deltas and files.
func (r *Repository) Remove(version string) error {
	var gone []string
	for _, t := range r.Programs() {
		if t.Version == version {
			gone = append(gone, t.Name)
			delete(r.targets, t.Name)
		}
	}
	if len(gone) == 0 {
		return fmt.Errorf("the repository has no %s", version)
	}
	if err := r.Publish(); err != nil {
		return err
	}
	var errs []error
	for _, name := range gone {
		errs = append(errs, os.Remove(filepath.Join(r.Dir, name)))
	}
	return errors.Join(errs...)
}

// kept is how many generations of metadata stay: a device may be reading one.
const kept = 2

// Publish signs the metadata again.
func (r *Repository) Publish() error {
	if err := r.verify(); err != nil {
		return err
	}
	signers := map[string][]ed25519.PrivateKey{}
	for _, role := range []string{metadata.TARGETS, metadata.SNAPSHOT, metadata.TIMESTAMP} {
		var err error
		if signers[role], err = load(r.keys, namesOf(role)); err != nil {
			return err
		}
	}
	if err := r.keys.sign(r.version + 1); err != nil {
		return err
	}
	r.version++
	targets := metadata.Targets(r.Expires)
	targets.Signed.Version, targets.Signed.Targets = r.version, r.targets
	if err := sign(targets, signers[metadata.TARGETS], filepath.Join(r.Dir, fmt.Sprintf("%d.targets.json", r.version))); err != nil {
		return err
	}
	snapshot := metadata.Snapshot(r.Expires)
	snapshot.Signed.Version = r.version
	snapshot.Signed.Meta["targets.json"] = metadata.MetaFile(r.version)
	if err := sign(snapshot, signers[metadata.SNAPSHOT], filepath.Join(r.Dir, fmt.Sprintf("%d.snapshot.json", r.version))); err != nil {
		return err
	}
	timestamp := metadata.Timestamp(r.Expires)
	timestamp.Signed.Version = r.version
	timestamp.Signed.Meta["snapshot.json"] = metadata.MetaFile(r.version)
	if err := sign(timestamp, signers[metadata.TIMESTAMP], filepath.Join(r.Dir, "timestamp.json")); err != nil {
		return err
	}
	_ = r.keys.signed(r.version) // the devices have the new metadata from here on; the file names the version already
	for _, role := range []string{"targets", "snapshot"} {
		if err := os.Remove(filepath.Join(r.Dir, fmt.Sprintf("%d.%s.json", r.version-kept, role))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// newest refuses a repository that is older than the last one that the keys have signed: devices
// refuse metadata older than those they have seen, and versions that were withdrawn would be back.
func (r *Repository) newest() error {
	last, err := r.keys.last()
	if err != nil {
		return err
	}
	if r.version < last {
		return fmt.Errorf("%s is an older copy: its metadata are of version %d, and these keys have signed version %d; restore the newest, for example from where cloudcore reads it", r.Dir, r.version, last)
	}
	return nil
}

// Root is the file that devices begin with.
func (r *Repository) Root() string { return filepath.Join(r.Dir, "root.json") }
