package reports_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// leader is an apiserver with a copy of its nodes.
type leader struct {
	*apiserver
	events kubernetes.Interface
	nodes  *kube.Store
}

func (l *leader) Kubernetes() kubernetes.Interface { return l.events }

func (l *leader) Open(schema.GroupVersionResource) (*kube.Store, func()) { return l.nodes, func() {} }

func (l *leader) status(name string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.things[name].Status)
}

// The entries of nodes that do not exist are removed at the start, and that of a node when it is
// deleted; no object is written without a reason.
func TestSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiserver{things: map[string]*thing{
			"a": {ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}, Status: map[string]int{"edge1": 1, "edge2": 2, "gone": 3}},
			"b": {ObjectMeta: metav1.ObjectMeta{Name: "b", ResourceVersion: "1"}, Status: map[string]int{"edge1": 4}},
		}}
		l := &leader{apiserver: api, events: fake.NewClientset(), nodes: kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes"))}
		ctx, cancel := context.WithCancel(t.Context())
		aggregator := reports.New(api, kind())
		ended := make(chan error, 2)
		go func() { ended <- aggregator.Run(ctx) }()
		go func() { ended <- controller.NewManager(l, l).Run(ctx, aggregator.Sweeper()) }()
		check := func(when string, writes int, a map[string]int) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if diff := cmp.Diff(a, l.status("a")); diff != "" || api.writes != writes || len(l.status("b")) != 1 {
				t.Errorf("%s: %d writes, b %v, a (-want +got):\n%s", when, api.writes, l.status("b"), diff)
			}
		}
		check("before the nodes are known", 0, map[string]int{"edge1": 1, "edge2": 2, "gone": 3})
		var nodes []runtime.Object
		for _, name := range []string{"edge1", "edge2"} {
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"}})
		}
		if err := l.nodes.Replace(nodes); err != nil {
			t.Fatal(err)
		}
		check("at the start", 1, map[string]int{"edge1": 1, "edge2": 2})
		l.nodes.Delete(kube.Key{Name: "edge2"})
		check("after a deletion", 2, map[string]int{"edge1": 1})
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}
