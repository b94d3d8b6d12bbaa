package keepalived

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Run supervises until ctx ends. It then ends keepalived, which hands its addresses over.
func (d *Daemon) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	if err := os.MkdirAll(d.path(dirReady), 0o755); err != nil {
		return fmt.Errorf("making keepalived's directory: %w", err)
	}
	reader, err := d.openFIFO()
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.readFIFO(log, reader)
	}()
	defer func() {
		reader.Close()
		<-done
	}()
	return d.supervise(ctx)
}

func (d *Daemon) supervise(ctx context.Context) error {
	log := klog.FromContext(ctx)
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	backoff := backoffMin
	var again <-chan time.Time // set while it backs off
	for {
		ended := d.ended()
		select {
		case <-ctx.Done():
			return d.end(log)
		case <-again:
			again = nil
			poke(d.wake)
		case <-sweep.C:
			if err := d.sweep(false); err != nil {
				log.Error(err, "Failed to remove stale addresses, retrying")
			}
			if backoff > backoffMin && d.age() > time.Minute {
				backoff = backoffMin
			}
		case <-ended:
			log.Error(nil, "keepalived exited unexpectedly, removing its addresses and restarting it", "in", backoff)
			d.buried()
			if err := d.sweep(true); err != nil {
				log.Error(err, "Failed to remove keepalived's leftovers, retrying")
			}
			again = time.After(backoff)
			backoff = min(2*backoff, backoffMax)
		case <-d.wake:
			if again != nil {
				continue // it starts when the time has come
			}
			if err := d.adjust(ctx); err != nil {
				log.Error(err, "Failed to start keepalived, retrying", "in", backoff)
				again = time.After(backoff)
				backoff = min(2*backoff, backoffMax)
			}
		}
	}
}

// adjust starts keepalived if it should run, and ends it if not.
func (d *Daemon) adjust(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := klog.FromContext(ctx)
	switch {
	case d.wanted && d.proc == nil:
		p, err := d.adopt()
		if err != nil {
			return err
		}
		if p != nil {
			log.Info("Adopted keepalived of an earlier run", "pid", p.pid)
			d.proc = p
			d.seedStates()
			return p.reload()
		}
		if err := d.sweepLocked(true); err != nil {
			log.Error(err, "Failed to remove addresses of an earlier run, retrying")
		}
		if d.proc, err = d.start(log); err != nil {
			return err
		}
		log.Info("Started keepalived", "pid", d.proc.pid)
	case !d.wanted && d.proc == nil:
		// A process of an earlier run, although no instance is desired now.
		p, err := d.adopt()
		if p == nil || err != nil {
			return err
		}
		d.proc = p
		fallthrough
	case !d.wanted:
		p := d.proc
		d.proc = nil
		err := p.stop(log)
		d.removePIDFiles()
		return errors.Join(err, d.sweepLocked(true))
	}
	return nil
}

// Clear ends a keepalived that an earlier process left, and removes its addresses. It is for a
// Daemon that does not run.
func (d *Daemon) Clear(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.adopt()
	if err != nil {
		return err
	}
	if p == nil {
		d.killOrphans()
		return d.sweepLocked(true)
	}
	err = p.stop(klog.FromContext(ctx))
	d.removePIDFiles()
	return errors.Join(err, d.sweepLocked(true))
}

// end stops keepalived permanently: the others are notified and take over at once.
func (d *Daemon) end(log klog.Logger) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.applied {
		return nil
	}
	var err error
	if p := d.proc; p != nil {
		d.proc = nil
		err = p.stop(log)
		d.removePIDFiles()
	}
	return errors.Join(err, d.sweepLocked(true))
}

func (d *Daemon) ended() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc == nil {
		return nil
	}
	return d.proc.done
}

func (d *Daemon) age() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc == nil {
		return 0
	}
	return time.Since(d.proc.since)
}

// buried forgets a process that has ended, and ends its child if that one lives on.
func (d *Daemon) buried() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc != nil {
		unix.Close(d.proc.fd) // every waiter on it has seen it end
		d.proc = nil
	}
	d.killOrphans()
	d.removePIDFiles()
	d.statesMu.Lock()
	d.restarts++
	clear(d.states)
	d.statesMu.Unlock()
	poke(d.changed)
}
