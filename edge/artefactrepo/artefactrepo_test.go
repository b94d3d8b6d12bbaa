package artefactrepo_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"

	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// system is a repository with keys in files, and a device that began with its first root.json.
type system struct {
	*testing.T
	dir, keys string
	device    *artefact.Store
}

func newSystem(t *testing.T) *system {
	t.Helper()
	dir := t.TempDir()
	s := &system{T: t, dir: filepath.Join(dir, "repo"), keys: filepath.Join(dir, "keys")}
	_, err := artefactrepo.Create(s.dir, s.keys)
	s.check(err)
	root, err := os.ReadFile(filepath.Join(s.dir, "root.json"))
	s.check(err)
	trusted := filepath.Join(dir, "keys.d")
	s.check(errors.Join(os.MkdirAll(trusted, 0o755), os.WriteFile(filepath.Join(trusted, "root.json"), root, 0o644)))
	s.device = artefact.New(artefact.Config{Keys: []string{trusted}, Dir: filepath.Join(dir, "device"), Arch: "amd64", Now: time.Now})
	return s
}

func (s *system) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// open reads the repository as the next call of a tool does.
func (s *system) open() *artefactrepo.Repository {
	s.Helper()
	r, err := artefactrepo.Open(s.dir, s.keys)
	s.check(err)
	return r
}

// sees are the versions that the device is offered.
func (s *system) sees() (all []string) {
	s.Helper()
	c, err := s.device.Refresh(s.Context(), artefact.Files(s.dir), false)
	s.check(err)
	for _, t := range c.Targets {
		all = append(all, t.Version)
	}
	return all
}

// A device trusts a repository that several calls of a tool have made: programs, deltas, removals,
// and metadata that were signed again; files of metadata do not grow in number.
func TestRepositoryInFiles(t *testing.T) {
	s := newSystem(t)
	one, two := bytes.Repeat([]byte("one"), 1000), append(bytes.Repeat([]byte("one"), 1000), "two"...)
	_, err := s.open().Add("v1.4.0", "amd64", one, nil)
	s.check(err)
	r := s.open()
	_, err = r.Add("v1.4.1", "amd64", two, artefactrepo.OfThisRelease)
	s.check(err)
	packed, err := artefactrepo.Delta(one, two)
	s.check(err)
	_, err = r.AddDelta("v1.4.1", "amd64", one, packed, two, nil)
	s.check(err)
	if got := s.sees(); !slices.Equal(got, []string{"v1.4.0", "v1.4.1", "v1.4.1"}) {
		t.Errorf("the device sees %v", got)
	}
	if _, err := s.open().Add("v1.4.1", "amd64", one, nil); err == nil || !strings.Contains(err.Error(), "remove v1.4.1 first") {
		t.Errorf("another program by a name that is taken: %v", err)
	}
	_, err = s.open().Add("v1.4.1", "amd64", two, artefactrepo.OfThisRelease) // the same once more
	s.check(err)
	c, err := s.device.Refresh(t.Context(), artefact.Files(s.dir), false)
	s.check(err)
	whole, deltas, err := c.Find("v1.4.1", "amd64", "")
	s.check(err)
	if whole.Protocol == 0 || whole.Schema == 0 || whole.Kubernetes == "" || len(deltas) != 1 || deltas[0].From != artefactrepo.Digest(one) || deltas[0].Digest != whole.Digest {
		t.Errorf("%+v, deltas %+v", whole, deltas)
	}
	s.check(s.open().Remove("v1.4.0"))
	s.check(s.open().Publish())
	if got := s.sees(); !slices.Equal(got, []string{"v1.4.1", "v1.4.1"}) {
		t.Errorf("after a removal the device sees %v", got)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*v1.4.0*")); len(left) > 0 {
		t.Errorf("files of what was removed: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*.targets.json")); len(left) != 2 {
		t.Errorf("metadata are %v", left)
	}
	if err := s.open().Remove("v1.4.0"); err == nil {
		t.Error("a version was removed twice")
	}
	if _, err := artefactrepo.Create(s.dir, filepath.Join(t.TempDir(), "keys")); err == nil {
		t.Error("a repository was overwritten")
	}
}

// An older copy of a repository is not signed again, once its keys have signed a newer one: devices
// would refuse it, and it would bring back what was removed.
func TestOlderCopyIsRefused(t *testing.T) {
	s := newSystem(t)
	_, err := s.open().Add("v1.4.0", "amd64", []byte("one"), nil)
	s.check(err)
	older := t.TempDir()
	s.check(os.CopyFS(older, os.DirFS(s.dir)))
	s.check(s.open().Remove("v1.4.0"))
	reopen := func() *artefactrepo.Repository {
		t.Helper()
		r, err := artefactrepo.Open(older, s.keys)
		s.check(err)
		return r
	}
	_, err = reopen().Add("v1.4.1", "amd64", []byte("two"), nil)
	for how, err := range map[string]error{"add": err, "refresh": reopen().Publish(), "remove": reopen().Remove("v1.4.0"), "rotate": reopen().Rotate("targets")} {
		if err == nil || !strings.Contains(err.Error(), "is an older copy") {
			t.Errorf("%s: %v", how, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(older, "*v1.4.1*")); len(left) > 0 {
		t.Errorf("files of a version that was refused: %v", left)
	}
	_, err = s.open().Add("v1.4.1", "amd64", []byte("two"), nil) // the newest copy
	s.check(err)
}

// A signing that ended in the middle, as on a full disk, is repeated: neither the metadata before
// it nor those that it may have signed are an older copy.
func TestSigningIsRepeated(t *testing.T) {
	s := newSystem(t)
	file := filepath.Join(s.keys, "last-version")
	raw, err := os.ReadFile(file)
	s.check(err)
	version, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	s.check(err)
	for _, begun := range []int{version, version + 1} {
		s.check(os.WriteFile(file, fmt.Appendf(nil, "%d begun\n", begun), 0o600))
		_, err = artefactrepo.Open(s.dir, s.keys)
		s.check(err)
	}
	s.check(s.open().Publish())
	raw, err = os.ReadFile(file)
	s.check(err)
	if got, want := string(raw), fmt.Sprintf("%d\n", version+1); got != want {
		t.Errorf("last-version is %q, want %q", got, want)
	}
	s.check(os.WriteFile(file, fmt.Appendf(nil, "%d begun\n", version+3), 0o600))
	if err := s.open().Publish(); err == nil || !strings.Contains(err.Error(), "is an older copy") {
		t.Errorf("two versions before the one that was begun: %v", err)
	}
}

// forge adds a program by keys that were stolen: in a repository of the thief's own, whose targets,
// snapshot and timestamp replace those of this one.
func (s *system) forge(stolen string) {
	s.Helper()
	own := filepath.Join(s.TempDir(), "own")
	_, err := artefactrepo.Create(own, filepath.Join(s.TempDir(), "other"))
	s.check(err)
	s.sign(own, stolen)
	s.check(os.Remove(filepath.Join(stolen, "last-version"))) // no obstacle to a thief
	r, err := artefactrepo.Open(own, stolen)
	s.check(err)
	_, err = r.Add("v6.6.6", "amd64", []byte("evil"), nil)
	s.check(err)
	for range 20 { // above the versions of this one
		s.check(r.Publish())
	}
	s.check(os.Remove(filepath.Join(own, "root.json")))
	s.check(os.Remove(filepath.Join(own, "1.root.json")))
	all, err := os.ReadDir(own)
	s.check(err)
	for _, e := range all {
		raw, err := os.ReadFile(filepath.Join(own, e.Name()))
		s.check(errors.Join(err, os.WriteFile(filepath.Join(s.dir, e.Name()), raw, 0o644)))
	}
}

// sign signs the targets of a repository by other keys.
func (s *system) sign(dir, keys string) {
	s.Helper()
	raw, err := os.ReadFile(filepath.Join(keys, "targets.pem"))
	s.check(err)
	block, _ := pem.Decode(raw)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	s.check(err)
	signer, err := signature.LoadSigner(key, crypto.Hash(0))
	s.check(err)
	file := filepath.Join(dir, "1.targets.json")
	m, err := metadata.Targets().FromFile(file)
	s.check(err)
	m.ClearSignatures()
	_, err = m.Sign(signer)
	s.check(err)
	s.check(m.ToFile(file, false))
}

// Who can write to the repository and has no key has no program signed by its owner.
func TestSignsAgainOnlyItsOwn(t *testing.T) {
	s := newSystem(t)
	_, err := s.open().Add("v1.4.0", "amd64", []byte("program"), nil)
	s.check(err)
	change := func(name, from, to string) {
		t.Helper()
		path := filepath.Join(s.dir, name)
		raw, err := os.ReadFile(path)
		s.check(err)
		if !strings.Contains(string(raw), from) {
			t.Fatalf("%s has no %s", name, from)
		}
		s.check(os.WriteFile(path, []byte(strings.Replace(string(raw), from, to, 1)), 0o644))
	}
	change("root.json", `"threshold":2`, `"threshold":1`)
	if err := s.open().Rotate("timestamp"); err == nil {
		t.Error("root.json of a thief was signed")
	}
	change("root.json", `"threshold":1`, `"threshold":2`)
	change("2.targets.json", `"arch":"amd64"`, `"arch":"arm64"`)
	for what, err := range map[string]error{
		"refreshed": s.open().Publish(),
		"rotated":   s.open().Rotate("targets"),
		"removed":   s.open().Remove("v1.4.0"),
	} {
		if err == nil || !strings.Contains(err.Error(), "targets.json") {
			t.Errorf("%s with targets of a thief: %v", what, err)
		}
	}
	if _, err := s.open().Add("v1.4.1", "amd64", []byte("next"), nil); err == nil {
		t.Error("a program was added to those of a thief")
	}
	if _, err := os.Stat(filepath.Join(s.dir, "edgecore-v1.4.1-amd64.zst")); err == nil {
		t.Error("its file was written")
	}
	change("2.targets.json", `"arch":"arm64"`, `"arch":"amd64"`)
	_, err = s.open().Add("v1.4.1", "amd64", []byte("next"), nil)
	s.check(err)
	if _, err := s.open().Add("../v1.4.2", "amd64", []byte("next"), nil); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("a version that leads out of the directory: %v", err)
	}
	s.check(s.open().Rotate("timestamp"))
	change("root.json", `"threshold":2`, `"threshold":1`)
	if err := s.open().Rotate("timestamp"); err == nil {
		t.Error("a second root.json of a thief was signed")
	}
}

// Any two keys of root replace keys, and replace a third one that was lost, also where other two
// have signed in between. With one it is refused.
func TestRotateWithoutOneKey(t *testing.T) {
	for _, lost := range []string{"root-1.pem", "root-2.pem", "root-3.pem"} {
		t.Run(lost, func(t *testing.T) {
			s := newSystem(t)
			_, err := s.open().Add("v1.4.0", "amd64", []byte("program"), nil)
			s.check(err)
			away := filepath.Join(t.TempDir(), "away")
			for _, name := range []string{"root-1.pem", "root-2.pem", "root-3.pem"} {
				s.check(os.Rename(filepath.Join(s.keys, name), away))
				s.check(s.open().Rotate("timestamp"))
				s.check(os.Rename(away, filepath.Join(s.keys, name)))
			}
			s.check(os.Remove(filepath.Join(s.keys, lost)))
			s.check(s.open().Rotate("targets"))
			s.check(s.open().Rotate("root"))
			s.check(s.open().Rotate("snapshot"))
			if got := s.sees(); !slices.Equal(got, []string{"v1.4.0"}) {
				t.Errorf("the device sees %v", got)
			}
			s.check(errors.Join(os.Remove(filepath.Join(s.keys, "root-1.pem")), os.Remove(filepath.Join(s.keys, "root-3.pem"))))
			if err := s.open().Rotate("targets"); err == nil || !strings.Contains(err.Error(), "root-3") {
				t.Errorf("with one key: %v", err)
			}
		})
	}
}

// A rotation that fails loses no key: it is done again.
func TestRotateAgain(t *testing.T) {
	s := newSystem(t)
	_, err := s.open().Add("v1.4.0", "amd64", []byte("program"), nil)
	s.check(err)
	full := filepath.Join(s.dir, "2.root.json") // can't be replaced by a file
	s.check(os.Mkdir(full, 0o755))
	if err := s.open().Rotate("root"); err == nil {
		t.Fatal("root.json was written")
	}
	s.check(os.Remove(full))
	s.check(s.open().Rotate("root"))
	s.check(s.open().Rotate("root"))
	if got := s.sees(); !slices.Equal(got, []string{"v1.4.0"}) {
		t.Errorf("the device sees %v", got)
	}
	if keys, _ := filepath.Glob(filepath.Join(s.keys, "*.pem*")); len(keys) != 6 {
		t.Errorf("keys are %v", keys)
	}
}

// Keys of every role are replaced, and a device follows, also over several rotations at once. The
// old keys alone can't sign any more; without the keys of root no key is replaced.
func TestRotate(t *testing.T) {
	s := newSystem(t)
	_, err := s.open().Add("v1.4.0", "amd64", []byte("program"), nil)
	s.check(err)
	s.sees()
	stolen := filepath.Join(t.TempDir(), "stolen")
	s.check(os.CopyFS(stolen, os.DirFS(s.keys)))
	for _, role := range []string{"targets", "root", "timestamp"} {
		s.check(s.open().Rotate(role))
	}
	if got := s.sees(); !slices.Equal(got, []string{"v1.4.0"}) {
		t.Errorf("the device sees %v", got)
	}
	s.check(s.open().Rotate("snapshot"))
	s.sees()
	thief, err := artefactrepo.Open(s.dir, stolen)
	s.check(err)
	if _, err := thief.Add("v6.6.6", "amd64", []byte("evil"), nil); err == nil {
		t.Error("keys that were replaced sign again what the new ones have signed")
	}
	good := filepath.Join(t.TempDir(), "good")
	s.check(os.CopyFS(good, os.DirFS(s.dir)))
	s.forge(stolen)
	if _, err := s.device.Refresh(t.Context(), artefact.Files(s.dir), false); !errors.Is(err, artefact.ErrUntrusted) {
		t.Errorf("signed by keys that were replaced: %v", err)
	}
	for what, err := range map[string]error{"published": s.open().Publish(), "rotated": s.open().Rotate("timestamp"), "removed": s.open().Remove("v6.6.6")} {
		if err == nil {
			t.Errorf("%s what a thief has signed", what)
		}
	}
	s.check(errors.Join(os.RemoveAll(s.dir), os.CopyFS(s.dir, os.DirFS(good))))
	s.sees()
	for _, key := range []string{"root-1.pem", "root-2.pem", "root-3.pem"} {
		s.check(os.Remove(filepath.Join(s.keys, key)))
	}
	if err := s.open().Rotate("targets"); err == nil || !strings.Contains(err.Error(), "root-1") {
		t.Errorf("without the keys of root: %v", err)
	}
	_, err = s.open().Add("v1.4.2", "amd64", []byte("next"), nil)
	s.check(err)
	if got := s.sees(); !slices.Equal(got, []string{"v1.4.0", "v1.4.2"}) {
		t.Errorf("the device sees %v", got)
	}
}
