package metamanager_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// Writes that kube-apiserver has accepted stay visible on the device while the cloud's watch lags,
// over a restart and over a session with a replica that has not seen them, and are replaced by the
// watched objects once the watch has caught up.
func TestAcceptedWritesOutliveALaggingWatch(t *testing.T) {
	newSession := map[string]func(e *edge, c *cloud){
		"restart": func(e *edge, _ *cloud) { e.restart() },
		"another replica": func(_ *edge, c *cloud) {
			c.cut()
			synctest.Wait()
		},
	}
	for name, leave := range newSession {
		t.Run("status/"+name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e, c := laggingPod(t)
				for _, n := range []string{"4", "5", "6", "7"} {
					if err := e.patchStatus("a", n); err != nil {
						t.Fatal(err)
					}
					settle()
				}
				leave(e, c)
				if got := e.pod("a").Status.Message; got != "7" {
					t.Errorf("without a link: the status is %q, want 7", got)
				}
				for range 2 { // the second session learns of it from the store alone
					c.link()
					settle()
					if got := e.pod("a").Status.Message; got != "7" {
						t.Errorf("while the watch lags: the status is %q, want 7", got)
					}
					c.cut()
					settle()
				}
				c.link()
				settle()
				c.catchUp()
				settle()
				if got := e.pod("a").Status.Message; got != "7" {
					t.Errorf("in step again: the status is %q, want 7", got)
				}
				e.nothingWaits(t)
			})
		})
		t.Run("restored cluster/"+name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e, c := laggingPod(t)
				if err := e.patchStatus("a", "7"); err != nil {
					t.Fatal(err)
				}
				settle()
				leave(e, c)
				c.goBack()
				c.link()
				settle()
				if got := e.pod("a").Status.Message; got != "7" {
					t.Errorf("before the copy is known to be no older: the status is %q, want 7", got)
				}
				c.catchUp()
				settle()
				if got := e.pod("a").Status.Message; got != "3" {
					t.Errorf("the status is %q, want 3 as the cluster has it", got)
				}
				e.nothingWaits(t)
			})
		})
		t.Run("deletion/"+name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e, c := laggingPod(t)
				if err := e.deletePod("a"); err != nil {
					t.Fatal(err)
				}
				settle()
				leave(e, c)
				for _, during := range []string{"while the watch lags", "in step again"} {
					c.link()
					settle()
					if during == "in step again" {
						c.catchUp()
						settle()
					}
					_, err := e.Get(context.Background(), ref("pods", "default", "a"), metamanager.Caller{Kubelet: true})
					if !apierrors.IsNotFound(err) {
						t.Errorf("%s: %v, want that the pod is not found", during, err)
					}
					c.cut()
					settle()
				}
				e.nothingWaits(t)
			})
		})
	}
}

// A restored cluster issues its resource versions a second time: a write accepted after the restore
// is newer than one accepted before it, whatever their versions are.
func TestAcceptedWritesOfARestoredCluster(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e, c := laggingPod(t)
		for _, n := range []string{"4", "5", "6", "7"} { // of versions that the restored cluster has not reached yet
			if err := e.patchStatus("a", n); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		c.goBack()
		if err := e.patchStatus("a", "8"); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := e.pod("a").Status.Message; got != "8" {
			t.Errorf("before it comes down: the status is %q, want 8", got)
		}
		c.catchUp()
		settle()
		if got := e.pod("a").Status.Message; got != "8" {
			t.Errorf("once it has come down: the status is %q, want 8", got)
		}
		e.nothingWaits(t)
	})
}

// agedPod is a pod whose statuses were delivered; later changes in the cloud are not delivered.
// restore resets the cloud to the state before the statuses.
func agedPod(t *testing.T, statuses ...string) (e *edge, c *cloud, restore func()) {
	t.Helper()
	c = newCloud(t)
	e = newEdge(t, c, metamanager.Config{})
	c.set(ref("pods", "default", "a"), pod())
	backup, at := c.past()
	c.link()
	e.holdPods()
	settle()
	for _, n := range statuses {
		if err := e.patchStatus("a", n); err != nil {
			t.Fatal(err)
		}
		settle()
	}
	c.lag()
	return e, c, func() { c.restore(backup, at) }
}

// A backup may be older than the delivered state: a write that the restored cluster accepts then
// has a version that the device seems to have already, and still replaces earlier accepted writes.
func TestAcceptedWritesOfAnOlderBackup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e, c, restore := agedPod(t, "1", "2", "3")
		for _, n := range []string{"4", "5"} { // these are accepted, and don't
			if err := e.patchStatus("a", n); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		restore()
		if err := e.patchStatus("a", "8"); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := e.pod("a").Status.Message; got != "8" {
			t.Errorf("before it comes down: the status is %q, want 8", got)
		}
		c.catchUp()
		settle()
		if got := e.pod("a").Status.Message; got != "8" {
			t.Errorf("once it has come down: the status is %q, want 8", got)
		}
		e.nothingWaits(t)
	})
}

// The same with no earlier accepted write pending: the delivered state has a newer version than the
// write but is older, since the write was sent after its delivery.
func TestAWriteThatARestoredClusterAccepts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e, c, restore := agedPod(t, "1", "2", "3", "4", "5")
		restore()
		for _, n := range []string{"6", "7"} {
			if err := e.patchStatus("a", n); err != nil {
				t.Fatal(err)
			}
			settle()
			if got := e.pod("a").Status.Message; got != n {
				t.Errorf("before it comes down: the status is %q, want %s", got, n)
			}
		}
		c.catchUp()
		settle()
		if got := e.pod("a").Status.Message; got != "7" {
			t.Errorf("once it has come down: the status is %q, want 7", got)
		}
		e.nothingWaits(t)
	})
}

// A replica whose watch lags does not deliver deleted objects again: the edge reports the version
// of its state, also for an empty resource and after a restart. A restored cluster counts.
func TestDeletionsOutliveALaggingWatch(t *testing.T) {
	for name, leave := range map[string]func(e *edge, c *cloud){
		"restart":         func(e *edge, _ *cloud) { e.restart() },
		"another replica": func(_ *edge, c *cloud) { c.cut() },
	} {
		for _, restored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restored cluster: %v", name, restored), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					c := newCloud(t)
					e := newEdge(t, c, metamanager.Config{})
					a := ref("pods", "default", "a")
					c.set(a, pod())
					c.link()
					e.holdPods()
					settle()
					had, at := c.past()
					c.delete(a)
					settle()
					leave(e, c)
					settle()
					there := func() bool {
						_, err := e.Get(context.Background(), a, metamanager.Caller{Kubelet: true})
						if err != nil && !apierrors.IsNotFound(err) {
							t.Error(err)
						}
						return err == nil
					}
					c.lagSince(had, at)
					if restored {
						c.goBack()
					}
					c.link()
					settle()
					if there() {
						t.Error("while the watch lags: the pod has come back")
					}
					c.catchUp()
					settle()
					if there() != restored {
						t.Errorf("in step again: the pod is there: %v, in the cluster: %v", there(), restored)
					}
				})
			})
		}
	}
}

// laggingPod is an edge whose pod has status 3, and a cloud whose watch shows no change
// from here on.
func laggingPod(t *testing.T) (*edge, *cloud) {
	t.Helper()
	c := newCloud(t)
	e := newEdge(t, c, metamanager.Config{})
	c.set(ref("pods", "default", "a"), pod())
	c.link()
	e.holdPods()
	settle()
	if err := e.patchStatus("a", "3"); err != nil {
		t.Fatal(err)
	}
	settle()
	c.lag()
	return e, c
}

// settle waits until a synctest bubble is idle.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (e *edge) nothingWaits(t *testing.T) {
	t.Helper()
	if st := e.Status().Outbox; len(st.Waiting) != 0 || st.InFlight != 0 {
		t.Errorf("outbox: %+v", st)
	}
}
