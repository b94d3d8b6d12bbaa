package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Open opens the store, and creates it if it does not exist. Logging goes to the logger of ctx.
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
	err := s.open(ctx, klog.FromContext(ctx))
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

// takeLock holds PATH.lock for as long as the store is open: the file itself is checked before
// bbolt takes its own lock on it.
func (s *Store) takeLock(ctx context.Context) (err error) {
	if !s.config.Locked {
		s.lock, err = lock(ctx, s.config.Path, os.O_CREATE|os.O_RDWR, s.config.LockWait)
	}
	return err
}

// Lock takes the lock of the store at path without opening the store: until it is closed, only an
// Open with Config.Locked succeeds. It does not wait: ErrLocked if the store is open.
// fs.ErrNotExist means that no store was opened there yet.
func Lock(path string) (io.Closer, error) {
	f, err := lock(context.Background(), path, os.O_RDONLY, 0) // also on a disk that is read-only
	if err != nil {
		return nil, err
	}
	return f, nil
}

func lock(ctx context.Context, store string, flags int, wait time.Duration) (*os.File, error) {
	path := store + ".lock"
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the store's lock: %w", err)
	}
	waited := time.Duration(0)
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for errors.Is(err, unix.EWOULDBLOCK) && waited < wait && ctx.Err() == nil {
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
			return nil, fmt.Errorf("%s: %w: is another edgecore running?", store, ErrLocked)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// Absent is the entry of Lost for a store file that was missing or empty.
const Absent = "everything: the file was missing or empty, though a store was there before"

func (s *Store) open(ctx context.Context, log klog.Logger) error {
	err := verifyPatiently(ctx, func() error { return verify(s.config.Path) })
	if err == nil && s.vanished() {
		s.lost = []string{Absent}
		log.Error(nil, "Creating a new store in place of a missing or empty file: pending writes to the cloud are lost", "path", s.config.Path)
	}
	if err == nil {
		err = s.openFile(s.config.Path)
	}
	if err == nil {
		if err := s.mark(); err != nil { // a full disk keeps no store from being opened
			log.Error(err, "Failed to mark the store's lock: until this succeeds a missing file is not detected as a loss")
		}
	}
	damage := (*DamageError)(nil)
	if !errors.As(err, &damage) {
		return err
	}
	s.db = nil // after a panic bbolt may hold its own locks: its descriptor is left to the end of the process
	if err := s.replace(); err != nil {
		return err
	}
	log.Error(err, "Replaced a damaged store: kept its readable records, waiting for the cloud to send the others",
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
		err = s.write(db, s.create)
	} else {
		err = s.guarded(func() error { return db.View(s.check) })
		if err == nil && s.foreign() {
			err = s.write(db, s.adapt)
		}
	}
	if err != nil {
		return noRoom(err)
	}
	return nil
}

// vanished reports whether there was a store, and its file is gone or empty: its key, or the mark
// in its lock, is still there.
func (s *Store) vanished() bool {
	if info, err := os.Stat(s.config.Path); err == nil && info.Size() > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
		return false
	}
	if s.config.Key == nil {
		if _, err := os.Stat(s.config.KeyFile); err == nil {
			return true
		}
	}
	info, err := os.Stat(s.config.Path + ".lock")
	return err == nil && info.Size() > 0
}

// mark notes in the lock that a store was made, once.
func (s *Store) mark() error {
	path := s.config.Path + ".lock"
	info, err := os.Stat(path)
	if err != nil || info.Size() > 0 {
		return nil //nolint:nilerr // a caller that holds the lock has made the file
	}
	if err := os.WriteFile(path, []byte("made\n"), 0o600); err != nil {
		return err
	}
	return nil
}

// foreign reports whether the file is of another schema, or does not state its readers.
func (s *Store) foreign() (foreign bool) {
	_ = s.guarded(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			t := &Tx{seal: s.seal, tx: tx}
			have, err := t.Number(schemaOf)
			if err != nil {
				return err
			}
			readers, err := t.Number(readersOf)
			foreign = err == nil && (have != Schema || readers != Readers)
			return err
		})
	})
	return foreign
}

// makeFile makes a new store under another name first, so that a crash in the middle leaves
// no half a file.
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

// replace replaces the damaged file by a fresh one with its readable records. The damaged file
// stays under another name. A crash during the replacement leaves it in place.
func (s *Store) replace() error {
	trees := readTrees(s.config.Path)
	if err := s.dropOld(s.config.KeepDamaged - 1); err != nil { // makes room for this one
		return err
	}
	fresh := s.config.Path + ".fresh"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("making a fresh store: %w", err)
	}
	if err := s.openFile(fresh); err != nil {
		return err
	}
	for _, t := range trees {
		t.unseal(s.opens)
	}
	saved := planOf(trees)
	if err := errors.Join(s.restore(saved), s.db.Close()); err != nil {
		os.Remove(fresh)
		return fmt.Errorf("restoring the readable records of the damaged store: %w", err)
	}
	aside, err := s.setAside(fresh)
	if err != nil {
		return fmt.Errorf("setting the damaged store aside: %w", err)
	}
	s.aside, s.lost = aside, saved.lost
	return nil
}

// setAside gives the damaged file another name, and its own to the fresh one.
func (s *Store) setAside(fresh string) (string, error) {
	aside := s.config.Path + ".damaged-" + s.config.Now().UTC().Format("20060102T150405.000000000Z")
	if err := os.Link(s.config.Path, aside); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, s.config.Path); err != nil {
		return "", err
	}
	return aside, syncDir(filepath.Dir(s.config.Path))
}

// dropOld removes files that were set aside before, the oldest first, until keep are left.
func (s *Store) dropOld(keep int) error {
	old, err := filepath.Glob(s.config.Path + ".damaged-*") // sorted, and the names sort by time
	if err != nil || len(old) <= keep {
		return err
	}
	for _, path := range old[:len(old)-keep] {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("removing a damaged store of before: %w", err)
		}
	}
	return nil
}

// Salvageable reports whether the next Open of a damaged store would keep all objects and
// interests. It reads the whole file.
func (s *Store) Salvageable() bool {
	trees := readTrees(s.config.Path)
	for _, t := range trees {
		t.unseal(s.opens)
	}
	return !planOf(trees).holes
}

// loadEpochs begins above all epochs that an earlier process may have issued.
func (s *Store) loadEpochs() error {
	return s.View(func(t *Tx) error {
		n, err := t.Number(Epoch)
		s.epochs.last, s.epochs.reserved = n, n
		return err
	})
}

// Check reads every record once and returns the first thing that is wrong with it.
func (s *Store) Check() error {
	return s.View(func(t *Tx) error { return s.check(t.tx) })
}
