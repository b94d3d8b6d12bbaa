package app_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// allowing is a metamanager with a link to a kube-apiserver that allows everything.
type allowing struct{ *metamanager.Manager }

func (allowing) Covered(object.Selection) bool { return true }

func (allowing) List(context.Context, object.Selection, metamanager.ListOptions) ([]object.Object, uint64, error) {
	return nil, 1, nil
}

func (allowing) Request(_ context.Context, r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	var answer any
	switch {
	case strings.HasSuffix(r.GetPath(), "selfsubjectaccessreviews"):
		answer = &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
	case r.GetPath() == "/openid/v1/jwks":
		answer = map[string]any{"keys": []any{map[string]any{"kty": "RSA", "kid": "k", "n": "AQAB", "e": "AQAB"}}}
	default:
		answer = &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, APIResources: []metav1.APIResource{{Name: "things", Kind: "Thing"}}}
	}
	body, err := json.Marshal(answer)
	return &topicpb.APIResponse{Code: http.StatusOK, ContentType: "application/json", Body: body}, err
}

// All data that a device has learnt of its cluster is removed by `edgecore reset`: permissions and
// keys of service accounts, the kinds of resources, the authority of its API.
func TestResetLeavesNothing(t *testing.T) {
	cfg := edgeconfig.Default()
	cfg.DataDir = t.TempDir()
	cfg.Modules.Edged.RootDir = t.TempDir()
	pki := filepath.Join(cfg.Modules.Edged.RootDir, "pki")
	if err := os.Mkdir(pki, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet-server-2026-01-02-03-04-05.pem", "kubelet-server-current.pem", "kubelet.crt", "kubelet.key"} { // as upstream names them
		if err := os.WriteFile(filepath.Join(pki, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := store.Open(t.Context(), store.Config{Path: filepath.Join(cfg.DataDir, "store.db"), KeyFile: filepath.Join(cfg.DataDir, "store.key")})
	if err != nil {
		t.Fatal(err)
	}
	backend := allowing{metamanager.New(metamanager.Config{NodeName: "edge1", Store: file})}
	server := edgeapi.New(edgeapi.Config{
		NodeName: "edge1", Backend: backend, State: file.Module(string(edgeapi.Name)), DataDir: cfg.DataDir, Listen: "127.0.0.1:0",
	})
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- server.Serve(ctx, func() { close(ready) }) }()
	<-ready
	// A pod's request, whose permission is remembered; a resource whose kind is.
	const token = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ." + // {"alg":"RS256","kid":"k"}
		"eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6ZGVmYXVsdDphcHAifQ.AAAA" // {"sub":"system:serviceaccount:default:app"}
	client, err := kubernetes.NewForConfig(server.ClientConfig(edgeapi.Identity{Token: token}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: labels.Everything().String()}); err != nil {
		t.Fatal(err)
	}
	things := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	if err := client.CoreV1().RESTClient().Get().AbsPath("/apis/" + things.Group + "/" + things.Version + "/things").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"authority", "grants", "discovery"} {
		if state, err := file.Module(string(edgeapi.Name)).Load(key); err != nil || len(state) == 0 {
			t.Errorf("%s is not kept: %d bytes, %v", key, len(state), err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}

	for _, pattern := range app.OwnFiles(cfg) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, dir := range []string{cfg.DataDir, pki} {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 0 {
			t.Errorf("left behind in %s: %v, %v", dir, slices.Collect(names(left)), err)
		}
	}
}

func names(entries []fs.DirEntry) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, e := range entries {
			if !yield(e.Name()) {
				return
			}
		}
	}
}
