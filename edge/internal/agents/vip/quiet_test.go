package vip_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// counting is a data plane that counts how often it was looked after.
type counting struct{ applied atomic.Int32 }

func (*counting) Name() string { return "counting" }

func (c *counting) Apply(context.Context, []balance.Service) error {
	c.applied.Add(1)
	return nil
}

// noElections is an Elector without elections.
type noElections struct{}

func (noElections) Run(ctx context.Context) error                      { <-ctx.Done(); return nil }
func (noElections) Apply(context.Context, []keepalived.Instance) error { return nil }
func (noElections) SetReady(string, bool) error                        { return nil }
func (noElections) States() map[string]keepalived.State                { return nil }
func (noElections) Changed() <-chan struct{}                           { return nil }
func (noElections) Problems() map[string]error                         { return nil }
func (noElections) ExtraProblem() error                                { return nil }
func (noElections) Leaving() ([]netip.Addr, error)                     { return nil, nil }
func (noElections) Restarts() uint64                                   { return 0 }

// pipes is a listener of connections within the process.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A device that serves no address reads the kernel state from time to time, and not at every change
// of a pod.
func TestPodsOfADeviceWithoutAddressesWakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{version: 1, objects: map[string]map[string]metav1.Object{"pods": {}, "virtualips": {}}, watches: map[chan watchEvent]string{}}
		connections := make(pipes)
		server := &http.Server{Handler: a}
		go func() { _ = server.Serve(connections) }()
		plane := &counting{}
		dir := t.TempDir()
		agent := vip.New(vip.Config{
			NodeName: "a", Plane: plane, Elector: noElections{}, Reporter: files{dir}, Memory: files{dir}, BootTime: time.Now,
			Interfaces: func() ([]netif.Interface, error) { return nil, nil },
			Watch:      func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil },
			API: &rest.Config{Host: "http://edge.invalid", QPS: -1, Dial: func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				connections <- theirs
				return ours, nil
			}},
		})
		runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{{Module: agent}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runner.Run(ctx) }()
		synctest.Wait()
		pod := func(i int) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{"i": fmt.Sprint(i)}}, Spec: corev1.PodSpec{NodeName: "a"}}
		}
		looks := func(do func()) int32 {
			before := plane.applied.Load()
			do()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			return plane.applied.Load() - before
		}
		a.put(pod(0))
		time.Sleep(2 * time.Second) // the informers have begun
		for i := range 3 {
			if n := looks(func() { a.put(pod(i)) }); n != 0 {
				t.Errorf("no address, and a pod's change made it look %d times", n)
			}
		}
		address := &v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "v", UID: "u"}}
		if n := looks(func() { a.put(address) }); n == 0 {
			t.Error("a new address was not looked at")
		}
		if n := looks(func() { a.put(pod(7)) }); n == 0 {
			t.Error("with an address, a pod's change was not looked at")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(connections)
		_ = server.Close()
	})
}
