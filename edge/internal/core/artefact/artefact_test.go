package artefact_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// system is a device's Store, and the repository that it trusts.
type system struct {
	*testing.T
	store *artefact.Store
	repo  *artefactrepo.Repository
	dir   string
	now   time.Time
	free  int64
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{T: t, repo: repository(t), now: time.Now(), free: 1 << 40}
	keys := t.TempDir()
	s.check(os.WriteFile(filepath.Join(keys, "root.json"), s.read(s.repo.Root()), 0o644))
	s.dir = t.TempDir()
	s.store = artefact.New(artefact.Config{
		Keys: []string{filepath.Join(keys, "none"), keys}, Dir: s.dir, Arch: "amd64", Now: func() time.Time { return s.now },
		Free: func(string) (int64, error) { return s.free, nil },
	})
	return s
}

func repository(t *testing.T) *artefactrepo.Repository {
	t.Helper()
	r, err := artefactrepo.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *system) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *system) read(file string) []byte {
	s.Helper()
	raw, err := os.ReadFile(file)
	s.check(err)
	return raw
}

// fetch is all of it: from the metadata to the program.
func (s *system) fetch(from artefact.Source, version string, offline bool) ([]byte, error) {
	s.Helper()
	c, err := s.store.Refresh(s.Context(), from, offline)
	if err != nil {
		return nil, err
	}
	t, _, err := c.Find(version, "amd64", "")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.store.Room(t)); err != nil {
		return nil, err
	}
	if err := s.store.Fetch(s.Context(), from, t, func(int64) {}); err != nil {
		return nil, err
	}
	path, err := s.store.Unpack(t, "")
	if err != nil {
		return nil, err
	}
	return s.read(path), nil
}

func program(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// A disk that can't be read accuses no program.
func TestUnreadableFileIsNoWrongHash(t *testing.T) {
	s := newSystem(t)
	_, err := s.repo.Add("v1.4.0", "amd64", program(1<<20), nil)
	s.check(err)
	c, err := s.store.Refresh(t.Context(), artefact.Files(s.repo.Dir), false)
	s.check(err)
	target, _, err := c.Find("v1.4.0", "amd64", "")
	s.check(err)
	s.check(os.MkdirAll(filepath.Join(s.dir, target.SHA256+".part"), 0o755)) // read(2) fails with EISDIR
	if _, err := s.store.Unpack(target, ""); !errors.Is(err, syscall.EISDIR) || errors.Is(err, artefact.ErrWrongHash) {
		t.Errorf("got %v", err)
	}
}

// Every kind of bad artefact is refused with the reason, and no program is made of it.
func TestFleet_08_WrongArtefactsAreRefused(t *testing.T) {
	good := program(100_000)
	for name, c := range map[string]struct {
		spoil func(s *system) (from artefact.Source)
		want  error
	}{
		"nothing wrong": {func(s *system) artefact.Source { return artefact.Files(s.repo.Dir) }, nil},
		"another's keys": {func(s *system) artefact.Source {
			other := repository(s.T)
			_, err := other.Add("v1.4.0", "amd64", good, nil)
			s.check(err)
			return artefact.Files(other.Dir)
		}, artefact.ErrUntrusted},
		"metadata that were changed": {func(s *system) artefact.Source {
			for _, name := range []string{"1.targets.json", "2.targets.json"} {
				file := filepath.Join(s.repo.Dir, name)
				if raw, err := os.ReadFile(file); err == nil {
					s.check(os.WriteFile(file, bytes.Replace(raw, []byte("v1.4.0"), []byte("v1.4.1"), 1), 0o644))
				}
			}
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrUntrusted},
		"another hash": {func(s *system) artefact.Source {
			file := filepath.Join(s.repo.Dir, "edgecore-v1.4.0-amd64.zst")
			raw := s.read(file)
			raw[len(raw)/2] ^= 1
			s.check(os.WriteFile(file, raw, 0o644))
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrWrongHash},
		"another architecture": {func(s *system) artefact.Source {
			other := newSystem(s.T)
			_, err := other.repo.Add("v1.4.0", "arm64", good, nil)
			s.check(err)
			s.store, s.repo = other.store, other.repo
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrNoTarget},
		"metadata that have expired": {func(s *system) artefact.Source {
			s.now = s.now.Add(48 * time.Hour)
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrExpired},
		"old metadata replayed": {func(s *system) artefact.Source {
			old := s.TempDir()
			s.check(os.CopyFS(old, os.DirFS(s.repo.Dir)))
			s.check(s.repo.Publish())
			_, err := s.store.Refresh(s.Context(), artefact.Files(s.repo.Dir), false)
			s.check(err)
			return artefact.Files(old)
		}, artefact.ErrReplayed},
		"a bomb": {func(s *system) artefact.Source {
			packed, err := artefactrepo.Pack(make([]byte, 64<<20))
			s.check(err)
			_, err = s.repo.AddPacked("v1.4.0", "amd64", packed, good, nil)
			s.check(err)
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrBomb},
		"a program that is another than was signed": {func(s *system) artefact.Source {
			packed, err := artefactrepo.Pack(program(len(good)))
			s.check(err)
			_, err = s.repo.AddPacked("v1.4.0", "amd64", packed, good, nil)
			s.check(err)
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrWrongHash},
		"no room": {func(s *system) artefact.Source {
			s.free = 1 << 20
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrNoRoom},
		"no keys": {func(s *system) artefact.Source {
			s.store = artefact.New(artefact.Config{Dir: s.dir, Arch: "amd64", Now: time.Now})
			return artefact.Files(s.repo.Dir)
		}, artefact.ErrNoKeys},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			_, err := s.repo.Add("v1.4.0", "amd64", good, nil)
			s.check(err)
			got, err := s.fetch(c.spoil(s), "v1.4.0", false)
			if !errors.Is(err, c.want) {
				t.Fatalf("want %v, got %v", c.want, err)
			}
			if c.want == nil && !bytes.Equal(got, good) {
				t.Error("the program is another")
			}
			if left, _ := filepath.Glob(filepath.Join(s.dir, "unpacked")); c.want != nil && len(left) > 0 {
				t.Errorf("a refused program is left on the disk: %v", left)
			}
		})
	}
}

// An operator's bundle with expired metadata is accepted with a warning; one older than the
// metadata seen by the device is not.
func TestExpiredBundle(t *testing.T) {
	s := newSystem(t)
	_, err := s.repo.Add("v1.4.0", "amd64", program(1000), nil)
	s.check(err)
	s.now = s.now.Add(48 * time.Hour)
	c, err := s.store.Refresh(t.Context(), artefact.Files(s.repo.Dir), true)
	s.check(err)
	if !strings.Contains(c.Warning, "expired") {
		t.Errorf("the warning is %q", c.Warning)
	}
}

// cutting is a Source whose streams end after some bytes, and that counts those that were read.
type cutting struct {
	artefact.Source
	after int64
	sent  map[string]int64
}

func (c *cutting) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	r, err := c.Source.Open(ctx, name, offset)
	if err != nil || !strings.HasSuffix(name, ".zst") {
		return r, err
	}
	return &cut{ReadCloser: r, left: c.after, count: func(n int) { c.sent[name] += int64(n) }}, nil
}

type cut struct {
	io.ReadCloser
	left  int64
	count func(int)
}

func (c *cut) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("the link is lost")
	}
	n, err := c.ReadCloser.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	c.count(n)
	return n, err
}

// A download that is cut 20 times completes, without fetching any byte twice.
func TestFleet_10_NoByteComesTwice(t *testing.T) {
	s := newSystem(t)
	want := program(1 << 20)
	target, err := s.repo.Add("v1.4.0", "amd64", want, nil)
	s.check(err)
	from := &cutting{artefact.Files(s.repo.Dir), target.Length/20 - 1, map[string]int64{}}
	var got []byte
	cuts := 0
	for range 30 {
		if got, err = s.fetch(from, "v1.4.0", false); err == nil {
			break
		}
		cuts++
	}
	if err != nil || cuts < 20 || !bytes.Equal(got, want) {
		t.Errorf("after %d cuts: %d bytes, %v", cuts, len(got), err)
	}
	if diff := cmp.Diff(map[string]int64{target.Name: target.Length}, from.sent); diff != "" {
		t.Errorf("bytes that were sent (-want +got):\n%s", diff)
	}
}

// A program is unpacked in the directory of the slots, which may be on another file system; what an
// earlier process left there is removed.
func TestProgramIsUnpackedBesideTheSlots(t *testing.T) {
	s := newSystem(t)
	slots := filepath.Join(t.TempDir(), "bin")
	keys := filepath.Dir(s.repo.Root())
	s.store = artefact.New(artefact.Config{Keys: []string{keys}, Dir: s.dir, Programs: slots, Arch: "amd64", Now: time.Now})
	target, err := s.repo.Add("v1.4.0", "amd64", program(1000), nil)
	s.check(err)
	_, err = s.fetch(artefact.Files(s.repo.Dir), "v1.4.0", false)
	s.check(err)
	if _, err := os.Stat(filepath.Join(slots, "unpacked")); err != nil {
		t.Error(err)
	}
	s.check(s.store.Clean(artefact.Target{}))
	for _, pattern := range []string{filepath.Join(slots, "*"), filepath.Join(s.dir, "*.part")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left of %s: %v", target.Name, left)
		}
	}
}

// A part that a power cut has damaged is fetched again. A file that this process alone has fetched
// is another one than was signed.
func TestDamagedPartIsFetchedAgain(t *testing.T) {
	s := newSystem(t)
	want := program(1 << 20)
	target, err := s.repo.Add("v1.4.0", "amd64", want, nil)
	s.check(err)
	from := &cutting{artefact.Files(s.repo.Dir), target.Length / 2, map[string]int64{}}
	if _, err := s.fetch(from, "v1.4.0", false); err == nil {
		t.Fatal("it is not cut")
	}
	s.check(os.WriteFile(filepath.Join(s.dir, target.SHA256+".part"), make([]byte, target.Length/2), 0o600))
	s.store = artefact.New(artefact.Config{Keys: []string{filepath.Dir(s.repo.Root())}, Dir: s.dir, Arch: "amd64", Now: time.Now})
	if _, err := s.fetch(artefact.Files(s.repo.Dir), "v1.4.0", false); err == nil || errors.Is(err, artefact.ErrWrongHash) {
		t.Fatalf("a damaged part: %v", err)
	}
	if got, err := s.fetch(artefact.Files(s.repo.Dir), "v1.4.0", false); err != nil || !bytes.Equal(got, want) {
		t.Errorf("fetched again: %d bytes, %v", len(got), err)
	}
}

// hanging is a Source whose streams bring some bytes, and then none.
type hanging struct{ artefact.Source }

func (h hanging) Open(context.Context, string, int64) (io.ReadCloser, error) {
	near, far := net.Pipe()
	go func() { _, _ = far.Write([]byte("{")) }()
	return near, nil
}

// A stream that brings no byte for minutes is closed.
func TestStalledStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		began := time.Now()
		_, err := s.store.Refresh(t.Context(), hanging{artefact.Files(s.repo.Dir)}, false)
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "no byte came for 5m0s") || took != 5*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A bundle that does not fit leaves nothing on the disk, and the one before stays.
func TestBundleThatCannotBeRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bundle")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "before"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Size: 1 << 20, Mode: 0o600}); err != nil { // and no content
		t.Fatal(err)
	}
	if err := artefact.ReadBundle(&b, dir); err == nil {
		t.Error("a truncated bundle is read")
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(entries) != 1 || entries[0].Name() != "bundle" {
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "before")); err != nil {
		t.Error(err)
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"timestamp.json", "../x", "a/b", "a\nb", ".hidden", "$(x)", "", "./timestamp.json", "a/../timestamp.json", "a"} {
		f.Add(s)
	}
	// One file may be opened; each other one is there too.
	parent := f.TempDir()
	dir := filepath.Join(parent, "bundle")
	for _, name := range []string{"../x", "timestamp.json", "a/b", ".hidden"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(name), 0o644)); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, name string) {
		r, err := artefact.Files(dir).Open(t.Context(), name, 0)
		if err == nil {
			raw, _ := io.ReadAll(r) // a directory can't be read
			r.Close()
			if name != "timestamp.json" && len(raw) > 0 {
				t.Errorf("%q was opened, and has %q", name, raw)
			}
		} else if name == "timestamp.json" {
			t.Error(err)
		}
		link := artefact.Link{}
		if strings.ContainsAny(name, "/\n $'\"") {
			if _, err := link.Open(t.Context(), name, 0); err == nil || !strings.Contains(err.Error(), "no name") {
				t.Errorf("%q is asked for: %v", name, err)
			}
		}
	})
}

// A delta to the program that runs makes the same program of far fewer bytes.
func TestDelta(t *testing.T) {
	s := newSystem(t)
	before := program(3 << 20)
	after := bytes.Clone(before)
	copy(after[1<<20:], program(1000))
	packed, err := artefactrepo.Delta(before, after)
	s.check(err)
	_, err = s.repo.Add("v1.4.0", "amd64", after, nil)
	s.check(err)
	_, err = s.repo.AddPacked("v1.4.0", "amd64", packed, after, func(t *artefactrepo.Target) {
		t.From, t.Name = artefactrepo.Digest(before), "edgecore-v1.4.0-amd64-delta.zst"
	})
	s.check(err)
	from := artefact.Files(s.repo.Dir)
	c, err := s.store.Refresh(t.Context(), from, false)
	s.check(err)
	whole, deltas, err := c.Find("v1.4.0", "amd64", "")
	s.check(err)
	if len(deltas) != 1 || deltas[0].Length*10 > whole.Length {
		t.Fatalf("%+v, whole %+v", deltas, whole)
	}
	base := filepath.Join(s.dir, "base")
	s.check(os.WriteFile(base, before, 0o600))
	s.check(s.store.Fetch(t.Context(), from, deltas[0], func(int64) {}))
	path, err := s.store.Unpack(deltas[0], base)
	s.check(err)
	if !bytes.Equal(s.read(path), after) {
		t.Error("the program is another")
	}
	s.check(os.WriteFile(base, program(3<<20), 0o600))
	if _, err := s.store.Unpack(deltas[0], base); err == nil {
		t.Error("a delta to another program is taken")
	}
}

// Keys that were replaced are refused by a device that has seen their replacement, also after a
// restart, and whichever of its files of keys is older: the holder of the cloud and of the old keys
// serves metadata with a higher version. A file that is removed ends its trust.
func TestReplacedKeysStayRefused(t *testing.T) {
	s := newSystem(t)
	own, keys, old, stolen := filepath.Join(t.TempDir(), "repo"), filepath.Join(t.TempDir(), "keys"), t.TempDir(), t.TempDir()
	repo, err := artefactrepo.Create(own, keys)
	s.check(err)
	trusted, more := t.TempDir(), t.TempDir()
	s.check(os.WriteFile(filepath.Join(trusted, "root.json"), s.read(repo.Root()), 0o644))
	start := func() { // a process of its own each
		s.store = artefact.New(artefact.Config{Keys: []string{more, trusted}, Dir: s.dir, Arch: "amd64", Now: time.Now})
	}
	start()
	_, err = s.store.Refresh(t.Context(), artefact.Files(own), false)
	s.check(err)
	s.check(errors.Join(os.CopyFS(old, os.DirFS(own)), os.CopyFS(stolen, os.DirFS(keys))))
	for _, role := range []string{"targets", "snapshot", "timestamp"} {
		s.check(repo.Rotate(role))
	}
	s.check(os.WriteFile(filepath.Join(more, "root.json"), s.read(repo.Root()), 0o644))
	start()
	_, err = s.store.Refresh(t.Context(), artefact.Files(own), false)
	s.check(err)

	attacker, err := artefactrepo.Open(old, stolen)
	s.check(err)
	for range 8 {
		s.check(attacker.Publish())
	}
	_, err = attacker.Add("v6.6.6", "amd64", program(1000), nil)
	s.check(err)
	start()
	if _, err := s.store.Refresh(t.Context(), artefact.Files(old), false); !errors.Is(err, artefact.ErrUntrusted) {
		t.Errorf("metadata of keys that were replaced: %v", err)
	}
	s.check(os.Remove(filepath.Join(more, "root.json")))
	start()
	if _, err := s.store.Refresh(t.Context(), artefact.Files(old), false); !errors.Is(err, artefact.ErrUntrusted) {
		t.Errorf("metadata of keys that were replaced, by the older file: %v", err)
	}
	s.check(os.Remove(filepath.Join(trusted, "root.json")))
	start()
	if _, err := s.store.Refresh(t.Context(), artefact.Files(own), false); !errors.Is(err, artefact.ErrNoKeys) {
		t.Errorf("without a file of keys: %v", err)
	}
}

// Metadata older than those seen are refused after a restart too, over the link and from a bundle.
func TestOlderMetadataAreRefusedAfterARestart(t *testing.T) {
	s := newSystem(t)
	own, keys, old := filepath.Join(t.TempDir(), "repo"), filepath.Join(t.TempDir(), "keys"), t.TempDir()
	repo, err := artefactrepo.Create(own, keys)
	s.check(err)
	trusted := t.TempDir()
	s.check(os.WriteFile(filepath.Join(trusted, "root.json"), s.read(repo.Root()), 0o644))
	_, err = repo.Add("v1.0.0", "amd64", program(1000), nil)
	s.check(err)
	s.check(os.CopyFS(old, os.DirFS(own)))
	_, err = repo.Add("v2.0.0", "amd64", program(1000), nil)
	s.check(err)
	for range 2 {
		start := artefact.New(artefact.Config{Keys: []string{trusted}, Dir: s.dir, Arch: "amd64", Now: time.Now})
		_, err := start.Refresh(t.Context(), artefact.Files(own), false)
		s.check(err)
		start = artefact.New(artefact.Config{Keys: []string{trusted}, Dir: s.dir, Arch: "amd64", Now: time.Now})
		if _, err := start.Refresh(t.Context(), artefact.Files(old), false); !errors.Is(err, artefact.ErrReplayed) {
			t.Errorf("older metadata: %v", err)
		}
		if _, err := start.Refresh(t.Context(), artefact.Files(old), true); !errors.Is(err, artefact.ErrReplayed) {
			t.Errorf("older metadata in a bundle: %v", err)
		}
	}
}
