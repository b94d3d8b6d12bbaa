package app

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/skerry-io/skerry/edge/internal/core/store"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// ErrRuns is TakeLock's where an edgecore has the store open.
var ErrRuns = errors.New("edgecore runs")

// Lock keeps an edgecore of its configuration from starting, for a command that takes the device
// apart.
type Lock struct {
	config *edgeconfig.Config
	file   io.Closer // nil: no edgecore has ever run here, and there is no store
}

// TakeLock takes the lock that every edgecore holds from its start to its end, whether it can be
// asked or not. ErrRuns where one does.
func TakeLock(cfg *edgeconfig.Config) (*Lock, error) {
	file, err := store.Lock(storeConfig(cfg, nil).Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Lock{config: cfg}, nil
	case errors.Is(err, store.ErrLocked):
		return nil, ErrRuns
	case err != nil:
		return nil, err
	}
	return &Lock{cfg, file}, nil
}

// Release allows edgecore to start again.
func (l *Lock) Release() {
	if l.file != nil {
		_ = l.file.Close() // read only
	}
}

// openStore opens the store for as long as the lock is held.
func (l *Lock) openStore(ctx context.Context) (*store.Store, error) {
	key, err := readDiskKey(ctx, l.config)
	if err != nil {
		return nil, err
	}
	c := storeConfig(l.config, key)
	c.Locked = true
	return store.Open(ctx, c)
}
