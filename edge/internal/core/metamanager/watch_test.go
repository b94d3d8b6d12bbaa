package metamanager_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// collect reads the pending events of a watch.
func collect(w metamanager.Watch) (got []string) {
	for {
		synctest.Wait()
		select {
		case e, ok := <-w.Events():
			if !ok {
				return append(got, "closed")
			}
			line := string(e.Type) + " " + e.Object.Name
			if e.InitialEnd {
				line += "initial end"
			}
			if e.Status != nil {
				line += fmt.Sprint(e.Status.Code)
			}
			got = append(got, line)
		default:
			return got
		}
	}
}

func TestWatch(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{Limits: metamanager.Limits{HistoryChanges: 4}})
		c.set(ref("pods", "default", "a"), pod())
		c.link()
		e.holdPods()
		items, version, err := e.List(t.Context(), ownPods(), metamanager.ListOptions{})
		if err != nil || len(items) != 1 {
			t.Fatal(items, err)
		}
		open := func(s object.Selection, o metamanager.WatchOptions) metamanager.Watch {
			t.Helper()
			w, err := e.Watch(t.Context(), s, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Stop)
			return w
		}
		from := open(ownPods(), metamanager.WatchOptions{From: version})
		any := open(ownPods(), metamanager.WatchOptions{})
		initial := open(ownPods(), metamanager.WatchOptions{InitialEvents: true})
		pending := open(selection("pods", "spec.nodeName=edge1,status.phase=Pending"), metamanager.WatchOptions{From: version})
		one := open(selection("pods", "metadata.name=b"), metamanager.WatchOptions{InitialEvents: true})

		running := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
		c.set(ref("pods", "default", "b"), pod())
		synctest.Wait()
		c.set(ref("pods", "default", "a"), pod(running))
		synctest.Wait()
		c.delete(ref("pods", "default", "b"))

		later := open(ownPods(), metamanager.WatchOptions{From: version})
		changes := []string{"ADDED b", "MODIFIED a", "DELETED b"}
		for name, tt := range map[string]struct {
			watch metamanager.Watch
			want  []string
		}{
			"from a version":       {from, changes},
			"from it, later":       {later, changes},
			"any":                  {any, append([]string{"ADDED a"}, changes...)},
			"initial events":       {initial, append([]string{"ADDED a", "BOOKMARK initial end"}, changes...)},
			"one that stops match": {pending, []string{"ADDED b", "DELETED a", "DELETED b"}},
			"one object":           {one, []string{"BOOKMARK initial end", "ADDED b", "DELETED b"}},
		} {
			if diff := cmp.Diff(tt.want, collect(tt.watch)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}

		for range 8 {
			c.set(ref("pods", "default", "a"), pod())
			synctest.Wait()
		}
		for name, v := range map[string]uint64{"too old": version, "not given out yet": e.Version() + 1000, "kube-apiserver's": 17} {
			if _, err := e.Watch(t.Context(), ownPods(), metamanager.WatchOptions{From: v}); !apierrors.IsResourceExpired(err) {
				t.Errorf("Watch from a version %s: %v, want 410", name, err)
			}
		}
	})
}

func TestASlowWatcherIsEnded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{Limits: metamanager.Limits{WatchQueue: 8}})
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), metamanager.WatchOptions{InitialEvents: true})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			c.set(ref("pods", "default", fmt.Sprint(i)), pod())
			synctest.Wait()
		}
		got := collect(w)
		if n := len(got); n < 2 || got[n-2] != "ERROR 410" || got[n-1] != "closed" {
			t.Errorf("the watch ends with %v", got)
		}
		w.Stop()
	})
}

func TestAStoppedManagerEndsItsWatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), metamanager.WatchOptions{InitialEvents: true})
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		c.cut()
		go func() {
			_, err := e.Watch(context.Background(), selection("services"), metamanager.WatchOptions{})
			waiting <- err
		}()
		synctest.Wait()
		e.stop()
		got := collect(w)
		if n := len(got); n == 0 || got[n-1] != "closed" {
			t.Errorf("the watch ends with %v", got)
		}
		if err := <-waiting; !apierrors.IsServiceUnavailable(err) {
			t.Errorf("one that waits gets %v", err)
		}
		if _, _, err := e.List(t.Context(), ownPods(), metamanager.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("List: %v", err)
		}
	})
}
