package kubeplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// dialTimeout is for one target of a balancer.
const dialTimeout = 2 * time.Second

// balancer leads each connection to one of several targets, as a Service with ready endpoints
// does in a cluster.
type balancer struct {
	listener net.Listener
	targets  []string
}

func newBalancer(listen string, targets []string) (*balancer, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--egress-listen: %w", err)
	}
	return &balancer{l, targets}, nil
}

// run serves until ctx ends, and ends every connection then.
func (b *balancer) run(ctx context.Context) error {
	var open sync.WaitGroup
	defer open.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = b.listener.Close() })()
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accepting for the egress: %w", err)
		}
		open.Go(func() { b.lead(ctx, conn) })
	}
}

// lead carries one connection.
func (b *balancer) lead(ctx context.Context, near net.Conn) {
	defer near.Close()
	far, err := b.dial(ctx)
	if err != nil {
		return // the client sees the connection end
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _ = errors.Join(near.Close(), far.Close()) })()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, err := io.Copy(way[0], way[1])
			if half, ok := way[0].(*net.TCPConn); ok && err == nil {
				err = half.CloseWrite()
			}
			if err != nil {
				_ = errors.Join(near.Close(), far.Close())
			}
		})
	}
	both.Wait()
}

func (b *balancer) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	first := rand.N(len(b.targets))
	var errs []error
	for i := range b.targets {
		conn, err := dialer.DialContext(ctx, "tcp", b.targets[(first+i)%len(b.targets)])
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
