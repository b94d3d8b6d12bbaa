package app_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// An application without fencing whose node is lost: no pod is deleted while it has nowhere to go,
// and a site that is away as a whole is not a dead device.
func TestClaims_25_NothingIsDeletedWithoutACandidate(t *testing.T) {
	for name, tc := range map[string]struct {
		spec func(*world)
		set  func(*world)
		want []string
	}{
		"no other node is Ready": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", false, time.Hour)
			}, want: []string{"NotReady"},
		},
		"with its whole site, another site is Ready": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", false, time.Hour)
				w.node("far1", true, time.Hour, func(n *app.Node) { n.Pool = "far" })
			}, want: []string{"NotReady"},
		},
		"the only device of its site": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour, func(n *app.Node) { n.Pool = "alone" })
			}, want: []string{"delete p1", "NotReady"},
		},
		"its site comes back, another device first": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", true, 5*time.Second)
			}, want: []string{"NotReady"},
		},
		"its site comes back, another device half a minute before": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", true, 30*time.Second, func(n *app.Node) { n.Back = now.Add(-30 * time.Second) })
			}, want: []string{"NotReady"},
		},
		"its site came back, without it": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", true, time.Minute, func(n *app.Node) { n.Back = now.Add(-time.Minute) })
			}, want: []string{"delete p1", "NotReady"},
		},
		"the other device is cordoned": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", true, time.Hour, func(n *app.Node) { n.Closed = true })
			}, want: []string{"NotReady"},
		},
		"the other node is no edge": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", true, time.Hour, func(n *app.Node) { n.Edge, n.Labels = false, "" })
			}, want: []string{"NotReady"},
		},
		"the other device does not fit": {
			spec: func(w *world) { w.App.Spec.Template.Raw = []byte(`{"spec":{"nodeSelector":{"line":"one"}}}`) },
			set:  func(w *world) { w.node("edge1", false, time.Hour) }, want: []string{"NotReady"},
		},
		"the other device fits": {
			spec: func(w *world) { w.App.Spec.Template.Raw = []byte(`{"spec":{"nodeSelector":{"line":"one"}}}`) },
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				w.node("edge2", true, time.Hour, func(n *app.Node) { n.Labels += "line=one\n" })
			}, want: []string{"delete p1", "NotReady"},
		},
		"cut off with it, and not found NotReady yet": {
			set: func(w *world) {
				w.node("edge1", false, 3*time.Minute)
				w.Heard = func(string) (time.Time, error) { return now.Add(-4 * time.Minute), nil }
			}, want: []string{"NotReady"},
		},
		"the other device was heard of since": {
			set: func(w *world) {
				w.node("edge1", false, 3*time.Minute)
				w.Heard = func(string) (time.Time, error) { return now.Add(-2 * time.Minute), nil }
			}, want: []string{"delete p1", "NotReady"},
		},
		"its whole site is switched off, as a person says": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour, outOfService)
				w.node("edge2", false, time.Hour)
			}, want: []string{"delete p1", "NotReady"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := single(t, func(a *v1alpha1.EdgeApp) {
				a.Spec.Singleton = false
				if tc.spec != nil {
					tc.spec(&world{State: app.State{App: a}})
				}
			})
			tc.set(w)
			if diff := cmp.Diff(tc.want, planLines(w.plan(t, now))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// While no node's Lease is younger than the cut, as after one of the cloud itself, a plan reads a
// few Leases and not those of all nodes.
func TestFailOver_ReadsFewLeases(t *testing.T) {
	w := single(t, func(a *v1alpha1.EdgeApp) { a.Spec.Singleton = false })
	for i := range 1000 {
		w.node(fmt.Sprint("other", i), true, time.Hour)
	}
	w.node("edge1", false, 3*time.Minute)
	reads := 0
	w.Heard = func(string) (time.Time, error) { reads++; return now.Add(-4 * time.Minute), nil }
	if p := w.plan(t, now); len(p.Delete) > 0 || p.Next == 0 || reads == 0 || reads > 10 {
		t.Errorf("%d Leases read, deletes %d pods, again after %v", reads, len(p.Delete), p.Next)
	}
}
