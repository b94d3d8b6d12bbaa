package store_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/klog/v2/ktesting"

	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// memoryDir is a directory without sync latency, if there is one.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "skerry-store-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestDamagedFilesAreSetAside(t *testing.T) {
	template := filepath.Join(t.TempDir(), "edge.db")
	before := fill(t, template)
	whole, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(template + ".key")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, template)
	want := read(t, s)
	s.Close()
	page := os.Getpagesize()
	used := len(whole) // the rest is room to grow
	for used > 0 && whole[used-1] == 0 {
		used--
	}

	// try opens a file and reports whether it was set aside. For every kind of damage: no panic, no
	// wrong record is ever read, the outbox is saved as far as it can be read, and the fresh store
	// works.
	try := func(t *testing.T, file []byte) (aside bool) {
		t.Helper()
		path := filepath.Join(memoryDir(t), "edge.db")
		for name, b := range map[string][]byte{path: file, path + ".key": key} {
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, path)
		defer s.Close()
		got := read(t, s)
		if s.SetAside() == "" {
			if !equal(want.Objects, got.Objects) || !equal(want.Entries, got.Entries) {
				t.Errorf("read from a file that was taken for whole: %s", cmp.Diff(want, got, protocmp.Transform()))
			}
		} else {
			if b, err := os.ReadFile(s.SetAside()); err != nil || !bytes.Equal(b, file) {
				t.Errorf("what was set aside is not the file: %v", err)
			}
			for _, resource := range []string{"pods", "secrets"} {
				objects := got.of(resource)
				if whole := equal(want.of(resource), objects) || equal(before.of(resource), objects); got.synced(resource) && !whole {
					t.Errorf("%d %s: a set with holes passes for the whole", len(objects), resource)
				}
				for r, o := range objects {
					if !proto.Equal(want.Objects[r], o) && !proto.Equal(before.Objects[r], o) {
						t.Errorf("%s: %s", r, cmp.Diff(want.Objects[r], o, protocmp.Transform()))
					}
				}
				if lost := strings.Join(s.Lost(), "\n"); got.Interests[7] != nil && got.Interests[8] != nil &&
					got.synced(resource) == strings.Contains(lost, "objects of /v1/"+resource) {
					t.Errorf("%s are synced: %t, lost: %s", resource, got.synced(resource), lost)
				}
			}
			for id, e := range got.Entries {
				if !proto.Equal(want.Entries[id], e) {
					t.Errorf("entry %d: %s", id, cmp.Diff(want.Entries[id], e, protocmp.Transform()))
				}
			}
		}
		update(t, s, func(tx *store.Tx) error { return tx.PutEntry(1<<60, &storepb.Entry{}) })
		return s.SetAside() != ""
	}

	t.Run("whole", func(t *testing.T) {
		if try(t, whole) {
			t.Error("set aside")
		}
	})
	cases := map[string]func(b []byte) []byte{
		"garbage":                  func(b []byte) []byte { return bytes.Repeat([]byte("garbage "), 10_000) },
		"one byte":                 func(b []byte) []byte { return b[:1] },
		"cut in the first page":    func(b []byte) []byte { return b[:page/2] },
		"cut after the meta pages": func(b []byte) []byte { return b[:2*page] },
		"cut in the middle":        func(b []byte) []byte { return b[:used/2/page*page] },
		"both meta pages zero":     func(b []byte) []byte { clear(b[:2*page]); return b },
		"all zero":                 func(b []byte) []byte { clear(b); return b },
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			if !try(t, spoil(bytes.Clone(whole))) {
				t.Error("not noticed")
			}
		})
	}
	t.Run("one meta page zero", func(t *testing.T) { // the other one is of the transaction before, or of this one
		for i := range 2 {
			b := bytes.Clone(whole)
			clear(b[i*page : (i+1)*page])
			path := filepath.Join(t.TempDir(), "edge.db")
			os.WriteFile(path, b, 0o600)
			os.WriteFile(path+".key", key, 0o600)
			s := open(t, path)
			read(t, s)
			s.Close()
		}
	})
	t.Run("flipped bits", func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		noticed, tries := 0, 0
		for at := 0; at < used; at += page {
			for range 3 {
				b := bytes.Clone(whole)
				b[at+r.IntN(page)] ^= 1 << r.IntN(8)
				tries++
				if try(t, b) {
					noticed++
				}
			}
		}
		for at := 2 * page; at < used; at += page { // a page with an empty header
			b := bytes.Clone(whole)
			clear(b[at+10 : at+12])
			try(t, b)
		}
		if noticed < tries/5 {
			t.Errorf("%d of %d noticed: hardly any byte seems to count", noticed, tries)
		}
	})
	t.Run("keys of branches", func(t *testing.T) {
		// bbolt looks for free pages in the whole tree when it opens a file, in a goroutine of its
		// own, and a key in the wrong place is the end of the process there.
		tries, noticed := 0, 0
		for at := 2 * page; at < used; at += page {
			if whole[at+8] != 1 { // the flags of a page: a branch
				continue
			}
			end := at + page
			for end > at && whole[end-1] == 0 {
				end--
			}
			for i := at; i < end; i++ {
				b := bytes.Clone(whole)
				b[i] ^= 1 << (i % 8)
				tries++
				if try(t, b) {
					noticed++
				}
			}
		}
		if tries == 0 || noticed < tries/4 {
			t.Errorf("%d of %d noticed", noticed, tries)
		}
	})
	t.Run("only some are kept", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "edge.db")
		for range 6 {
			os.WriteFile(path, []byte("garbage"), 0o600)
			open(t, path).Close()
		}
		if old, _ := filepath.Glob(path + ".damaged-*"); len(old) != 3 {
			t.Errorf("kept: %v", old)
		}
	})
	t.Run("what is whole is kept", func(t *testing.T) {
		records := map[string][]byte{
			"an event": bytes.Repeat([]byte{0xC0}, 100), "an entry of the outbox": entryNumber(59 * 50).Body[:100], "a pod": bytes.Repeat([]byte{57}, 57*40),
		}
		for name, record := range records {
			b := bytes.Clone(whole)
			for from := 0; ; from++ { // also in pages that are no longer used
				at := bytes.Index(b[from:], record)
				if at < 0 {
					break
				}
				from += at
				b[from] ^= 1
			}
			path := filepath.Join(memoryDir(t), "edge.db")
			os.WriteFile(path, b, 0o600)
			os.WriteFile(path+".key", key, 0o600)
			s := open(t, path)
			got := read(t, s)
			if s.SetAside() == "" || len(s.Lost()) != 1 {
				t.Errorf("%s: set aside: %q, lost: %v", name, s.SetAside(), s.Lost())
			}
			pods := name != "a pod"
			if got.synced("pods") != pods || equal(want.of("pods"), got.of("pods")) != pods || !got.synced("secrets") || !equal(want.of("secrets"), got.of("secrets")) {
				t.Errorf("%s: pods synced %t, %d of %d; secrets synced %t, %d of %d; lost: %v", name, got.synced("pods"), len(got.of("pods")), len(want.of("pods")),
					got.synced("secrets"), len(got.of("secrets")), len(want.of("secrets")), s.Lost())
			}
		}
	})
	t.Run("the outbox is saved", func(t *testing.T) {
		b := bytes.Clone(whole)
		last := bytes.Repeat([]byte{59}, 59*40) // value of the last pod
		for at := bytes.Index(b, last); at >= 0; at = bytes.Index(b, last) {
			b[at] ^= 1 // also in pages that are no longer used
		}
		path := filepath.Join(t.TempDir(), "edge.db")
		os.WriteFile(path, b, 0o600)
		os.WriteFile(path+".key", key, 0o600)
		s := open(t, path)
		if got := read(t, s); s.SetAside() == "" || len(got.Entries) != len(want.Entries) {
			t.Errorf("set aside: %q, %d entries of %d", s.SetAside(), len(got.Entries), len(want.Entries))
		}
		if err := s.View(func(tx *store.Tx) error {
			state, err := tx.State("drain", "phase")
			if string(state) != "cordoned" {
				t.Errorf("a module's state: %q", state)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

// A file that breaks while it is in use is an error, never a crash.
func TestDamageInUseIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	fill(t, path)
	s := open(t, path)
	if err := os.Truncate(path, int64(os.Getpagesize())); err != nil { // now its pages fault
		t.Fatal(err)
	}
	err := s.View(func(tx *store.Tx) error {
		return tx.Entries(func(uint64, *storepb.Entry) error { return nil })
	})
	if !errors.Is(err, store.ErrDamaged) {
		t.Errorf("View: %v, want %v", err, store.ErrDamaged)
	}
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return nil }); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Update: %v, want %v", err, store.ErrDamaged)
	}
	select {
	case <-s.Damaged():
	default:
		t.Error("Damaged is not closed")
	}
	if s.Salvageable() {
		t.Error("a file that was cut off is said to lose nothing")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = open(t, path)
	if s.SetAside() == "" {
		t.Error("the next Open did not notice")
	}
}

// A device whose store is damaged in use still opens sessions, and a later process is above them,
// regardless of its clock.
func TestEpochsGoOnFromMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	fill(t, path)
	now := time.Now()
	_, ctx := ktesting.NewTestContext(t)
	s, err := store.Open(ctx, store.Config{Path: path, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	last, err := s.NextEpoch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.View(func(tx *store.Tx) error { return &store.DamageError{Reason: "for the test"} }); !errors.Is(err, store.ErrDamaged) {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	for range 100 {
		epoch, err := s.NextEpoch(ctx)
		if err != nil || epoch <= last {
			t.Fatalf("epoch %d after %d, %v", epoch, last, err)
		}
		last = epoch
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Another process: this one has bbolt's lock on the file until it ends.
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	later := filepath.Join(t.TempDir(), "edge.db")
	if err := errors.Join(os.WriteFile(later, file, 0o600), os.Link(path+".key", later+".key")); err != nil {
		t.Fatal(err)
	}
	s, err = store.Open(ctx, store.Config{Path: later, Now: func() time.Time { return time.Unix(0, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if epoch, err := s.NextEpoch(ctx); err != nil || epoch <= last {
		t.Errorf("after a restart: epoch %d after %d, %v", epoch, last, err)
	}
}

// Pages that break while the file is in use make the writes that read them fail, both while records
// are put and while pages are merged at the end, and the process continues.
func TestPagesThatBreakInUse(t *testing.T) {
	for name, c := range map[string]struct {
		held  []byte // by the pages that break
		write func(tx *store.Tx, first uint64) error
	}{
		"put": {[]byte("default\x00"), func(tx *store.Tx, _ uint64) error {
			return tx.PutObject(ref("pods", "default", "1"), objectNumber(7))
		}},
		"commit": {entryNumber(50).Body, func(tx *store.Tx, first uint64) error {
			for i := uint64(59); i > first; i-- { // the remainder is merged with the first page
				if err := tx.DeleteEntry(i); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edge.db")
			fill(t, path)
			s := open(t, path)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			page, first := os.Getpagesize(), uint64(0)
			for at := 2 * page; at+page <= len(b); at += page {
				if !bytes.Contains(b[at:at+page], c.held) {
					continue
				}
				first = max(first, uint64(binary.NativeEndian.Uint16(b[at+10:]))) // how many records it has
				if _, err := f.WriteAt(binary.NativeEndian.AppendUint16(nil, 0xfffd), int64(at+8)); err != nil {
					t.Fatal(err)
				}
			}
			if first == 0 {
				t.Fatal("no page was broken")
			}
			met := false // at the commit
			for range 2 {
				committed := false
				err := s.Update(t.Context(), func(tx *store.Tx) error {
					err := c.write(tx, first)
					committed = err == nil
					return err
				})
				if !errors.Is(err, store.ErrDamaged) {
					t.Errorf("Update: %v, want %v", err, store.ErrDamaged)
				}
				met = met || committed
			}
			if met != (name == "commit") {
				t.Errorf("the damage was met at the commit: %v", met)
			}
			if _, err := s.NextEpoch(t.Context()); err != nil {
				t.Errorf("NextEpoch: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if s = open(t, path); s.SetAside() == "" {
				t.Error("the next Open did not notice")
			}
		})
	}
}
