package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2/ktesting"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

func open(t *testing.T, path string) *store.Store {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	s, err := store.Open(ctx, store.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func update(t *testing.T, s *store.Store, do func(*store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), do); err != nil {
		t.Fatal(err)
	}
}

func ref(resource, namespace, name string) object.Ref {
	return object.Ref{Resource: schema.GroupVersionResource{Version: "v1", Resource: resource}, Namespace: namespace, Name: name}
}

func TestRecordsSurvive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	s := open(t, path)
	want := map[object.Ref]*storepb.Object{
		ref("pods", "default", "a"):    {Uid: "1", Version: 5, CloudVersion: "7", Labels: map[string]string{"a": "b"}, Raw: []byte("raw")},
		ref("secrets", "default", "a"): {Uid: "2", Version: 6, CloudVersion: "8", Raw: []byte("hidden-treasure")},
		ref("nodes", "", "a"):          {Uid: "3", Version: 7, CloudVersion: "9", Raw: []byte("raw")},
	}
	update(t, s, func(tx *store.Tx) error {
		for r, o := range want {
			if err := tx.PutObject(r, o); err != nil {
				return err
			}
		}
		if err := tx.PutObject(ref("pods", "x", "gone"), &storepb.Object{}); err != nil {
			return err
		}
		if err := tx.PutAnswer([]byte("token"), &storepb.Answer{Body: []byte("bearer-of-light")}); err != nil {
			return err
		}
		return tx.SetState("drain", "cursor", []byte("12"))
	})
	update(t, s, func(tx *store.Tx) error { return tx.DeleteObject(ref("pods", "x", "gone")) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, path)
	if s.SetAside() != "" {
		t.Errorf("a whole store was set aside")
	}
	got := map[object.Ref]*storepb.Object{}
	if err := s.View(func(tx *store.Tx) error {
		if b, err := tx.State("drain", "cursor"); err != nil || string(b) != "12" {
			t.Errorf("State = %q, %v", b, err)
		}
		if err := tx.Answers(func(key []byte, a *storepb.Answer) error {
			if string(key) != "token" || string(a.Body) != "bearer-of-light" {
				t.Errorf("Answers: %q: %v", key, a)
			}
			return nil
		}); err != nil {
			return err
		}
		return tx.Objects(func(r object.Ref, o *storepb.Object) error { got[r] = o; return nil })
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, plain := range []string{"hidden-treasure", "bearer-of-light"} {
		if bytesContain(file, plain) {
			t.Errorf("%q can be read in the file", plain)
		}
	}
	for _, p := range []string{path, path + ".key", path + ".lock"} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
	}
}

func bytesContain(b []byte, s string) bool {
	for i := 0; i+len(s) <= len(b); i++ {
		if string(b[i:i+len(s)]) == s {
			return true
		}
	}
	return false
}

func TestOpenWaitsForThePredecessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	before := open(t, path)
	opened := make(chan error, 1)
	go func() {
		s, err := store.Open(t.Context(), store.Config{Path: path, LockWait: time.Minute})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	before.Close()
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// The holder of the lock excludes others, and may open the store itself.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	if _, err := store.Lock(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where no store was: %v", err)
	}
	s := open(t, path)
	if _, err := store.Lock(path); !errors.Is(err, store.ErrLocked) {
		t.Errorf("while the store is open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	held, err := store.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), store.Config{Path: path}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("while the lock is held: %v", err)
	}
	mine, err := store.Open(t.Context(), store.Config{Path: path, Locked: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := mine.Close(); err != nil {
		t.Error(err)
	}
	if _, err := store.Lock(path); !errors.Is(err, store.ErrLocked) {
		t.Errorf("the store that was opened under the lock has taken it along: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	open(t, path)
}

func TestOpenRefuses(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, path string)
		want  error
	}{
		"another process has it": {
			spoil: func(t *testing.T, path string) { open(t, path) },
			want:  store.ErrLocked,
		},
		"another key": {
			spoil: func(t *testing.T, path string) {
				key := fmt.Sprintf("%064d\n", 1)
				if err := os.WriteFile(path+".key", []byte(key), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			want: store.ErrKey,
		},
		"no key": {
			spoil: func(t *testing.T, path string) { os.Remove(path + ".key") },
			want:  store.ErrKey,
		},
		"half a key": {
			spoil: func(t *testing.T, path string) { os.Truncate(path+".key", 10) },
			want:  store.ErrKey,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edge.db")
			open(t, path).Close()
			tt.spoil(t, path)
			s, err := store.Open(t.Context(), store.Config{Path: path})
			if !errors.Is(err, tt.want) {
				t.Errorf("Open: %v, want %v", err, tt.want)
			}
			if s != nil {
				s.Close()
			}
		})
	}
}

func TestUpdateSharesCommitsAndKeepsErrorsApart(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "edge.db"))
	errOdd := errors.New("odd")
	const writers = 64
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			errs[i] = s.Update(context.Background(), func(tx *store.Tx) error {
				if err := tx.SetState("test", fmt.Sprint(i), []byte{byte(i)}); err != nil {
					return err
				}
				if i%2 == 1 {
					return errOdd
				}
				return nil
			})
		})
	}
	wg.Wait()
	kept := map[string]bool{}
	if err := s.View(func(tx *store.Tx) error {
		return tx.States("test", func(key string, _ []byte) error { kept[key] = true; return nil })
	}); err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		if odd := i%2 == 1; odd != errors.Is(err, errOdd) || kept[fmt.Sprint(i)] == odd {
			t.Errorf("writer %d: error %v, kept %v", i, err, kept[fmt.Sprint(i)])
		}
	}
	if st := s.Stats(); st.Writes != writers/2 {
		t.Errorf("Stats = %+v, want %d writes", st, writers/2)
	}
}

func TestUpdateAfterItsContext(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "edge.db"))
	inside, release := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- s.Update(context.Background(), func(*store.Tx) error { close(inside); <-release; return nil })
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Update(ctx, func(*store.Tx) error { t.Error("called after its context"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Update: %v, want %v", err, context.Canceled)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestNextEpochGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	last := uint64(0)
	for range 3 {
		s := open(t, path)
		for range 3 {
			e, err := s.NextEpoch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if e <= last {
				t.Errorf("epoch %d after %d", e, last)
			}
			last = e
		}
		s.Close()
	}
}

func TestLastTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	s := open(t, path)
	if at, err := s.LastTime(); err != nil || !at.IsZero() {
		t.Errorf("of a new store: %v %v", at, err)
	}
	late := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{late, late.Add(-time.Hour)} {
		if err := s.SetLastTime(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = open(t, path)
	if at, err := s.LastTime(); err != nil || !at.Equal(late) {
		t.Errorf("after a restart: %v %v, want %v", at, err, late)
	}
}

// The statistics show which kind of record was written, and unwritten records are not counted.
func TestStatsOfRecords(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "edge.db"))
	before := s.Stats().Records
	update(t, s, func(tx *store.Tx) error {
		return errors.Join(
			tx.SetNumber(store.Version, 7), tx.PutObject(ref("pods", "default", "a"), &storepb.Object{}), tx.PutObject(ref("pods", "default", "b"), &storepb.Object{}),
			tx.DeleteObject(ref("pods", "default", "a")), tx.PutEntry(1, &storepb.Entry{}), tx.SetState("drain", "x", []byte("y")),
		)
	})
	failed := errors.New("not this one")
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return errors.Join(tx.PutEntry(2, &storepb.Entry{}), failed) }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	want := map[string]uint64{"objects//v1/pods": 3, "outbox": 1, "modules/drain": 1}
	if diff := cmp.Diff(want, s.Stats().Records); diff != "" || len(before) != 0 {
		t.Errorf("before: %v, after (-want +got):\n%s", before, diff)
	}
}

// Pages that are given back are read again, also while others write and the file grows.
func TestReleasePages(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	body := bytes.Repeat([]byte("x"), 1<<16)
	var releasing sync.WaitGroup
	stop := make(chan struct{})
	releasing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.ReleasePages(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := range 40 {
		update(t, s, func(tx *store.Tx) error {
			return tx.PutObject(ref("configmaps", "d", fmt.Sprint(n)), &storepb.Object{Uid: fmt.Sprint(n), Raw: body})
		})
	}
	close(stop)
	releasing.Wait()
	seen := 0
	if err := s.View(func(tx *store.Tx) error {
		return tx.Objects(func(_ object.Ref, o *storepb.Object) error {
			if bytes.Equal(o.Raw, body) {
				seen++
			}
			return nil
		})
	}); err != nil || seen != 40 {
		t.Errorf("%d of 40 are whole: %v", seen, err)
	}
}
