package relay_test

import (
	"bytes"
	"encoding/json"
	"net/url"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// A permitted request is never a watch, an upgrade, or a path that normalizes to another one.
func FuzzPermit(f *testing.F) {
	for _, seed := range [][4]string{
		{"GET", "/api/v1/nodes/edge1", "", ""}, {"POST", "/api/v1/namespaces/default/pods/x/exec", "command=sh", ""},
		{"GET", "/apis/apps/v1/deployments", "watch=true", ""}, {"GET", "/api/v1/%2e%2e/x", "a=%zz", "a.b.c"}, {"GET", "/openapi/v3/apis/apps/v1", "hash=1", ""},
		{"GET", "/api/v1/nodes/../secrets", "", ""}, {"GET", "/api/v1//secrets", "", ""}, {"GET", "/api/v1/nodes/a%2f..%2fb", "", ""}, {"GET", "/api/v1/nodes/a\x00b", "", ""},
		{"GET", "/api/v1/nodes/other/proxy/metrics", "", ""}, {"CONNECT", "/api/v1/namespaces/n/pods/p/portforward", "", ""}, {"GET", "/api/v1/pods", "watch=1&watch=true", ""},
		{"GET", "/api/v1/pods", "a;watch=true", ""}, {"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "", strings.Repeat("a.b", 100_000)},
		{"GET\r\nHost: x", "/api", "", "a\r\nImpersonate-User: system:admin"}, {"GET", "/" + strings.Repeat("a/", 30_000), "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, method, p, query, token string) {
		if relay.Permit(&topicpb.APIRequest{Method: method, Path: p, Query: query, BearerToken: token}) != nil {
			return
		}
		plain, err := url.PathUnescape(p)
		if err != nil || plain != path.Clean(plain) || strings.ContainsAny(plain, "?#\n\r") {
			t.Errorf("passed on: %q", p)
		}
		values, err := url.ParseQuery(query)
		if err != nil || values.Get("watch") == "true" || values.Get("watch") == "1" {
			t.Errorf("passed on: %q?%q", p, query)
		}
		if strings.HasSuffix(plain, "/exec") && strings.HasPrefix(plain, "/api/v1/namespaces/") && strings.Count(plain, "/") == 7 {
			t.Errorf("passed on: %q", p)
		}
	})
}

func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","uid":"u"},"count":3}`), "uid")
	f.Add([]byte(`{"metadata":null}`), "")
	f.Add([]byte(`[]`), "x")
	f.Add([]byte(`{"metadata":{"name":"another","namespace":"kube-system","uid":"u","uid":"v"},"metadata":{"name":"b"}}`), "u")
	f.Add([]byte(strings.Repeat(`{"metadata":`, 5000)+"1"+strings.Repeat("}", 5000)), "u\"\n$(reboot)")
	f.Add([]byte(`{"metadata":{"resourceVersion":"`+strings.Repeat("9", 64<<10)+`"},"count":1e400}`), "\x00")
	f.Fuzz(func(t *testing.T, body []byte, uid string) {
		relay.VersionOf(body)
		if uid == "" {
			return // as it came
		}
		if out, err := relay.WithPreconditions(body, uid, uid); err == nil && !json.Valid(out) {
			t.Errorf("it made %q of %q", out, body)
		}
	})
}

// Whatever an edge sends as an event, the result can be parsed and sets no field that is
// kube-apiserver's.
func FuzzEvents(f *testing.F) {
	kind := corev1.SchemeGroupVersion.WithKind("Event")
	seed, err := kube.ToProtobuf(kind, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "u", ResourceVersion: "7"}, Count: 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"metadata":{"name":"a","uid":"u"},"count":3}`))
	f.Add([]byte(`{"metadata":null}`))
	f.Add(append(bytes.Clone(seed), bytes.Repeat([]byte{0x0a, 0x00}, 50_000)...)) // empty elements
	f.Add(append([]byte("k8s\x00"), bytes.Repeat([]byte{0x12, 0x00}, 50_000)...))
	f.Add([]byte(`{"metadata":{"name":"a","namespace":"kube-system","managedFields":[` + strings.Repeat("{},", 20_000) + `{}]},"involvedObject":{"kind":"Node","name":"another"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		fresh, patch, err := relay.EventBodies(body)
		if err != nil {
			return
		}
		if !json.Valid(patch) {
			t.Errorf("the patch %q", patch)
		}
		var e corev1.Event
		if !kube.IsProtobuf(fresh) {
			if !json.Valid(fresh) {
				t.Errorf("passed on: %q", fresh)
			}
			return
		}
		if err := kube.FromProtobuf(fresh, kind, &e); err != nil || e.UID != "" || e.ResourceVersion != "" || len(e.ManagedFields) > 0 {
			t.Errorf("passed on: %v, %v", err, &e)
		}
	})
}
