// Package store persists an edge's state: objects, interests, the outbox, kept answers, the state
// of modules. One file, bbolt.
//
// It owns the file, its lock, its key and its schema; no other package opens them. Writers queue a
// function each; one transaction and one sync serve all that wait. A damaged file is set aside
// under another name, and its intact records are copied into a new one; a full disk fails only the
// current write. Secrets and answers are sealed before they touch the disk. It refuses a file that
// another process has open, one that was sealed with another key, and one of a newer schema. It
// never writes on its own: idle, it is silent. Its methods may be called by many goroutines at
// once.
package store

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"k8s.io/apiserver/pkg/storage/value"
)

// Config configures the store. The zero value of everything but Path is a sensible default.
type Config struct {
	Path string // of the file, such as /var/lib/skerry/edge.db; its directory must exist
	// KeyFile holds the key that seals Secrets and tokens: 32 bytes, hexadecimal, mode 0600, made
	// when it is missing and the store is new. Default: Path with ".key" behind it.
	KeyFile string
	// Key is the key itself, 32 bytes, if it is not stored on the disk. KeyFile is ignored then.
	Key []byte
	// LockWait is how long Open waits for a process that has the store open: one that was killed
	// needs a moment to be gone. 0: not at all.
	LockWait time.Duration
	// Locked means that the caller holds the store's lock (Lock) until after Close: Open does not
	// take it.
	Locked bool
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
	lock   *os.File // nil: the caller's
	seal   value.Transformer
	aside  string   // path of the damaged predecessor, if this file replaced one
	lost   []string // records that could not be read

	places chan struct{} // one for each writer that waits or commits
	epochs epochs
	broken chan struct{} // closed when damaged is set

	mu      sync.Mutex // guards the fields below
	queue   []*call
	leading bool // some caller is committing
	closed  bool
	damaged error
	stats   Stats
}

// Stats has the counters of the store since Open.
type Stats struct {
	Commits  uint64 // transactions that reached the disk
	Writes   uint64 // functions that they carried
	Failures uint64 // failed transactions, for example on a full disk
	Bytes    int64  // size of the file
	Full     bool   // the last transaction found no room
	// Records counts the records that were put or deleted, by their bucket: "outbox",
	// "objects//v1/pods", "modules/drain". It shows the writers; numbers written along with other
	// records are not counted.
	Records map[string]uint64
}

// guarded calls f and turns a panic or a memory fault in it into a DamageError: bbolt trusts the
// file that it maps.
func (s *Store) guarded(f func() error) (err error) {
	defer recovered(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return f()
}

// SetAside returns the path of this store's damaged predecessor, or "".
func (s *Store) SetAside() string { return s.aside }

// Lost names the unreadable records of the damaged predecessor: the resources of objects, and other
// records. Objects of the cloud are delivered again.
func (s *Store) Lost() []string { return slices.Clone(s.lost) }

// Damaged is closed when the file has turned out to be damaged while in use: from then on every
// method returns ErrDamaged, and the next Open keeps the readable records.
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

// opens reports whether a sealed record is whole and of this store's key.
func (s *Store) opens(path [][]byte, key, sealed []byte) bool {
	_, _, err := s.seal.TransformFromStorage(context.Background(), sealed, place(path, key))
	return err == nil
}

// Stats returns the counters of the store.
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

// call is one writer's function on its way to the disk. Guarded by Store.mu until the
// commit has taken it.
type call struct {
	do   func(*Tx) error
	err  error
	done chan struct{} // closed when err is final
	lead chan struct{} // closed when this caller must commit the queue
	led  bool          // lead is closed
}

// epochs is the state of NextEpoch.
type epochs struct {
	mu       sync.Mutex // guards the fields below
	last     uint64     // given out
	reserved uint64     // on the disk
}
