package campaign

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

const (
	// startPatience is for one program on a loaded machine.
	startPatience = time.Minute
	// againPatience is for one that a schedule has killed: kube-apiserver, without which no
	// cloudcore gets ready, may be away for other steps in the meantime.
	againPatience = 6 * time.Minute
)

// daemon is a program that is killed and started again.
type daemon struct {
	spec  process.Spec
	ready func(context.Context) error

	mu     sync.Mutex
	child  *process.Started
	wanted bool // it is to run
}

// start starts the program and waits until it is ready. One that ends before that is started again,
// as an init system would: cloudcore ends where kube-apiserver refuses its requests at the start,
// as a kube-apiserver that has just started itself does.
func (d *daemon) start(ctx context.Context) error { return d.startIn(ctx, startPatience) }

func (d *daemon) startIn(ctx context.Context, patience time.Duration) error {
	return awaitIn(ctx, patience, d.spec.Args[1]+" to be ready", func(ctx context.Context) error {
		if err := d.run(); err != nil {
			return err
		}
		if err := d.ready(ctx); err != nil {
			return fmt.Errorf("%w; its log is %s", err, d.spec.Log)
		}
		return nil
	})
}

// run starts the program unless it runs.
func (d *daemon) run() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = true
	if d.child != nil && d.child.Alive() {
		return nil
	}
	child, err := process.Start(d.spec)
	if err == nil {
		d.child = child
	}
	return err
}

// supervise starts an edgecore again that ends by itself, until ctx ends. One that panics stays
// down, so that it is found.
func (d *daemon) supervise(ctx context.Context) error {
	for ; ctx.Err() == nil; pause(ctx, 300*time.Millisecond) {
		d.mu.Lock()
		child, wanted := d.child, d.wanted
		d.mu.Unlock()
		if !wanted || child.Alive() {
			continue
		}
		<-child.Done()
		if exit, ok := errors.AsType[*exec.ExitError](child.Err()); ok && exit.ExitCode() == 1 {
			_ = d.revive(child) // retried by the next pass
		}
	}
	return nil
}

// revive starts the program again if it is still the one that has ended, and is to run.
func (d *daemon) revive(ended *process.Started) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.wanted || d.child != ended {
		return nil
	}
	child, err := process.Start(d.spec)
	if err == nil {
		d.child = child
	}
	return err
}

func (d *daemon) running() *process.Started {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.child
}

func (d *daemon) kill(ctx context.Context) error {
	d.mu.Lock()
	d.wanted = false
	c := d.child
	d.mu.Unlock()
	if c != nil {
		return c.Kill(ctx)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// await repeats try until it returns nil.
func await(ctx context.Context, what string, try func(context.Context) error) error {
	return awaitIn(ctx, startPatience, what, try)
}

func awaitIn(ctx context.Context, patience time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := poll.Until(ctx, 100*time.Millisecond, try); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, errors.Join(context.Cause(ctx), err))
	}
	return nil
}
