package meta_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/object"
)

func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func retryAfter(err error) int {
	s, _ := apierrors.SuggestsClientDelay(err)
	return s
}

func TestAListWaitsForItsSet(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		c.set(ref("pods", "default", "a"), pod())
		e := newEdge(t, c, meta.Config{})

		// Without a link, and never synced: 503 with Retry-After, never an empty list, however it is asked for.
		for name, options := range map[string]meta.ListOptions{"kubectl": {}, "reflector": {FromReflector: true}, "held": {Held: true}} {
			items, _, err := e.List(t.Context(), ownPods(), options)
			if !apierrors.IsServiceUnavailable(err) || retryAfter(err) == 0 || items != nil {
				t.Errorf("%s: List = %v, %v; want 503 with Retry-After", name, items, err)
			}
		}
		if _, err := e.Get(t.Context(), ref("pods", "default", "a"), meta.Caller{Kubelet: true}); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Get: %v, want 503", err)
		}

		// One that waits gets its answer when the link is there.
		done := make(chan error, 1)
		go func() {
			items, _, err := e.List(context.Background(), ownPods(), meta.ListOptions{FromReflector: true})
			if err == nil && len(items) != 1 {
				err = fmt.Errorf("%d items", len(items))
			}
			done <- err
		}()
		time.Sleep(10 * time.Second)
		c.link()
		if err := <-done; err != nil {
			t.Errorf("List: %v", err)
		}

		// What is certainly not there is NotFound.
		if _, err := e.Get(t.Context(), ref("pods", "default", "b"), meta.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("Get of a pod that is not there: %v", err)
		}
		// What is not held passes through on line.
		if _, _, err := e.List(t.Context(), selection("services"), meta.ListOptions{}); !errors.Is(err, meta.ErrPassThrough) {
			t.Errorf("List of what is not held: %v", err)
		}
		if _, err := e.Get(t.Context(), ref("services", "default", "b"), meta.Caller{}); !errors.Is(err, meta.ErrPassThrough) {
			t.Errorf("Get of what is not held: %v", err)
		}
	})
}

// collect reads what a watch has to say now.
func collect(w meta.Watch) (got []string) {
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
		e := newEdge(t, c, meta.Config{Limits: meta.Limits{HistoryChanges: 4}})
		c.set(ref("pods", "default", "a"), pod())
		c.link()
		e.holdPods()
		items, version, err := e.List(t.Context(), ownPods(), meta.ListOptions{})
		if err != nil || len(items) != 1 {
			t.Fatal(items, err)
		}
		open := func(s object.Selection, o meta.WatchOptions) meta.Watch {
			t.Helper()
			w, err := e.Watch(t.Context(), s, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Stop)
			return w
		}
		from := open(ownPods(), meta.WatchOptions{From: version})
		any := open(ownPods(), meta.WatchOptions{})
		initial := open(ownPods(), meta.WatchOptions{InitialEvents: true})
		pending := open(selection("pods", "spec.nodeName=edge1,status.phase=Pending"), meta.WatchOptions{From: version})
		one := open(selection("pods", "metadata.name=b"), meta.WatchOptions{InitialEvents: true})

		running := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
		c.set(ref("pods", "default", "b"), pod())
		synctest.Wait()
		c.set(ref("pods", "default", "a"), pod(running))
		synctest.Wait()
		c.delete(ref("pods", "default", "b"))

		later := open(ownPods(), meta.WatchOptions{From: version})
		changes := []string{"ADDED b", "MODIFIED a", "DELETED b"}
		for name, tt := range map[string]struct {
			watch meta.Watch
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
			if _, err := e.Watch(t.Context(), ownPods(), meta.WatchOptions{From: v}); !apierrors.IsResourceExpired(err) {
				t.Errorf("Watch from a version %s: %v, want 410", name, err)
			}
		}
	})
}

func TestASlowWatcherIsEnded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{Limits: meta.Limits{WatchQueue: 8}})
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), meta.WatchOptions{InitialEvents: true})
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
		e := newEdge(t, c, meta.Config{})
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), meta.WatchOptions{InitialEvents: true})
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		c.cut()
		go func() {
			_, err := e.Watch(context.Background(), selection("services"), meta.WatchOptions{})
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
		if _, _, err := e.List(t.Context(), ownPods(), meta.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("List: %v", err)
		}
	})
}

func TestAPatchIsShownAtOnceAndReachesTheCloudOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		name := ref("pods", "default", "a")
		c.set(name, pod())
		c.link()
		e.holdPods()
		c.cut()
		synctest.Wait()
		for i := range 5 {
			if err := e.patchStatus("a", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			if got := e.pod("a").Status.Message; got != fmt.Sprint(i) {
				t.Errorf("shown: %q, want %d", got, i)
			}
		}
		// Nothing that is not known of: no change, nothing to send.
		before := e.Version()
		if err := e.patchStatus("a", "4"); err != nil {
			t.Fatal(err)
		}
		if e.Version() != before {
			t.Errorf("a patch that changes nothing made a change")
		}
		if diff := cmp.Diff(map[string]int{"POD_STATUS": 1}, e.Status().Outbox.Waiting); diff != "" {
			t.Errorf("outbox: %s", diff)
		}

		e.restart()
		if got := e.pod("a").Status.Message; got != "4" {
			t.Errorf("after a restart: %q", got)
		}
		// The cloud's object changes meanwhile: the patch is laid over the new one.
		c.set(name, pod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }))
		c.mu.Lock()
		c.hold = true
		c.mu.Unlock()
		c.link()
		synctest.Wait()
		if got := e.pod("a"); got.Status.Message != "4" || got.Spec.Containers[0].Image != "other" {
			t.Errorf("rebased: %q, %q", got.Status.Message, got.Spec.Containers[0].Image)
		}
		c.release()
		synctest.Wait()
		if diff := cmp.Diff(map[string][]string{name.String(): {"4"}}, c.effects); diff != "" {
			t.Errorf("at the cloud: %s", diff)
		}
		if st := e.Status().Outbox; len(st.Waiting) != 0 || st.InFlight != 0 || st.Accepted != 1 {
			t.Errorf("outbox: %+v", st)
		}
		if got := e.pod("a"); got.Status.Message != "4" {
			t.Errorf("shown: %q", got.Status.Message)
		}
		e.restart()
		if got := e.pod("a"); got.Status.Message != "4" {
			t.Errorf("after a restart: %q", got.Status.Message)
		}
	})
}

func TestAPatchForAnotherPodOfThatNameIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		name := ref("pods", "default", "a")
		c.set(name, pod())
		c.link()
		e.holdPods()
		c.cut()
		synctest.Wait()
		if err := e.patchStatus("a", "old"); err != nil {
			t.Fatal(err)
		}
		c.delete(name)
		c.set(name, pod()) // another uid
		c.link()
		synctest.Wait()
		if got := e.pod("a").Status.Message; got != "" {
			t.Errorf("the new pod shows the old one's status: %q", got)
		}
		st := e.Status().Outbox
		if len(st.Waiting) != 0 || st.Refused != 1 {
			t.Errorf("outbox: %+v", st)
		}
		events, _, err := e.List(t.Context(), selection("events"), meta.ListOptions{})
		if err != nil || len(events) != 1 {
			t.Errorf("events: %v, %v; want one that tells of the refusal", events, err)
		}
	})
}

func TestADeletionHidesThePod(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		name := ref("pods", "default", "a")
		c.set(name, pod())
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), meta.WatchOptions{From: e.Version()})
		if err != nil {
			t.Fatal(err)
		}
		uid := e.pod("a").UID
		c.cut()
		synctest.Wait()
		body := fmt.Appendf(nil, `{"gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, uid)
		remove := meta.Write{Verb: "delete", Ref: name, Body: body, Caller: meta.Caller{Kubelet: true}}
		if _, err := e.Write(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Get(t.Context(), name, meta.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("Get: %v, want NotFound", err)
		}
		if _, err := e.Write(t.Context(), remove); !apierrors.IsNotFound(err) {
			t.Errorf("again: %v, want NotFound", err)
		}
		e.restart()
		if _, err := e.Get(t.Context(), name, meta.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("Get after a restart: %v, want NotFound", err)
		}
		c.link()
		synctest.Wait()
		if c.state(name) != nil {
			t.Errorf("the pod is still in the cloud")
		}
		if st := e.Status().Outbox; len(st.Waiting) != 0 || st.Accepted != 1 {
			t.Errorf("outbox: %+v", st)
		}
		if diff := cmp.Diff([]string{"DELETED a"}, collect(w)[:1]); diff != "" {
			t.Error(diff)
		}
	})
}

func TestObjectsThatPodsNeedTravelWithThem(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
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
			items, _, err := e.List(t.Context(), s, meta.ListOptions{FromReflector: true})
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
		e := newEdge(t, c, meta.Config{})
		c.set(ref("services", "default", "s"), &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}})
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), meta.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if _, _, err := e.List(t.Context(), selection("services"), meta.ListOptions{FromReflector: true}); err != nil {
			t.Fatal(err)
		}
		c.cut()
		time.Sleep(24 * time.Hour)
		if !e.Covered(selection("services")) {
			t.Errorf("dropped while off line")
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
		e := newEdge(t, c, meta.Config{})
		c.link()
		s := selection("secrets")
		if _, _, err := e.List(t.Context(), s, meta.ListOptions{FromReflector: true}); !apierrors.IsForbidden(err) {
			t.Errorf("List: %v, want Forbidden", err)
		}
		c.mu.Lock()
		forbidden = false
		c.publish()
		c.mu.Unlock()
		synctest.Wait()
		if _, _, err := e.List(t.Context(), s, meta.ListOptions{FromReflector: true}); err != nil {
			t.Errorf("List after it was granted: %v", err)
		}
	})
}

// A cloud that takes the rights of a node back by mistake must not end its pods.
func TestPodsOutliveARefusal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		for _, n := range []string{"a", "b"} {
			c.set(ref("pods", "default", n), pod())
		}
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), meta.WatchOptions{From: e.Version()})
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
			items, _, err := e.List(t.Context(), ownPods(), meta.ListOptions{FromReflector: true})
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
		c.delete(ref("pods", "default", "b")) // truly, while nobody may tell
		synctest.Wait()
		if items, _, err := e.List(t.Context(), ownPods(), meta.ListOptions{}); err != nil || len(items) != 2 {
			t.Errorf("%d pods, %v", len(items), err)
		}
		refuse(false)
		if items, _, err := e.List(t.Context(), ownPods(), meta.ListOptions{}); err != nil || len(items) != 1 {
			t.Errorf("granted again: %d pods, %v; want 1", len(items), err)
		}
	})
}

func TestNothingChangedNothingSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		for i := range 20 {
			c.set(ref("pods", "default", fmt.Sprint(i)), pod())
		}
		c.link()
		e.holdPods()
		c.mu.Lock()
		sent := c.sentObjects
		c.mu.Unlock()
		c.cut()
		e.restart()
		c.link()
		synctest.Wait()
		if c.sentObjects != sent || len(c.compared) > 0 {
			t.Errorf("%d objects sent again, compared %v", c.sentObjects-sent, c.compared)
		}
		c.cut()
		c.delete(ref("pods", "default", "3"))
		c.set(ref("pods", "default", "4"), pod())
		c.link()
		synctest.Wait()
		if c.sentObjects != sent+1 || len(c.compared) != 1 {
			t.Errorf("%d objects sent again, compared %v; want one of pods", c.sentObjects-sent, c.compared)
		}
		if _, err := e.Get(t.Context(), ref("pods", "default", "3"), meta.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("a pod that was deleted meanwhile: %v", err)
		}
	})
}

func TestLeaseStaysHere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		name := object.Ref{Namespace: "kube-node-lease", Name: "edge1"}
		name.Resource.Group, name.Resource.Version, name.Resource.Resource = "coordination.k8s.io", "v1", "leases"
		kubelet := meta.Caller{Kubelet: true}
		if _, err := e.Get(t.Context(), name, kubelet); !apierrors.IsNotFound(err) {
			t.Errorf("Get: %v", err)
		}
		body := func(version string) []byte {
			return fmt.Appendf(nil, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"edge1","namespace":"kube-node-lease",`+
				`"resourceVersion":%q},"spec":{"holderIdentity":"edge1","leaseDurationSeconds":40}}`, version)
		}
		if e.KubeletAlive() {
			t.Errorf("alive before it was")
		}
		r, err := e.Write(t.Context(), meta.Write{
			Verb: "create", Ref: object.Ref{Resource: name.Resource, Namespace: name.Namespace}, Body: body(""), Caller: kubelet,
		})
		if err != nil || r.Code != 201 {
			t.Fatal(r, err)
		}
		commits := e.store.Stats().Commits
		for range 10 {
			time.Sleep(10 * time.Second)
			if !e.KubeletAlive() {
				t.Fatalf("not alive")
			}
			r, err = e.Write(t.Context(), meta.Write{Verb: "update", Ref: name, Body: body(fmt.Sprint(r.Object.Version)), Caller: kubelet})
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := e.Write(t.Context(), meta.Write{Verb: "update", Ref: name, Body: body("5"), Caller: kubelet}); !apierrors.IsConflict(err) {
			t.Errorf("an old version: %v, want a conflict", err)
		}
		time.Sleep(41 * time.Second)
		if e.KubeletAlive() {
			t.Errorf("alive after its lease")
		}
		if n := e.store.Stats().Commits - commits; n != 0 {
			t.Errorf("%d commits: an idle edge writes nothing", n)
		}
	})
}

func TestTokensAreServedOffline(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		issued := 0
		c.answer = func(r *topicpb.APIRequest) *topicpb.APIResponse {
			issued++
			return &topicpb.APIResponse{Code: 201, ContentType: "application/json", Body: fmt.Appendf(nil, `{"status":{"token":"t%d"}}`, issued)}
		}
		c.set(ref("pods", "default", "a"), pod())
		c.link()
		e.holdPods()
		uid := e.pod("a").UID
		ask := func(audience string) (string, error) {
			body := fmt.Appendf(nil, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[%q],"expirationSeconds":3600,`+
				`"boundObjectRef":{"kind":"Pod","name":"a","uid":%q}}}`, audience, uid)
			r, err := e.Write(t.Context(), meta.Write{
				Verb: "create", Ref: ref("serviceaccounts", "default", "default"), Subresource: "token", Body: body,
				Path: "/api/v1/namespaces/default/serviceaccounts/default/token", Caller: meta.Caller{Kubelet: true},
			})
			if err != nil {
				return "", err
			}
			return string(r.Response.Body), nil
		}
		for want := 1; want <= 2; want++ {
			if got, err := ask("api"); err != nil || got != fmt.Sprintf(`{"status":{"token":"t%d"}}`, want) {
				t.Errorf("on line: %s, %v", got, err)
			}
		}
		c.cut()
		e.restart()
		time.Sleep(100 * 24 * time.Hour)
		if got, err := ask("api"); err != nil || got != `{"status":{"token":"t2"}}` {
			t.Errorf("off line: %s, %v", got, err)
		}
		if _, err := ask("other"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("off line, never asked before: %v", err)
		}
		// kube-apiserver away is like no link; a refusal is not.
		c.answer = func(*topicpb.APIRequest) *topicpb.APIResponse { return &topicpb.APIResponse{Code: 503} }
		c.link()
		synctest.Wait()
		if got, err := ask("api"); err != nil || got != `{"status":{"token":"t2"}}` {
			t.Errorf("kube-apiserver away: %s, %v", got, err)
		}
		c.answer = func(*topicpb.APIRequest) *topicpb.APIResponse {
			return &topicpb.APIResponse{Code: 403, Body: []byte("no")}
		}
		if got, err := ask("api"); err != nil || got != "no" {
			t.Errorf("refused: %s, %v", got, err)
		}
		c.delete(ref("pods", "default", "a"))
		synctest.Wait()
		if n := e.Status().Answers; n != 0 {
			t.Errorf("%d tokens are kept of a pod that is gone", n)
		}
	})
}

var _ = watch.Added

// A cloud that has forgotten what an edge holds sends what is newer, and says what the edge should hold then.
func TestWhatTheCloudExpects(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*cloud)
		sent      int
		surprised []string
	}{
		"it is right": {func(c *cloud) { c.set(ref("pods", "default", "4"), pod()); c.set(ref("pods", "default", "new"), pod()) }, 2, nil},
		"a pod that it does not know of": {
			func(c *cloud) { c.set(ref("pods", "default", "4"), pod()); c.delete(ref("pods", "default", "3")) }, 1, []string{"pods"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newCloud(t)
				c.guess = true
				e := newEdge(t, c, meta.Config{})
				for i := range 20 {
					c.set(ref("pods", "default", fmt.Sprint(i)), pod())
				}
				c.link()
				e.holdPods()
				c.cut()
				before := c.sentObjects
				test.meanwhile(c)
				e.restart()
				c.link()
				synctest.Wait()
				if c.sentObjects != before+test.sent || !slices.Equal(c.surprised, test.surprised) || len(c.compared) > 0 {
					t.Errorf("%d objects sent, surprised: %v, compared: %v; want %d, %v and none", c.sentObjects-before, c.surprised, c.compared, test.sent, test.surprised)
				}
				items, _, err := e.List(t.Context(), ownPods(), meta.ListOptions{FromReflector: true})
				if err != nil || len(items) != len(c.wanted()) {
					t.Errorf("%d pods, %v; want %d", len(items), err, len(c.wanted()))
				}
			})
		})
	}
}

// What a mistaken cloud calls synced is not: nobody is shown a set of which it isn't known that it is whole.
func TestAMistakenCloudSyncsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{Limits: meta.Limits{SyncWait: time.Second}})
		c.link()
		synctest.Wait()
		c.mu.Lock()
		c.quiet = true
		sequence := c.sequence
		c.mu.Unlock()
		services := selection("services")
		list := func() error {
			_, _, err := e.List(t.Context(), services, meta.ListOptions{FromReflector: true})
			return err
		}
		if err := list(); retryAfter(err) == 0 {
			t.Fatalf("a set that never came: %v", err)
		}
		resource := &topicpb.Resource{Version: "v1", Resource: "services"}
		say := func(count uint64, id uint64) {
			sequence++
			c.mu.Lock()
			c.down(topic.State.New(message.Resource{}, &topicpb.State{
				Sequence: sequence, Expected: []*topicpb.Digest{{Resource: resource, Count: count, Sum: make([]byte, 16)}}, Synced: []uint64{id},
			}))
			c.mu.Unlock()
			synctest.Wait()
		}
		var id uint64
		synctest.Wait()
		c.mu.Lock()
		for _, i := range c.interests {
			if i.Resource.GetResource() == "services" {
				id = i.Id
			}
		}
		c.mu.Unlock()
		say(1, id)
		if err := list(); retryAfter(err) == 0 {
			t.Errorf("a set of which something is missing: %v", err)
		}
		c.mu.Lock()
		if !slices.Equal(c.surprised, []string{"services"}) {
			t.Errorf("told of %v, want services", c.surprised)
		}
		c.mu.Unlock()
		say(0, id)
		if err := list(); err != nil {
			t.Errorf("a set that is as expected: %v", err)
		}
	})
}
