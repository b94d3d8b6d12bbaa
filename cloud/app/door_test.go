package app

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/cloud/internal/kube"
)

func TestDoorOpens(t *testing.T) {
	nodes := func() *kube.Store { return kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes")) }
	for name, test := range map[string]struct {
		synced time.Duration // of the second store; 0: never
		want   time.Duration
	}{
		"when all collections were read":    {2 * time.Second, 2 * time.Second},
		"in any case, while they are not":   {0, doorOpens},
		"and not later, when they are late": {time.Hour, doorOpens},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second, d, began := nodes(), nodes(), newDoor(), time.Now()
				if err := first.Replace(nil); err != nil {
					t.Fatal(err)
				}
				if test.synced > 0 {
					time.AfterFunc(test.synced, func() { _ = second.Replace(nil) })
				}
				if err := d.run(t.Context(), first, second); err != nil {
					t.Fatal(err)
				}
				<-d.opened
				if took := time.Since(began); took != test.want {
					t.Errorf("opened after %v, want %v", took, test.want)
				}
			})
		})
	}
}

// A connection waits before the door and comes in when it opens; a listener that is closed before
// ends its Accept.
func TestDoorHolds(t *testing.T) {
	listen := func(d *door) net.Listener {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held := d.hold(l)
		t.Cleanup(func() { _ = held.Close() })
		return held
	}
	d := newDoor()
	l := listen(d)
	device, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	accepted := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Write([]byte("come in"))
			_ = conn.Close()
		}
		accepted <- err
	}()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	select {
	case err := <-accepted:
		t.Fatalf("accepted before the door opened: %v", err)
	default:
	}
	if err := d.run(ctx); err != nil { // no collections: it opens at once
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if n, err := device.Read(make([]byte, 16)); err != nil || n == 0 {
		t.Errorf("the device read %d bytes: %v", n, err)
	}

	l = listen(newDoor())
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	_ = l.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
}
