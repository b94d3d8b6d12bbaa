package edgeapi_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

const node = "edge1"

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "17", Labels: map[string]string{"app": name},
		},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "registry.example/c:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.7", PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "18"},
		Data:       map[string]string{"key": "value of " + name},
	}
}

func route(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "Route",
		"metadata": map[string]any{"name": name, "uid": "uid-" + name, "resourceVersion": "19"},
		"spec":     map[string]any{"destination": "10.1.0.0/16"},
	}}
}

// reach are the ways to the API, each of which must behave alike.
func reach(t *testing.T, s *edgeapi.Server, identity edgeapi.Identity) map[string]*rest.Config {
	server := httptest.NewServer(s.Handler(func(*http.Request) (edgeapi.Identity, error) { return identity, nil }))
	t.Cleanup(server.Close)
	inProcess := s.ClientConfig(identity)
	json := rest.CopyConfig(inProcess)
	json.ContentType, json.AcceptContentTypes = runtime.ContentTypeJSON, ""
	overHTTP := rest.CopyConfig(inProcess)
	overHTTP.Host, overHTTP.Transport = server.URL, nil
	overHTTPJSON := rest.CopyConfig(json)
	overHTTPJSON.Host, overHTTPJSON.Transport = server.URL, nil
	return map[string]*rest.Config{"in process, protobuf": inProcess, "in process, JSON": json, "HTTP, protobuf": overHTTP, "HTTP, JSON": overHTTPJSON}
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReadsOfAnOrdinaryClient(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods, "spec.nodeName="+node)
	b.set(pods, pod("a"))
	b.set(pods, pod("b", func(p *corev1.Pod) { p.Namespace = "other" }))
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	for name, config := range reach(t, s, edgeapi.Identity{Kubelet: true}) {
		t.Run(name, func(t *testing.T) {
			c := client(t, config)
			got, err := c.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := pod("a", func(p *corev1.Pod) { p.ResourceVersion = version(first + 1); p.TypeMeta = metav1.TypeMeta{} })
			got.TypeMeta = metav1.TypeMeta{} // protobuf's clients drop it, JSON's keep it
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}

			list, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node, ResourceVersion: "0"})
			if err != nil {
				t.Fatal(err)
			}
			if list.ResourceVersion != version(first+2) || len(list.Items) != 2 {
				t.Errorf("list has version %s and %d items, want %d and 2", list.ResourceVersion, len(list.Items), first+2)
			}
			byLabel, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node, LabelSelector: "app=b"})
			if err != nil || len(byLabel.Items) != 1 || byLabel.Items[0].Name != "b" {
				t.Errorf("by label: %v, %v", byLabel, err)
			}
			if _, err := c.CoreV1().Pods("default").Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("a pod that isn't there: %v, want NotFound", err)
			}
		})
	}
}

func TestListVersions(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	config := s.ClientConfig(edgeapi.Identity{})
	config.Transport = noRetries{s.RoundTripper(edgeapi.Identity{})}
	c := client(t, config)
	now := version(b.Version())
	tests := map[string]struct {
		options metav1.ListOptions
		want    func(error) bool
	}{
		"any":                {metav1.ListOptions{ResourceVersion: "0"}, nil},
		"newest":             {metav1.ListOptions{}, nil},
		"not older than now": {metav1.ListOptions{ResourceVersion: now, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, nil},
		"not older, without": {metav1.ListOptions{ResourceVersion: version(first)}, nil},
		"exactly now":        {metav1.ListOptions{ResourceVersion: now, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, nil},
		"exactly before":     {metav1.ListOptions{ResourceVersion: version(first), ResourceVersionMatch: "Exact"}, apierrors.IsResourceExpired},
		"the cloud's":        {metav1.ListOptions{ResourceVersion: "17"}, apierrors.IsResourceExpired},
		"the future":         {metav1.ListOptions{ResourceVersion: version(first + 1000)}, apierrors.IsTimeout},
		"no number":          {metav1.ListOptions{ResourceVersion: "now"}, apierrors.IsBadRequest},
		"a limit":            {metav1.ListOptions{Limit: 1, ResourceVersion: "0"}, nil},
		"match without":      {metav1.ListOptions{ResourceVersionMatch: metav1.ResourceVersionMatchExact}, apierrors.IsInvalid},
		"an unknown field":   {metav1.ListOptions{FieldSelector: "spec.colour=red", ResourceVersion: "0"}, apierrors.IsBadRequest},
		"a bad selector":     {metav1.ListOptions{LabelSelector: "a in (", ResourceVersion: "0"}, apierrors.IsBadRequest},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := c.CoreV1().Pods("").List(t.Context(), test.options)
			if test.want == nil && err != nil || test.want != nil && !test.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestNeverEmpty tries every request for a set that has not been synced: the client is told to
// retry.
func TestNeverEmpty(t *testing.T) {
	ways := map[string]func(context.Context, kubernetes.Interface) error{
		"list": func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			return err
		},
		"list of a reflector": func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName=" + node})
			return err
		},
		"get": func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods("default").Get(ctx, "a", metav1.GetOptions{})
			return err
		},
		"watch": func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
			return err
		},
		"watch with a first set": func(ctx context.Context, c kubernetes.Interface) error {
			yes := true
			_, err := c.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{
				SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			})
			return err
		},
		"list of another group": func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.StorageV1().CSIDrivers().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			return err
		},
	}
	for _, identity := range []edgeapi.Identity{{}, {Kubelet: true}, {Device: true}} {
		b := newFakeBackend(t)
		b.setLinked(false)
		s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
		for way, ask := range ways {
			config := s.ClientConfig(identity)
			config.Transport = noRetries{s.RoundTripper(identity)}
			err := ask(t.Context(), client(t, config))
			if !apierrors.IsServiceUnavailable(err) {
				t.Errorf("%s as %+v: %v, want ServiceUnavailable", way, identity, err)
			}
			if after, ok := apierrors.SuggestsClientDelay(err); !ok || after < 1 {
				t.Errorf("%s as %+v: no Retry-After", way, identity)
			}
		}
	}
}

// noRetries removes the header that makes client-go wait before it returns the error.
type noRetries struct{ http.RoundTripper }

func (rt noRetries) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := rt.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Header.Del("Retry-After")
	}
	return response, err
}

func TestWatch(t *testing.T) {
	for name := range reach(t, edgeapi.New(edgeapi.Config{Backend: newFakeBackend(t)}), edgeapi.Identity{}) {
		t.Run(name, func(t *testing.T) {
			b := newFakeBackend(t)
			b.sync(pods)
			b.set(pods, pod("a"))
			s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
			c := client(t, reach(t, s, edgeapi.Identity{Kubelet: true})[name])

			w, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first), LabelSelector: "app in (a,b)"})
			if err != nil {
				t.Fatal(err)
			}
			b.set(pods, pod("b"))
			b.set(pods, pod("c"))
			b.set(pods, pod("a", func(p *corev1.Pod) { p.Labels["app"] = "z" })) // no longer selected
			b.remove(object.Ref{Resource: pods, Namespace: "default", Name: "b"})
			want := []string{"ADDED a " + version(first+1), "ADDED b " + version(first+2), "DELETED a " + version(first+4), "DELETED b " + version(first+5)}
			if diff := cmp.Diff(want, take(t, w, len(want))); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}

			b.expire()
			e := <-w.ResultChan()
			if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) {
				t.Errorf("a slow watch ends with %v %v, want Expired", e.Type, e.Object)
			}
			w.Stop()
			_, err = c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first + 1)})
			if !apierrors.IsResourceExpired(err) {
				t.Errorf("a watch from before the history: %v, want Expired", err)
			}
			_, err = c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "17"})
			if !apierrors.IsResourceExpired(err) {
				t.Errorf("a watch from a version of the cloud: %v, want Expired", err)
			}

			yes := true
			w, err = c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{
				SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			})
			if err != nil {
				t.Fatal(err)
			}
			want = []string{"ADDED a " + version(first+4), "ADDED c " + version(first+3), "BOOKMARK end " + version(first+6)}
			if diff := cmp.Diff(want, take(t, w, len(want))); diff != "" {
				t.Errorf("first set (-want +got):\n%s", diff)
			}
			w.Stop()
		})
	}
}

func take(t *testing.T, w watch.Interface, n int) []string {
	t.Helper()
	var got []string
	for range n {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("the watch ended after %v", got)
			}
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("event %v %v after %v", e.Type, e.Object, got)
			}
			name := p.Name
			if p.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				name = "end"
			}
			got = append(got, string(e.Type)+" "+name+" "+p.ResourceVersion)
		case <-t.Context().Done():
			t.Fatalf("only %v", got)
		}
	}
	return got
}

// TestWatchEnds closes watches in each way a client can, and looks that the backend's end too.
func TestWatchEnds(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	for name, config := range reach(t, s, edgeapi.Identity{}) {
		t.Run(name, func(t *testing.T) {
			c := client(t, config)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := c.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: version(first)})
			if err != nil {
				t.Fatal(err)
			}
			stopped, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first)})
			if err != nil {
				t.Fatal(err)
			}
			one := int64(1)
			ends, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first), TimeoutSeconds: &one})
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			stopped.Stop()
			for range ends.ResultChan() {
			}
			poll.True(t, "the backend's watches end", func() bool { return b.watching() == 0 })
		})
	}
}

func TestReflector(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		t.Run(map[bool]string{true: "watch list", false: "list and watch"}[watchList], func(t *testing.T) {
			b := newFakeBackend(t)
			b.set(configMaps, configMap("a"))
			s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
			c := client(t, s.ClientConfig(edgeapi.Identity{Kubelet: true}))
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			lw := &cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
					return c.CoreV1().ConfigMaps("default").List(ctx, o)
				},
				WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
					return c.CoreV1().ConfigMaps("default").Watch(ctx, o)
				},
			}
			var watcher cache.ListerWatcher = lw
			if !watchList {
				watcher = plain{lw}
			}
			r := cache.NewReflectorWithOptions(watcher, &corev1.ConfigMap{}, store, cache.ReflectorOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.RunWithContext(ctx)
			}()
			poll.True(t, "the first set", func() bool { return len(store.List()) == 1 })
			b.set(configMaps, configMap("b"))
			poll.True(t, "a change", func() bool { return len(store.List()) == 2 })
			b.expire()
			b.remove(object.Ref{Resource: configMaps, Namespace: "default", Name: "a"})
			poll.True(t, "the set after an expired watch", func() bool { return slices.Equal(store.ListKeys(), []string{"default/b"}) })
			cancel()
			<-done
			poll.True(t, "the backend's watches end", func() bool { return b.watching() == 0 })
		})
	}
}

// plain is a ListerWatcher without support for watch lists.
type plain struct{ *cache.ListWatch }

func (plain) IsWatchListSemanticsUnSupported() bool { return true }

func TestPartialMetadata(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	for name, config := range reach(t, s, edgeapi.Identity{}) {
		t.Run(name, func(t *testing.T) {
			c, err := metadata.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			one, err := c.Resource(pods).Namespace("default").Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil || one.UID != "uid-a" {
				t.Errorf("got %v, %v", one, err)
			}
			list, err := c.Resource(pods).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 || list.Items[0].Labels["app"] != "a" {
				t.Errorf("got %v, %v", list, err)
			}
			w, err := c.Resource(pods).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first)})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*metav1.PartialObjectMetadata).Name != "a" {
				t.Errorf("got %v", e)
			}
		})
	}
}

func TestCustomResource(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(routes)
	b.set(routes, route("a"))
	b.apiserver = func(r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
		if r.GetPath() != "/apis/skerry.io/v1alpha1" {
			return nil, errors.New("unexpected request for " + r.GetPath())
		}
		return &topicpb.APIResponse{Code: http.StatusOK, ContentType: "application/json", Body: []byte(
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"skerry.io/v1alpha1",` +
				`"resources":[{"name":"routes","kind":"Route","namespaced":false,"verbs":["list"]}]}`,
		)}, nil
	}
	file, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "store.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, linked := range []bool{true, false} { // without a link the kind is known from the time with one
		b.setLinked(linked)
		s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, State: file.Module("edgeapi")})
		c, err := dynamic.NewForConfig(s.ClientConfig(edgeapi.Identity{}))
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.Resource(routes).List(t.Context(), metav1.ListOptions{})
		if err != nil || list.GetKind() != "RouteList" || len(list.Items) != 1 || list.Items[0].GetResourceVersion() != version(first+1) {
			t.Fatalf("linked %v: %v, %v", linked, list, err)
		}
		none, err := c.Resource(routes).List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
		if err != nil || none.GetKind() != "RouteList" || len(none.Items) != 0 {
			t.Fatalf("linked %v: %v, %v", linked, none, err)
		}
		yes := true
		w, err := c.Resource(routes).Watch(t.Context(), metav1.ListOptions{
			SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []watch.EventType{watch.Added, watch.Bookmark} {
			e := <-w.ResultChan()
			u, ok := e.Object.(*unstructured.Unstructured)
			if e.Type != want || !ok || u.GetKind() != "Route" {
				t.Errorf("linked %v: %v %v, want %s", linked, e.Type, e.Object, want)
			}
		}
		w.Stop()
	}
}
