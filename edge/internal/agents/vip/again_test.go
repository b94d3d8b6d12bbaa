package vip_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// cloudcore drops the entry of a node that leaves an address. A device that was cut off when it
// left and came back reports its entry again, though that is unchanged.
func TestClaims_17_EntryIsReportedForEachGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{version: 1, objects: map[string]map[string]metav1.Object{"pods": {}, "virtualips": {}}, watches: map[chan watchEvent]string{}}
		connections := make(pipes)
		server := &http.Server{Handler: a}
		go func() { _ = server.Serve(connections) }()
		outbox := &agenttest.Outbox{}
		module := vip.New(vip.Config{
			NodeName: "a", Plane: &counting{}, Elector: noElections{}, Reporter: outbox, Memory: files{t.TempDir()}, BootTime: time.Now,
			Interfaces: func() ([]netif.Interface, error) { return nil, nil },
			Watch:      func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil },
			API: &rest.Config{Host: "http://edge.invalid", QPS: -1, Dial: func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				connections <- theirs
				return ours, nil
			}},
		})
		runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{{Module: module}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runner.Run(ctx) }()
		see := func(generation int64, mark string, want int) {
			t.Helper()
			a.put(&v1alpha1.VirtualIP{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "v", UID: "u", Generation: generation, Labels: map[string]string{"mark": mark}},
				Spec:       v1alpha1.VirtualIPSpec{Address: "192.0.2.9", Nodes: []v1alpha1.VirtualIPNode{{Name: "a"}}},
			})
			time.Sleep(10 * time.Second)
			if all := outbox.Reports(""); len(all) != want || all[0].Body != all[want-1].Body {
				t.Errorf("generation %d, %s: %v; want %d reports of one entry", generation, mark, all, want)
			}
		}
		see(1, "first", 1)
		see(1, "status alone", 1)
		see(3, "left and back", 2)
		see(3, "status alone again", 2)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(connections)
		_ = server.Close()
	})
}
