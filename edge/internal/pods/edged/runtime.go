package edged

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/pods/peer"
)

const (
	// dialTimeout is for connections to sockets of this device.
	dialTimeout = 2 * time.Second
	// connecting is ample time for a connect(2) that has found the link before it was removed.
	connecting = 20 * time.Millisecond
)

// runtimeGate is the kubelet's way to the container runtime until it is stopped: a symbolic link to
// the runtime's socket. Stop removes it, and ends the connections that were made by it. A kubelet
// whose API is cut off still starts containers: pods whose sync is under way (a pull that ends, a
// hook), and those whose liveness probe fails, which is what a shutdown does to each container that
// it has ended. Calls in flight are cancelled; the runtime undoes a start that has not ended.
type runtimeGate struct {
	link    string // the path that the kubelet connects to
	runtime string // the runtime's own socket

	mu      sync.Mutex // held while it is opened or stopped
	stopped bool
}

// newRuntimeGate returns a gate for two endpoints of Unix sockets.
func newRuntimeGate(link, runtime string) *runtimeGate {
	path := func(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }
	return &runtimeGate{link: path(link), runtime: path(runtime)}
}

// open makes the link, in the place of what an earlier process has left there. A stopped gate stays
// closed.
func (g *runtimeGate) open() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return errStopped
	}
	if err := os.MkdirAll(filepath.Dir(g.link), 0o755); err != nil {
		return fmt.Errorf("making the directory of the kubelet's link to the container runtime: %w", err)
	}
	next := g.link + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("linking the container runtime for the kubelet: %w", err)
	}
	if err := os.Symlink(g.runtime, next); err != nil {
		return fmt.Errorf("linking the container runtime for the kubelet: %w", err)
	}
	if err := os.Rename(next, g.link); err != nil {
		return fmt.Errorf("linking the container runtime for the kubelet: %w", err)
	}
	return nil
}

// stop returns when no request of the kubelet can reach the runtime any more. Connections of other
// parts of edgecore stay: those of cri.Dial, and those that are opened after the first stop, as the
// shutdown's by Kubernetes' client.
func (g *runtimeGate) stop(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return
	}
	g.stopped = true
	if err := os.Remove(g.link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Failed to remove the kubelet's link to the container runtime: it may start containers again")
	}
	addresses := g.addresses(ctx)
	g.end(ctx, addresses)
	_ = rerun.Pause(ctx, connecting) // a stop that is cut short looks once more at once
	g.end(ctx, addresses)
}

// addresses are those that the runtime's socket may have: a runtime in a mount namespace of its own
// has bound it by another name, which a connection to it shows.
func (g *runtimeGate) addresses(ctx context.Context) []string {
	all := []string{g.runtime}
	if target, err := filepath.EvalSymlinks(g.runtime); err == nil {
		all = append(all, target)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	if c, err := dialer.DialContext(ctx, "unix", g.runtime); err == nil { // one that is down has no connections
		all = append(all, c.RemoteAddr().String())
		_ = c.Close()
	}
	return all
}

// end ends the connections to the runtime that are not marked as edgecore's own.
func (g *runtimeGate) end(ctx context.Context, addresses []string) {
	for _, c := range peer.Conns(func(address string) bool { return slices.Contains(addresses, address) }) {
		if !c.Marked() {
			if err := c.Shutdown(); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to end a connection of the kubelet to the container runtime: it may start a container again")
			}
		}
		c.Close()
	}
}
