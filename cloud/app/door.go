package app

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/kube"
)

// doorOpens is after which time devices are let in at the latest. They wait for longer than that
// before they give a dial up.
const doorOpens = 5 * time.Second

// door holds connections back in the kernel's queue until open is called. Devices that have lost
// their cloudcore come to a new one within its first second. The handshakes of some thousand take
// all processors for tens of seconds, in which what cloudcore reads of the cluster first arrives
// slowly, and no device is in step before it has.
type door struct {
	opened chan struct{}
	open   func() // may be called more than once
}

func newDoor() *door {
	d := &door{opened: make(chan struct{})}
	d.open = sync.OnceFunc(func() { close(d.opened) })
	return d
}

// run opens the door when the collections have been read, or after doorOpens: where kube-apiserver
// does not answer, devices are none the worse for a link.
func (d *door) run(ctx context.Context, stores ...*kube.Store) error {
	defer d.open()
	late := time.NewTimer(doorOpens)
	defer late.Stop()
	for _, s := range stores {
		select {
		case <-s.Synced():
		case <-late.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// hold returns a listener whose connections come through the door.
func (d *door) hold(l net.Listener) net.Listener {
	h := &heldListener{Listener: l, door: d, closed: make(chan struct{})}
	h.end = sync.OnceFunc(func() { close(h.closed) })
	return h
}

type heldListener struct {
	net.Listener
	door   *door
	closed chan struct{}
	end    func()
}

// Accept implements net.Listener.
func (h *heldListener) Accept() (net.Conn, error) {
	select {
	case <-h.door.opened:
	case <-h.closed: // and Accept says so
	}
	return h.Listener.Accept()
}

// Close implements net.Listener.
func (h *heldListener) Close() error {
	h.end()
	return h.Listener.Close()
}
