// Package artefactrepo makes signed repositories of artefacts, as a release does.
//
// It owns keys that exist as long as the process does. A Repository is used by one goroutine.
package artefactrepo

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"

	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// Target is a program as the metadata describe it.
type Target = artefact.Target

// Repository is a repository in a directory, and its keys.
type Repository struct {
	Dir     string
	Expires time.Time
	version int64
	keys    map[string][]ed25519.PrivateKey
	targets map[string]*metadata.TargetFiles
}

// New makes an empty repository: root needs 2 of 3 keys, the others one.
func New(dir string) (*Repository, error) {
	r := &Repository{Dir: dir, Expires: time.Now().Add(24 * time.Hour), keys: map[string][]ed25519.PrivateKey{}, targets: map[string]*metadata.TargetFiles{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for role, n := range map[string]int{metadata.ROOT: 3, metadata.TARGETS: 1, metadata.SNAPSHOT: 1, metadata.TIMESTAMP: 1} {
		for range n {
			_, private, err := ed25519.GenerateKey(nil)
			if err != nil {
				return nil, err
			}
			r.keys[role] = append(r.keys[role], private)
		}
	}
	root := metadata.Root(time.Now().AddDate(10, 0, 0))
	for role, keys := range r.keys {
		for _, k := range keys {
			key, err := metadata.KeyFromPublicKey(k.Public())
			if err != nil {
				return nil, err
			}
			if err := root.Signed.AddKey(key, role); err != nil {
				return nil, err
			}
		}
	}
	root.Signed.Roles[metadata.ROOT].Threshold = 2
	return r, sign(root, r.keys[metadata.ROOT][:2], filepath.Join(dir, "root.json"))
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
	return m.ToFile(file, false)
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
	if err := os.WriteFile(filepath.Join(r.Dir, t.Name), packed, 0o644); err != nil {
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

// Publish signs the metadata again.
func (r *Repository) Publish() error {
	r.version++
	targets := metadata.Targets(r.Expires)
	targets.Signed.Version, targets.Signed.Targets = r.version, r.targets
	if err := sign(targets, r.keys[metadata.TARGETS], filepath.Join(r.Dir, fmt.Sprintf("%d.targets.json", r.version))); err != nil {
		return err
	}
	snapshot := metadata.Snapshot(r.Expires)
	snapshot.Signed.Version = r.version
	snapshot.Signed.Meta["targets.json"] = metadata.MetaFile(r.version)
	if err := sign(snapshot, r.keys[metadata.SNAPSHOT], filepath.Join(r.Dir, fmt.Sprintf("%d.snapshot.json", r.version))); err != nil {
		return err
	}
	timestamp := metadata.Timestamp(r.Expires)
	timestamp.Signed.Version = r.version
	timestamp.Signed.Meta["snapshot.json"] = metadata.MetaFile(r.version)
	return sign(timestamp, r.keys[metadata.TIMESTAMP], filepath.Join(r.Dir, "timestamp.json"))
}

// Root is the file that devices begin with.
func (r *Repository) Root() string { return filepath.Join(r.Dir, "root.json") }
