package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// A Backup is a copy of everything that a control plane had stored at a time.
type Backup struct{ dir string }

// Backup stops the control plane, copies etcd's data and starts it again.
func (c *ControlPlane) Backup(ctx context.Context) (Backup, error) {
	if err := c.Stop(ctx); err != nil {
		return Backup{}, err
	}
	b, err := CopyEtcd(c.Dir)
	if err != nil {
		return b, err
	}
	return b, c.Start(ctx)
}

// Restore ends the control plane as a crash would, replaces etcd's data by a copy, and starts it
// again: its resourceVersions go back, and writes after the copy are lost. A Backup may be restored
// more than once.
func (c *ControlPlane) Restore(ctx context.Context, b Backup) error {
	if err := c.Kill(ctx); err != nil {
		return err
	}
	if err := PutEtcd(c.Dir, b); err != nil {
		return err
	}
	return c.Start(ctx)
}

// CopyEtcd copies the data of a control plane that does not run; dir is kubeplane's --dir.
func CopyEtcd(dir string) (Backup, error) {
	copied, err := os.MkdirTemp(dir, "etcd-copy-")
	if err != nil {
		return Backup{}, fmt.Errorf("copying etcd's data: %w", err)
	}
	if err := os.CopyFS(copied, os.DirFS(etcdDir(dir))); err != nil {
		return Backup{}, fmt.Errorf("copying etcd's data: %w", err)
	}
	return Backup{copied}, nil
}

// PutEtcd replaces the data of a control plane that does not run.
func PutEtcd(dir string, b Backup) error {
	if err := os.RemoveAll(etcdDir(dir)); err != nil {
		return fmt.Errorf("removing etcd's data: %w", err)
	}
	if err := os.CopyFS(etcdDir(dir), os.DirFS(b.dir)); err != nil {
		return fmt.Errorf("putting etcd's data back: %w", err)
	}
	// etcd refuses a directory that others may read (CopyFS makes them so).
	return os.Chmod(etcdDir(dir), 0o700)
}

// RemoveBackup removes a copy.
func RemoveBackup(b Backup) error { return os.RemoveAll(b.dir) }

func etcdDir(dir string) string { return filepath.Join(dir, "etcd") }
