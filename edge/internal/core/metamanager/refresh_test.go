package metamanager_test

import (
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

// TestIsland_Rule4: what is kept and near its end is asked for as soon as there is a link, before
// any client asks; the client that asks then gets that, once. What is young stays.
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
		if got := ask("short", 3600); got != "short-3" {
			t.Errorf("asked once more: %s", got)
		}
		// What was renewed and not asked for serves a link that is gone again.
		c.cut()
		time.Sleep(50 * time.Minute)
		c.link()
		synctest.Wait()
		c.cut()
		synctest.Wait()
		if got := ask("short", 3600); got != "short-4" {
			t.Errorf("offline again: %s", got)
		}
	})
}
