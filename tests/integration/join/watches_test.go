package join_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// watches counts the open watches, by resource.
type watches struct {
	mu         sync.Mutex
	open, most map[string]int
}

func (w *watches) note(r *http.Request) faultproxy.Fault {
	q := r.URL.Query()
	if q.Get("watch") == "" {
		return faultproxy.Fault{}
	}
	of := r.URL.Path + " " + q.Get("labelSelector") + " " + q.Get("fieldSelector")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[of]++
	w.most[of] = max(w.most[of], w.open[of])
	context.AfterFunc(r.Context(), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open[of]--
	})
	return faultproxy.Fault{}
}

// TestTheLeaderWatchesOnce: a cloudcore that leads follows each collection once, however many of
// its parts need it.
func TestTheLeaderWatchesOnce(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	w := &watches{open: map[string]int{}, most: map[string]int{}}
	newSystem(t, func(c *rest.Config) {
		proxy, host := plane.FaultProxy(t)
		proxy.Set(w.note)
		c.Host = host
	})
	cluster.Eventually(t, "it leads", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, of := range []string{"/apis/skerry.io/v1alpha1/virtualips  ", "/apis/skerry.io/v1alpha1/staticroutes  ", "/apis/skerry.io/v1alpha1/nodepools  ", "/api/v1/nodes  ", "/api/v1/services  "} {
			if w.most[of] == 0 {
				return errors.New("no watch of " + of)
			}
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for of, n := range w.most {
		if n > 1 {
			t.Errorf("%d watches of %s at once", n, of)
		}
	}
	t.Logf("%v", w.most)
}
