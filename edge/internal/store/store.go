// Package store keeps what an edge must not lose: objects, interests, the outbox, kept answers, the state of modules. One file, bbolt.
//
// It owns the file, its lock, its key and its schema; nobody else opens them. Writers queue a function each; one transaction and one sync serve all
// that wait. A file that is damaged is set aside under another name, what is whole of it goes on in a fresh one; a full disk is an error of the write that met it and
// passes when there is room. Secrets and answers are sealed before they touch the disk. It refuses a file that another process has open, one that
// was sealed with another key, and one of a newer schema. It never writes on its own: idle, it is silent. Its methods may be called by many
// goroutines at once.
package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
)

// Schema is the version of the store's layout that this build writes. A file of an older schema is brought up to it; a newer one is refused.
const Schema = 2

var (
	// ErrLocked is returned by Open for a store that another process has open.
	ErrLocked = errors.New("the store is open in another process")
	// ErrKey is returned by Open when the store's key is missing, can't be read, or is not the one that the store was sealed with.
	ErrKey = errors.New("the store's key does not fit")
	// ErrSchema is returned by Open for a store that a newer edgecore has written.
	ErrSchema = errors.New("the store was written by a newer edgecore")
	// ErrDamaged is returned by everything once the file has turned out to be damaged while in use. The next Open sets it aside.
	ErrDamaged = errors.New("the store is damaged")
	// ErrFull is returned by a write that found no room. Later ones may find it again.
	ErrFull = errors.New("no room left on the store's disk")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the store is closed")
)

// Config says where the store is. The zero value of everything but Path is a sensible default.
type Config struct {
	Path string // of the file, such as /var/lib/skerry/edge.db; its directory must exist
	// KeyFile holds the key that seals Secrets and tokens: 32 bytes, hexadecimal, mode 0600, made when it is missing and the store is new. Default:
	// Path with ".key" behind it.
	KeyFile string
	// LockWait is how long Open waits for a process that has the store open: one that was killed needs a moment to be gone. 0: not at all.
	LockWait time.Duration
	// Queue is how many writers may wait; further ones wait for a place. Default 1,024.
	Queue int
	// KeepDamaged is how many damaged files are kept, the newest; default 3.
	KeepDamaged int
	// Now is the clock for names and first numbers; default time.Now.
	Now func() time.Time
}

// Store is an open store.
type Store struct {
	// Set by Open, never changed.
	config Config
	db     *bolt.DB
	lock   *os.File
	seal   value.Transformer
	aside  string   // where the damaged predecessor went, if this file replaced one
	lost   []string // what could not be read of it

	places chan struct{} // one for each writer that waits or commits
	epochs epochs
	broken chan struct{} // closed when damaged is set

	mu      sync.Mutex // guards what follows
	queue   []*call
	leading bool // some caller is committing
	closed  bool
	damaged error
	stats   Stats
}

// Stats counts what the store has done since Open.
type Stats struct {
	Commits  uint64 // transactions that reached the disk
	Writes   uint64 // functions that they carried
	Failures uint64 // transactions that failed, for want of room or otherwise
	Bytes    int64  // size of the file
	// Records counts the records that were put or deleted, by where they lie: "outbox", "objects//v1/pods", "modules/drain". It says who writes; the numbers that
	// go along with other records are not counted.
	Records map[string]uint64
}

// Open opens the store, and makes it where there is none. Logging goes to the logger of ctx.
func Open(ctx context.Context, config Config) (*Store, error) {
	if config.KeyFile == "" {
		config.KeyFile = config.Path + ".key"
	}
	if config.Queue == 0 {
		config.Queue = 1024
	}
	if config.KeepDamaged == 0 {
		config.KeepDamaged = 3
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	s := &Store{config: config, places: make(chan struct{}, config.Queue), broken: make(chan struct{}), stats: Stats{Records: map[string]uint64{}}}
	if err := s.takeLock(ctx); err != nil {
		return nil, err
	}
	err := s.open(klog.FromContext(ctx))
	if err == nil {
		err = s.loadEpochs()
	}
	if err != nil {
		if s.db != nil {
			s.db.Close()
		}
		s.lock.Close()
		return nil, err
	}
	return s, nil
}

// lockPoll is the time between two tries for the lock.
const lockPoll = 20 * time.Millisecond

// takeLock holds PATH.lock for as long as the store is open: the file itself is looked at before bbolt takes its own lock on it.
func (s *Store) takeLock(ctx context.Context) error {
	path := s.config.Path + ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening the store's lock: %w", err)
	}
	waited := time.Duration(0)
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for errors.Is(err, unix.EWOULDBLOCK) && waited < s.config.LockWait && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(lockPoll):
		}
		waited += lockPoll
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%s: %w: is another edgecore running?", s.config.Path, ErrLocked)
		}
		return fmt.Errorf("locking %s: %w", path, err)
	}
	s.lock = f
	return nil
}

func (s *Store) open(log klog.Logger) error {
	err := verify(s.config.Path)
	if err == nil {
		err = s.openFile(s.config.Path)
	}
	damage := (*DamageError)(nil)
	if !errors.As(err, &damage) {
		return err
	}
	s.db = nil // after a panic bbolt may hold its own locks: its descriptor is left to the end of the process
	if err := s.replace(); err != nil {
		return err
	}
	log.Error(err, "The store is damaged; what can be read of it was kept in a fresh one, the rest comes again from the cloud",
		"path", s.config.Path, "aside", s.aside, "lost", s.lost)
	return s.openFile(s.config.Path)
}

func (s *Store) openFile(path string) error {
	if err := s.makeFile(path); err != nil {
		return err
	}
	db, err := openBolt(path)
	if err != nil {
		return err
	}
	s.db = db
	isNew := false
	if err := s.guarded(func() error {
		return db.View(func(tx *bolt.Tx) error { isNew = tx.Bucket(bucketMeta) == nil; return nil })
	}); err != nil {
		return err
	}
	if err := s.openKey(isNew); err != nil {
		return err
	}
	if isNew {
		err = s.guarded(func() error { return db.Update(s.create) })
	} else {
		err = s.guarded(func() error { return db.View(s.check) })
		if err == nil && s.older() {
			err = s.guarded(func() error { return db.Update(s.upgrade) })
		}
	}
	if err != nil {
		return noRoom(err)
	}
	return nil
}

// older reports whether the file is of an older schema.
func (s *Store) older() (older bool) {
	_ = s.guarded(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			have, err := (&Tx{store: s, tx: tx}).Number(schemaOf)
			older = err == nil && have < Schema
			return err
		})
	})
	return older
}

// makeFile makes a new store under another name first, so that a crash in the middle leaves no half a file.
func (s *Store) makeFile(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		if info.Mode().Perm()&0o077 != 0 {
			if err := os.Chmod(path, 0o600); err != nil {
				return fmt.Errorf("closing the store to others: %w", err)
			}
		}
		return nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("looking at the store: %w", err)
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("making the store: %w", err)
	}
	db, err := openBolt(tmp)
	if err != nil {
		os.Remove(tmp)
		return noRoom(fmt.Errorf("making the store: %w", err))
	}
	if err := db.Close(); err != nil {
		return fmt.Errorf("making the store: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("making the store: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

func openBolt(path string) (db *bolt.DB, err error) {
	defer recovered(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	db, err = bolt.Open(path, 0o600, &bolt.Options{
		Timeout:         time.Second, // our own lock is held already: only a stranger can hold bbolt's
		FreelistType:    bolt.FreelistMapType,
		NoFreelistSync:  true,     // a page less in each commit; they are found again when the file is opened, which reads all of it anyway (see verify)
		InitialMmapSize: 32 << 20, // address space only; a larger file is mapped again, which waits for readers
		NoStatistics:    true,
	})
	if err == nil {
		db.AllocSize = 1 << 20 // by how much the file grows: bbolt's 16 MiB are much on a small disk
	}
	return db, err
}

// guarded calls f and turns a panic or a memory fault in it into a DamageError: bbolt trusts the file that it maps.
func (s *Store) guarded(f func() error) (err error) {
	defer recovered(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return f()
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = &DamageError{Reason: fmt.Sprint(p)}
	}
}

// DamageError says what is wrong with the file. errors.Is finds ErrDamaged in it.
type DamageError struct{ Reason string }

func (e *DamageError) Error() string        { return "the store is damaged: " + e.Reason }
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

func noRoom(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the store's directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing the store's directory: %w", err)
	}
	return nil
}

// SetAside is where the damaged predecessor of this store is, or "" where there was none.
func (s *Store) SetAside() string { return s.aside }

// Lost names what of the damaged predecessor could not be read: the objects of which resources, and
// which other records. What came from the cloud comes again.
func (s *Store) Lost() []string { return slices.Clone(s.lost) }

// Damaged is closed when the file has turned out to be damaged while in use: from then on everything
// returns ErrDamaged, and the next Open keeps what can be read.
func (s *Store) Damaged() <-chan struct{} { return s.broken }

// fail notes that the file is damaged.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.damaged == nil {
		s.damaged = err
		close(s.broken)
	}
}

// Salvageable reports whether the next Open of a damaged store would keep all objects and interests.
// It reads the whole file.
func (s *Store) Salvageable() bool {
	trees := readTrees(s.config.Path)
	for _, t := range trees {
		t.unseal(s.opens)
	}
	return !planOf(trees).holes
}

// opens reports whether a sealed record is whole and of this store's key.
func (s *Store) opens(path [][]byte, key, sealed []byte) bool {
	_, _, err := s.seal.TransformFromStorage(context.Background(), sealed, place(path, key))
	return err == nil
}

// Stats counts what the store has done.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Records = maps.Clone(s.stats.Records)
	if info, err := os.Stat(s.config.Path); err == nil {
		st.Bytes = info.Size()
	}
	return st
}

// Close waits for the writers that have a place, refuses further ones, and closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	damaged := s.damaged
	s.mu.Unlock()
	for range cap(s.places) {
		s.places <- struct{}{}
	}
	defer s.lock.Close()
	if damaged != nil {
		return nil // bbolt may hold its own locks after a panic
	}
	if err := s.guarded(s.db.Close); err != nil {
		return fmt.Errorf("closing the store: %w", err)
	}
	return nil
}
