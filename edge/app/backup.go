package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/history"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
	"github.com/skerry-io/skerry/edge/internal/setup/backup"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// Backup writes an archive of the device's identity and store, which it leaves as they are.
func (l *Lock) Backup(ctx context.Context, w io.Writer) (node string, err error) {
	seal, err := Sealer(ctx, l.config)
	if err != nil {
		return "", err
	}
	id, err := join.Load(IdentityDir(l.config), seal, pki.NewClock(time.Time{}, nil))
	if err != nil {
		return "", err
	}
	at := storeConfig(l.config, nil)
	files := map[string]string{backup.Store: at.Path}
	names := []string{backup.Store}
	if !l.config.Modules.MetaManager.Encryption.Sealed() {
		files[backup.Key] = at.KeyFile
		names = append(names, backup.Key)
	}
	identity, err := backup.IdentityFiles(IdentityDir(l.config))
	if err != nil {
		return "", err
	}
	for _, name := range identity {
		files[name] = filepath.Join(IdentityDir(l.config), filepath.Base(name))
		names = append(names, name)
	}
	m := backup.Manifest{Node: string(id.Node()), Machine: machineID(l.config), Version: version.Skerry(), Time: time.Now().UTC().Truncate(time.Second)}
	return m.Node, backup.Pack(w, m, files, names)
}

// ErrOtherMachine is Restore's for a backup of other hardware.
var ErrOtherMachine = errors.New("the backup is of another machine")

// Restore puts the identity and the store of an archive in the place of the device's own. Writes
// that waited for the cloud when the backup was made are left out, since the device has sent them
// or newer ones since; with the next link everything is reported again. One that was interrupted is
// done again.
func (l *Lock) Restore(ctx context.Context, r io.Reader, otherMachine bool) (node string, taken time.Time, err error) {
	work := filepath.Join(l.config.DataDir, "restore.tmp")
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(work, 0o700)); err != nil {
		return "", taken, err
	}
	defer os.RemoveAll(work)
	m, err := backup.Unpack(r, work)
	if err != nil {
		return "", taken, err
	}
	if ours := machineID(l.config); m.Machine != "" && ours != "" && m.Machine != ours && !otherMachine {
		return "", taken, fmt.Errorf("%w: of machine %s, and this is %s. With its identity on both the cloud refuses one of them; where this one replaces the other: --other-machine", ErrOtherMachine, m.Machine, ours)
	}
	if err := l.checkIdentity(ctx, filepath.Join(work, backup.Identity), m.Node); err != nil {
		return "", taken, err
	}
	if err := l.settle(ctx, work); err != nil {
		return "", taken, err
	}
	return m.Node, m.Time, l.exchange(work)
}

// checkIdentity reports whether an identity can be used here, and is of no other node than the
// present one.
func (l *Lock) checkIdentity(ctx context.Context, dir, node string) error {
	seal, err := Sealer(ctx, l.config)
	if err != nil {
		return err
	}
	id, err := join.Load(dir, seal, pki.NewClock(time.Time{}, nil))
	if err != nil {
		return fmt.Errorf("the backup's identity: %w", err)
	}
	if string(id.Node()) != node {
		return fmt.Errorf("the backup's manifest is of node %q, its identity of %q", node, id.Node())
	}
	have, err := join.Load(IdentityDir(l.config), seal, pki.NewClock(time.Time{}, nil))
	if err == nil && have.Node() != id.Node() {
		return fmt.Errorf("this device is node %s, and the backup is of %s: edgecore reset --yes first, if it shall be that one", have.Node(), id.Node())
	}
	return nil
}

// settle prepares the unpacked store: what waited in its outbox is dropped, and all is reported
// again.
func (l *Lock) settle(ctx context.Context, work string) error {
	key, err := readDiskKey(ctx, l.config)
	if err != nil {
		return err
	}
	c := storeConfig(l.config, key)
	c.Path, c.KeyFile = filepath.Join(work, backup.Store), filepath.Join(work, backup.Key)
	file, err := store.Open(ctx, c)
	if err != nil {
		return fmt.Errorf("the backup's store: %w", err)
	}
	if lost := file.Lost(); file.SetAside() != "" || len(lost) > 0 {
		return errors.Join(fmt.Errorf("the backup's store is damaged: %v", lost), file.Close())
	}
	err = file.Update(ctx, func(tx *store.Tx) error {
		var waiting []uint64
		if err := tx.Entries(func(id uint64, _ *storepb.Entry) error {
			waiting = append(waiting, id)
			return nil
		}); err != nil {
			return err
		}
		for _, id := range waiting {
			if err := tx.DeleteEntry(id); err != nil {
				return err
			}
		}
		return history.Forget(tx)
	})
	return errors.Join(err, file.Close())
}

// exchange moves the unpacked files to their places.
func (l *Lock) exchange(work string) error {
	at := storeConfig(l.config, nil)
	moves := [][2]string{{backup.Store, at.Path}, {backup.Identity, IdentityDir(l.config)}}
	if !l.config.Modules.MetaManager.Encryption.Sealed() {
		moves = append(moves, [2]string{backup.Key, at.KeyFile})
	}
	for _, m := range moves {
		if err := os.RemoveAll(m[1]); err != nil {
			return fmt.Errorf("replacing %s: %w", m[1], err)
		}
		if err := os.Rename(filepath.Join(work, m[0]), m[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replacing %s: %w", m[1], err)
		}
	}
	return syncDir(l.config.DataDir)
}

func syncDir(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("syncing %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fsync(fd)
}
