package edged

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// maxRuntimeConns is the most connections that a kubelet has to its container runtime: one for
// containers, one for the images' file system. A connection above the bound is closed.
const maxRuntimeConns = 16

// dialTimeout is for connections to sockets of this device.
const dialTimeout = 2 * time.Second

// runtimeGate forwards the kubelet's connections to the container runtime, byte for byte, until it
// is stopped: it closes them all then, and accepts none. A kubelet whose API is cut off still
// starts containers: pods whose sync is under way (a pull that ends, a hook), and those whose
// liveness probe fails, which is what a shutdown does to each container that it has ended. Calls in
// flight are cancelled; the runtime undoes a start that has not ended.
type runtimeGate struct {
	runtime string // its endpoint

	mu      sync.Mutex
	stopped bool
	open    map[net.Conn]struct{} // the listener's ends and the runtime's
}

func newRuntimeGate(runtime string) *runtimeGate {
	return &runtimeGate{runtime: runtime, open: map[net.Conn]struct{}{}}
}

// serve forwards until ctx ends or the gate is stopped. It closes the listener.
func (g *runtimeGate) serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, g.stop)()
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	defer l.Close()
	ended := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer ended()
	for {
		kubelet, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("accepting the kubelet's connections to the container runtime: %w", err)
		}
		forwarding.Go(func() {
			defer kubelet.Close()
			if err := g.forward(ctx, kubelet); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Closed a connection of the kubelet to the container runtime", "err", err)
			}
		})
	}
}

// forward returns when either end is closed.
func (g *runtimeGate) forward(ctx context.Context, kubelet net.Conn) error {
	if err := g.add(kubelet); err != nil {
		return err
	}
	defer g.remove(kubelet)
	network, address := "unix", g.runtime
	if scheme, rest, ok := strings.Cut(g.runtime, "://"); ok {
		network, address = scheme, rest
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	runtime, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer runtime.Close()
	if err := g.add(runtime); err != nil {
		return err
	}
	defer g.remove(runtime)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(kubelet, runtime) // an end of either is an end of both
		_ = kubelet.Close()
	})
	_, err = io.Copy(runtime, kubelet)
	_ = runtime.Close()
	back.Wait()
	return err
}

func (g *runtimeGate) add(c net.Conn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.stopped:
		return errStopped
	case len(g.open) >= 2*maxRuntimeConns:
		return fmt.Errorf("the kubelet has more than %d connections to the container runtime", maxRuntimeConns)
	}
	g.open[c] = struct{}{}
	return nil
}

func (g *runtimeGate) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, c)
}

// stop returns when no request of the kubelet can reach the runtime any more.
func (g *runtimeGate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	for c := range g.open {
		_ = c.Close() // its copies end
	}
}
