package metamanager_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// TestIsland_Rule4: a kept token near its expiry is renewed as soon as there is a link, before any
// client asks; the next client gets the renewed token, once. Recent tokens stay.
func TestIsland_Rule4_TokensAreRenewedAtLinkUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		var mu sync.Mutex
		issued := map[string]int{}
		c.answer = func(r *topicpb.APIRequest) *topicpb.APIResponse {
			var asked authenticationv1.TokenRequest
			if err := json.Unmarshal(r.Body, &asked); err != nil || r.Path != "/api/v1/namespaces/default/serviceaccounts/default/token" || r.Method != "POST" {
				t.Errorf("%s %s: %q, %v", r.Method, r.Path, r.Body, err)
			}
			mu.Lock()
			defer mu.Unlock()
			audience := asked.Spec.Audiences[0]
			issued[audience]++
			asked.Status.Token = fmt.Sprintf("%s-%d", audience, issued[audience])
			asked.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(*asked.Spec.ExpirationSeconds) * time.Second))
			body, err := json.Marshal(asked)
			if err != nil {
				t.Error(err)
			}
			return &topicpb.APIResponse{Code: 201, ContentType: "application/json", Body: body}
		}
		c.set(ref("pods", "default", "a"), pod())
		c.link()
		e.holdPods()
		uid := e.pod("a").UID
		ask := func(audience string, seconds int) string {
			t.Helper()
			r, err := e.Write(t.Context(), metamanager.Write{
				Verb: "create", Ref: ref("serviceaccounts", "default", "default"), Subresource: "token", ContentType: "application/json",
				Body: fmt.Appendf(nil, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[%q],"expirationSeconds":%d,`+
					`"boundObjectRef":{"kind":"Pod","name":"a","uid":%q}}}`, audience, seconds, uid),
				Path: "/api/v1/namespaces/default/serviceaccounts/default/token", Caller: metamanager.Caller{Kubelet: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got authenticationv1.TokenRequest
			if err := json.Unmarshal(r.Response.Body, &got); err != nil {
				t.Fatal(err)
			}
			return got.Status.Token
		}
		if a, b := ask("short", 3600), ask("long", 86400); a != "short-1" || b != "long-1" {
			t.Fatalf("%s, %s", a, b)
		}
		c.cut()
		e.restart()
		time.Sleep(50 * time.Minute)
		if got := ask("short", 3600); got != "short-1" {
			t.Errorf("offline: %s", got)
		}
		c.link()
		synctest.Wait()
		mu.Lock()
		now := maps.Clone(issued)
		mu.Unlock()
		if diff := cmp.Diff(map[string]int{"short": 2, "long": 1}, now); diff != "" {
			t.Errorf("asked for when the link came up (-want +got):\n%s", diff)
		}
		if got := ask("short", 3600); got != "short-2" || issued["short"] != 2 {
			t.Errorf("on line: %s, asked %d times", got, issued["short"])
		}
		if got := ask("short", 3600); got != "short-2" || issued["short"] != 2 {
			t.Errorf("a kubelet that comes back: %s, asked %d times", got, issued["short"])
		}
		// A renewed token that no client asked for is served after the link is lost.
		c.cut()
		time.Sleep(50 * time.Minute)
		c.link()
		synctest.Wait()
		c.cut()
		synctest.Wait()
		if got := ask("short", 3600); got != "short-3" {
			t.Errorf("offline again: %s", got)
		}
	})
}

// TestEveryday_17: kept tokens of a key that the cluster has replaced are renewed once it refuses
// one of them, or signs another; the kubelet, which is not sent tokens unasked, asks each minute,
// and the token that it gets then is requested once.
func TestEveryday_17_TokensOfAReplacedKeyAreRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		var mu sync.Mutex
		key, flips, issued := "old", false, map[string]int{}
		token := func(audience string) string {
			return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"kid":%q}`, key)) + "." + audience
		}
		c.answer = func(r *topicpb.APIRequest) *topicpb.APIResponse {
			mu.Lock()
			defer mu.Unlock()
			if r.BearerToken != "" {
				return &topicpb.APIResponse{Code: 401}
			}
			var asked authenticationv1.TokenRequest
			if err := json.Unmarshal(r.Body, &asked); err != nil {
				t.Error(err)
			}
			audience := asked.Spec.Audiences[0]
			issued[audience]++
			if flips {
				key += "'"
			}
			asked.Status.Token = token(audience)
			asked.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			body, err := json.Marshal(asked)
			if err != nil {
				t.Error(err)
			}
			return &topicpb.APIResponse{Code: 201, ContentType: "application/json", Body: body}
		}
		c.set(ref("pods", "default", "a"), pod())
		c.link()
		e.holdPods()
		uid := e.pod("a").UID
		pass := func(minutes int) { // in which the kubelet follows its pods
			t.Helper()
			for range minutes {
				time.Sleep(time.Minute)
				e.holdPods()
			}
		}
		ask := func(audience string) string {
			t.Helper()
			r, err := e.Write(t.Context(), metamanager.Write{
				Verb: "create", Ref: ref("serviceaccounts", "default", "default"), Subresource: "token", ContentType: "application/json",
				Body: fmt.Appendf(nil, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[%q],"expirationSeconds":3600,`+
					`"boundObjectRef":{"kind":"Pod","name":"a","uid":%q}}}`, audience, uid),
				Path: "/api/v1/namespaces/default/serviceaccounts/default/token", Caller: metamanager.Caller{Kubelet: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got authenticationv1.TokenRequest
			if err := json.Unmarshal(r.Response.Body, &got); err != nil {
				t.Fatal(err)
			}
			// When a kubelet asks again: a fifth of the token's life before its end.
			if left := time.Until(got.Status.ExpirationTimestamp.Time) - 12*time.Minute; left > time.Minute {
				t.Errorf("the kubelet comes back after %v", left)
			}
			return got.Status.Token
		}
		want := func(when string, counts map[string]int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(counts, issued); diff != "" {
				t.Errorf("%s: asked for (-want +got):\n%s", when, diff)
			}
		}
		old := map[string]string{"x": ask("x"), "y": ask("y")}
		want("at first", map[string]int{"x": 1, "y": 1})
		pass(20)
		if ask("x") != old["x"] || ask("y") != old["y"] {
			t.Error("a kubelet that comes back does not get the same")
		}
		want("with one key", map[string]int{"x": 1, "y": 1})
		c.cut()
		synctest.Wait()
		mu.Lock()
		key = "new"
		mu.Unlock()
		e.restart()
		if ask("x") != old["x"] {
			t.Error("without a link the kept token is gone")
		}
		c.link()
		want("when the link is there", map[string]int{"x": 1, "y": 1})
		refuse := func(bearer string) {
			t.Helper()
			if _, err := e.Request(t.Context(), &topicpb.APIRequest{Method: "GET", Path: "/api/v1/namespaces/default/configmaps/c", BearerToken: bearer}); err != nil {
				t.Fatal(err)
			}
		}
		refuse("one that is not kept")
		want("after a refusal of another token", map[string]int{"x": 1, "y": 1})
		refuse(old["y"])
		want("after a refusal", map[string]int{"x": 2, "y": 2})
		if x, y := ask("x"), ask("y"); x != token("x") || y != token("y") {
			t.Errorf("the kubelet gets %q and %q", x, y)
		}
		for range 5 { // whatever else is wrong with it
			refuse(token("y"))
			pass(1)
		}
		want("after more refusals", map[string]int{"x": 2, "y": 2})
		pass(10)
		refuse(token("y"))
		want("after one ten minutes later", map[string]int{"x": 2, "y": 3})

		// Replicas of kube-apiserver that change their keys one after the other.
		mu.Lock()
		flips = true
		before := issued["x"] + issued["y"]
		mu.Unlock()
		pass(10)
		refuse(token("y"))
		for range 10 {
			pass(1)
			ask("x")
			ask("y")
		}
		synctest.Wait()
		mu.Lock()
		if n := issued["x"] + issued["y"] - before; n > 60 {
			t.Errorf("%d tokens were asked for in ten minutes", n)
		}
		flips = false
		mu.Unlock()
		pass(10) // all of a single key again
		ask("x")
		ask("y")
		mu.Lock()
		key = "newest"
		clear(issued)
		mu.Unlock()
		pass(50)
		ask("x")
		want("after the key has signed another", map[string]int{"x": 1, "y": 1})
	})
}
