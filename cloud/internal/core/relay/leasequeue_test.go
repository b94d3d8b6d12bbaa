package relay_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

var allLeases = path.Dir(leasePath)

// leaseOf has a Lease of the node that was renewed so long ago.
func (w *system) leaseOf(node types.NodeName, age time.Duration) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.api.store(path.Join(allLeases, string(node)), map[string]any{
		"metadata": map[string]any{
			"name": string(node), "annotations": map[string]any{"skerry.io/epoch": "1"},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": string(node), "uid": "u"}},
		},
		"spec": map[string]any{"holderIdentity": string(node), "renewTime": time.Now().Add(-age).Format(metav1.RFC3339Micro)},
	}, 201)
}

// puts are the nodes whose Leases were written, in that order, and how many Leases were read by
// themselves and together.
func (w *system) puts() (order []string, single, lists int) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	for _, c := range w.api.calls {
		switch f := strings.Fields(c); {
		case len(f) == 2 && f[0] == "GET" && f[1] == allLeases: // as cloudcore itself
			lists++
		case len(f) == 3 && f[1] == "GET" && path.Dir(f[2]) == allLeases:
			single++
		case len(f) == 3 && (f[1] == "PUT" && path.Dir(f[2]) == allLeases || f[1] == "POST" && f[2] == allLeases):
			order = append(order, f[0])
		}
	}
	return order, single, lists
}

const (
	manyNodes = 400
	atOnce    = 64
)

// comeBack has many devices come at once, the Lease of each of another age: node i's is i*0.05 s
// old, but for those that ran out. Each request takes a second.
func comeBack(t *testing.T, fail func(kube.Identity, kube.Request) (*kube.Response, error)) *system {
	w := newSystem(t)
	w.api.fail = fail
	w.api.delay = func(kube.Request) time.Duration { return time.Second }
	for i := range manyNodes {
		w.leaseOf(nodeOf(i), age(i))
	}
	for i := range manyNodes {
		w.open(nodeOf(i), 5).send(lives)
	}
	return w
}

func nodeOf(i int) types.NodeName { return types.NodeName(fmt.Sprintf("edge%d", i)) }

func age(i int) time.Duration {
	if i%10 == 9 {
		return time.Hour
	}
	return time.Duration(i) * 50 * time.Millisecond
}

// Of many devices that come back at once those whose Leases are the oldest are first, whatever the
// order in which they came; their Leases are read with one request. The node of an expired Lease is
// NotReady: it is served after those that did not.
func TestOldestLeaseIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := comeBack(t, nil)
		time.Sleep(14 * time.Second) // renewals come after 17.5 s
		order, single, lists := w.puts()
		if len(order) != manyNodes || single >= 2*atOnce || lists != 1 {
			t.Fatalf("%d Leases written, %d read by themselves, and all of them %d times", len(order), single, lists)
		}
		seen := map[string]bool{}
		for _, n := range order {
			seen[n] = true
		}
		if len(seen) != manyNodes {
			t.Errorf("%d nodes' Leases were written", len(seen))
		}
		// The first ones were under way before all were read. The others begin 64 at a time.
		rest, ages := order[2*atOnce:], []time.Duration{}
		for _, n := range rest {
			i, err := strconv.Atoi(strings.TrimPrefix(n, "edge"))
			if err != nil {
				t.Fatal(err)
			}
			ages = append(ages, age(i))
		}
		ran := slices.Index(ages, time.Hour)
		if ran < 0 || slices.ContainsFunc(ages[min(ran+atOnce, len(ages)):], func(a time.Duration) bool { return a < time.Hour }) {
			t.Errorf("Leases that ran out were written before others: %v", ages)
		}
		for i := range ran {
			if i+atOnce < ran && ages[i+atOnce] > ages[i] {
				t.Errorf("one of %v was written before one of %v", ages[i], ages[i+atOnce])
			}
		}
	})
}

// Without the right to read all of them, as with the rights of an older Skerry, or an answer that
// doesn't come, each Lease is read by itself.
func TestLeasesWithoutAListOfThem(t *testing.T) {
	for name, fail := range map[string]func() (*kube.Response, error){
		"forbidden": func() (*kube.Response, error) { return status(403, metav1.StatusReasonForbidden, "no"), nil },
		"no answer": func() (*kube.Response, error) { return nil, context.DeadlineExceeded },
		"nonsense":  func() (*kube.Response, error) { return &kube.Response{Code: 200, Body: []byte("k8s\x00x")}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := comeBack(t, func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
					if r.Path != allLeases || r.Method != "GET" {
						return nil, nil
					}
					return fail()
				})
				time.Sleep(14 * time.Second) // renewals come after 17.5 s
				order, single, lists := w.puts()
				if len(order) != manyNodes || single != manyNodes || lists == 0 || lists > 2 {
					t.Errorf("%d Leases written, %d read by themselves, and all of them %d times", len(order), single, lists)
				}
			})
		})
	}
}

// A device that reconnects soon after all Leases were listed finds its own as it left it; after the
// list has expired the Lease is read anew; and a session that ends while it lists leaves that to
// another.
func TestLeasesAreReadForOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.api.delay = func(r kube.Request) time.Duration {
			if r.Path == allLeases && r.Method == "GET" {
				return 5 * time.Second
			}
			return time.Second
		}
		for i := range manyNodes {
			w.leaseOf(nodeOf(i), age(i))
		}
		edges := make([]*edge, manyNodes)
		for i := range edges {
			edges[i] = w.open(nodeOf(i), 5)
			edges[i].send(lives)
		}
		time.Sleep(2500 * time.Millisecond)
		_, _, lists := w.puts()
		if lists != 1 {
			t.Fatalf("%d lists", lists)
		}
		w.api.mu.Lock()
		reads := w.api.listers[0]
		w.api.mu.Unlock()
		for i, e := range edges {
			if nodeOf(i) == reads {
				e.cancel()
			}
		}
		time.Sleep(12 * time.Second)
		before, _, lists := w.puts()
		if len(before) < manyNodes-1 || lists != 2 {
			t.Errorf("%d written, and all read %d times", len(before), lists)
		}
		// Some wrote while all Leases were read, and some after that.
		again := slices.Concat(before[atOnce:atOnce+5], before[len(before)-5:])
		for i, e := range edges {
			if slices.Contains(again, string(nodeOf(i))) {
				e.cancel()
			}
		}
		for epoch, wait := range []time.Duration{3 * time.Second, 15 * time.Second} {
			epoch := uint64(6 + epoch)
			for _, n := range again {
				w.open(types.NodeName(n), epoch).send(lives)
			}
			time.Sleep(wait)
			for _, n := range again {
				o := w.api.get(path.Join(allLeases, n))
				if text := fmt.Sprint(o); !strings.Contains(text, fmt.Sprintf("epoch:%d", epoch)) {
					t.Errorf("not of epoch %d: %s", epoch, text)
				}
			}
			after, _, _ := w.puts()
			if writes := slices.DeleteFunc(after[len(before):], func(n string) bool { return !slices.Contains(again, n) }); epoch == 6 && len(writes) != len(again) {
				t.Errorf("devices that came back once more had their Leases written %d times: %v", len(writes), writes)
			}
		}
	})
}
