package metamanager_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

func TestObjectsThatPodsNeedTravelWithThem(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		for _, n := range []string{"used", "unused"} {
			c.set(ref("configmaps", "default", n), configMap(n))
		}
		c.set(ref("pods", "default", "a"), pod(uses("used", "absent")))
		c.link()
		e.holdPods()
		c.cut()
		synctest.Wait()
		list := func(name string) (int, error) {
			s := selection("configmaps", "metadata.name="+name)
			s.Namespace = "default"
			items, _, err := e.List(t.Context(), s, metamanager.ListOptions{FromReflector: true})
			return len(items), err
		}
		if n, err := list("used"); n != 1 || err != nil {
			t.Errorf("used: %d, %v", n, err)
		}
		if n, err := list("absent"); n != 0 || err != nil {
			t.Errorf("absent: %d, %v; want an empty list: it is certainly not there", n, err)
		}
		if n, err := list("unused"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("unused: %d, %v; want 503", n, err)
		}
		if n := len(e.Status().Interests); n != 3 { // pods, dependencies, and the unused one that was asked for
			t.Errorf("%d interests", n)
		}
	})
}

func TestInterestsThatNobodyUsesAreDroppedInLinkedTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		c.set(ref("services", "default", "s"), &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}})
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), metamanager.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if _, _, err := e.List(t.Context(), selection("services"), metamanager.ListOptions{FromReflector: true}); err != nil {
			t.Fatal(err)
		}
		c.cut()
		time.Sleep(24 * time.Hour)
		if !e.Covered(selection("services")) {
			t.Errorf("dropped while offline")
		}
		c.link()
		time.Sleep(9 * time.Minute)
		if !e.Covered(selection("services")) {
			t.Errorf("dropped too early")
		}
		time.Sleep(3 * time.Minute)
		if e.Covered(selection("services")) {
			t.Errorf("not dropped")
		}
		if !e.Covered(ownPods()) {
			t.Errorf("one that is watched was dropped")
		}
		synctest.Wait()
		for _, r := range e.Status().Resources {
			if r.Resource == "services" && r.Objects > 0 {
				t.Errorf("its objects are still held")
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.interests) != 2 {
			t.Errorf("the cloud knows %v", c.interests)
		}
	})
}

func TestARefusedSetIsForbidden(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		forbidden := true
		c.forbid = func(i *topicpb.Interest) *metav1.Status {
			if forbidden && i.Resource.GetResource() == "secrets" {
				return &metav1.Status{Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no"}
			}
			return nil
		}
		e := newEdge(t, c, metamanager.Config{})
		c.link()
		s := selection("secrets")
		if _, _, err := e.List(t.Context(), s, metamanager.ListOptions{FromReflector: true}); !apierrors.IsForbidden(err) {
			t.Errorf("List: %v, want Forbidden", err)
		}
		c.mu.Lock()
		forbidden = false
		c.publish()
		c.mu.Unlock()
		synctest.Wait()
		if _, _, err := e.List(t.Context(), s, metamanager.ListOptions{FromReflector: true}); err != nil {
			t.Errorf("List after it was granted: %v", err)
		}
	})
}

// A cloud that takes the rights of a node back by mistake must not end its pods.
func TestPodsOutliveARefusal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		for _, n := range []string{"a", "b"} {
			c.set(ref("pods", "default", n), pod())
		}
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), metamanager.WatchOptions{From: e.Version()})
		if err != nil {
			t.Fatal(err)
		}
		refuse := func(yes bool) {
			c.mu.Lock()
			c.forbid = func(i *topicpb.Interest) *metav1.Status {
				if yes && !i.Dependencies {
					return &metav1.Status{Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no"}
				}
				return nil
			}
			c.publish()
			c.mu.Unlock()
			synctest.Wait()
		}
		refuse(true)
		for _, when := range []string{"at once", "in a new session", "after a restart"} {
			items, _, err := e.List(t.Context(), ownPods(), metamanager.ListOptions{FromReflector: true})
			if err != nil || len(items) != 2 {
				t.Errorf("%s: %d pods, %v", when, len(items), err)
			}
			c.cut()
			if when == "in a new session" {
				e.restart()
			}
			c.link()
			synctest.Wait()
		}
		if got := collect(w); len(got) > 0 && got[0] != "ERROR 503" {
			t.Errorf("the watch saw %v", got)
		}
		c.delete(ref("pods", "default", "b")) // in the cloud, while the interest is refused
		synctest.Wait()
		if items, _, err := e.List(t.Context(), ownPods(), metamanager.ListOptions{}); err != nil || len(items) != 2 {
			t.Errorf("%d pods, %v", len(items), err)
		}
		refuse(false)
		if items, _, err := e.List(t.Context(), ownPods(), metamanager.ListOptions{}); err != nil || len(items) != 1 {
			t.Errorf("granted again: %d pods, %v; want 1", len(items), err)
		}
	})
}
