package metamanager_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
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
		e := newEdge(t, c, metamanager.Config{})

		// Without a link, and never synced: 503 with Retry-After, never an empty list, however
		// it is asked for.
		for name, options := range map[string]metamanager.ListOptions{"kubectl": {}, "reflector": {FromReflector: true}, "held": {Held: true}} {
			items, _, err := e.List(t.Context(), ownPods(), options)
			if !apierrors.IsServiceUnavailable(err) || retryAfter(err) == 0 || items != nil {
				t.Errorf("%s: List = %v, %v; want 503 with Retry-After", name, items, err)
			}
		}
		if _, err := e.Get(t.Context(), ref("pods", "default", "a"), metamanager.Caller{Kubelet: true}); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Get: %v, want 503", err)
		}

		// A waiting request gets its answer when there is a link.
		done := make(chan error, 1)
		go func() {
			items, _, err := e.List(context.Background(), ownPods(), metamanager.ListOptions{FromReflector: true})
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

		// An object that is certainly absent is NotFound.
		if _, err := e.Get(t.Context(), ref("pods", "default", "b"), metamanager.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("Get of a pod that is not there: %v", err)
		}
		// A set that is not cached passes through with a link.
		if _, _, err := e.List(t.Context(), selection("services"), metamanager.ListOptions{}); !errors.Is(err, metamanager.ErrPassThrough) {
			t.Errorf("List of what is not held: %v", err)
		}
		if _, err := e.Get(t.Context(), ref("services", "default", "b"), metamanager.Caller{}); !errors.Is(err, metamanager.ErrPassThrough) {
			t.Errorf("Get of what is not held: %v", err)
		}
	})
}

func TestAPatchIsShownAtOnceAndReachesTheCloudOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
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
		// A patch without any effect: no change, no write.
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
		// The cloud's object changes in the meantime: the patch is laid over the new one.
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
		e := newEdge(t, c, metamanager.Config{})
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
		events, _, err := e.List(t.Context(), selection("events"), metamanager.ListOptions{})
		if err != nil || len(events) != 1 {
			t.Errorf("events: %v, %v; want one that reports the refusal", events, err)
		}
	})
}

func TestADeletionHidesThePod(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		name := ref("pods", "default", "a")
		c.set(name, pod())
		c.link()
		e.holdPods()
		w, err := e.Watch(t.Context(), ownPods(), metamanager.WatchOptions{From: e.Version()})
		if err != nil {
			t.Fatal(err)
		}
		uid := e.pod("a").UID
		c.cut()
		synctest.Wait()
		body := fmt.Appendf(nil, `{"gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, uid)
		remove := metamanager.Write{Verb: "delete", Ref: name, Body: body, Caller: metamanager.Caller{Kubelet: true}}
		if _, err := e.Write(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Get(t.Context(), name, metamanager.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("Get: %v, want NotFound", err)
		}
		if _, err := e.Write(t.Context(), remove); !apierrors.IsNotFound(err) {
			t.Errorf("again: %v, want NotFound", err)
		}
		e.restart()
		if _, err := e.Get(t.Context(), name, metamanager.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
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

func TestLeaseStaysHere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		name := object.Ref{Namespace: "kube-node-lease", Name: "edge1"}
		name.Resource.Group, name.Resource.Version, name.Resource.Resource = "coordination.k8s.io", "v1", "leases"
		kubelet := metamanager.Caller{Kubelet: true}
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
		r, err := e.Write(t.Context(), metamanager.Write{
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
			r, err = e.Write(t.Context(), metamanager.Write{Verb: "update", Ref: name, Body: body(fmt.Sprint(r.Object.Version)), Caller: kubelet})
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := e.Write(t.Context(), metamanager.Write{Verb: "update", Ref: name, Body: body("5"), Caller: kubelet}); !apierrors.IsConflict(err) {
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
		e := newEdge(t, c, metamanager.Config{})
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
			r, err := e.Write(t.Context(), metamanager.Write{
				Verb: "create", Ref: ref("serviceaccounts", "default", "default"), Subresource: "token", Body: body,
				Path: "/api/v1/namespaces/default/serviceaccounts/default/token", Caller: metamanager.Caller{Kubelet: true},
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
			t.Errorf("offline: %s, %v", got, err)
		}
		if _, err := ask("other"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("offline, never asked before: %v", err)
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
