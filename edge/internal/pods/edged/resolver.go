package edged

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
)

// A resolver is the resolv.conf of the kubelet: a link to the configured one, or, while that is
// missing, to one with the content that pods get with resolvConf: "". The kubelet reads
// it for each sandbox, and creates none while it is missing. On many devices it is a link to a file
// in /run that a DHCP client writes: a device that boots where no DHCP server answers has none.
type resolver struct {
	configured string
	dir        string // of the link
}

const (
	// resolverPoll is the interval of checks whether the configured file is there.
	resolverPoll = 2 * time.Second
	noServers    = "nameserver 127.0.0.1\nsearch .\n"
)

func (r resolver) path() string { return filepath.Join(r.dir, "resolv.conf") }

// point has the link point to the file that is to be used, and reports whether it has changed.
func (r resolver) point() (changed bool, err error) {
	target := r.configured
	if _, err := os.Stat(target); err != nil {
		target = filepath.Join(r.dir, "resolv.conf.none")
		if err := os.WriteFile(target, []byte(noServers), 0o644); err != nil { //nolint:gosec // as resolv.conf
			return false, fmt.Errorf("writing a resolv.conf without name servers: %w", err)
		}
	}
	if at, err := os.Readlink(r.path()); err == nil && at == target {
		return false, nil
	}
	next := r.path() + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("linking resolv.conf: %w", err)
	}
	if err := os.Symlink(target, next); err != nil {
		return false, fmt.Errorf("linking resolv.conf: %w", err)
	}
	if err := os.Rename(next, r.path()); err != nil {
		return false, fmt.Errorf("linking resolv.conf: %w", err)
	}
	return true, nil
}

// run looks for the configured file until ctx ends.
func (r resolver) run(ctx context.Context) {
	tick := time.NewTicker(resolverPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := r.point()
		switch {
		case err != nil:
			klog.FromContext(ctx).V(2).Info("Failed to link the kubelet's resolv.conf, retrying", "err", err)
		case changed:
			klog.FromContext(ctx).Info("The file of name servers has appeared or gone: pods that start now get it, or none", "file", r.configured)
		}
	}
}
