package route_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// api is an edge API with just the lists and watches that the agent needs: it keeps objects as a
// store does, over restarts of the agent.
type api struct {
	server *httptest.Server

	mu      sync.Mutex
	version int
	objects map[string]map[string]json.RawMessage // by resource and name
	history []change
	changed chan struct{}   // closed and replaced with each change
	unknown map[string]bool // resources that are answered with 503
}

type change struct {
	version  int
	resource string
	kind     string
	object   json.RawMessage
}

func newAPI(t testing.TB) *api {
	a := &api{objects: map[string]map[string]json.RawMessage{"staticroutes": {}, "nodes": {}, "servicecidrs": {}}, changed: make(chan struct{}), unknown: map[string]bool{}}
	a.server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.server.CloseClientConnections()
		a.server.Close()
	})
	return a
}

func (a *api) config() *rest.Config { return &rest.Config{Host: a.server.URL, QPS: -1} }

// put stores an object as a new version of itself.
func (a *api) put(t testing.TB, resource string, o metav1.Object) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	kind := "MODIFIED"
	if a.objects[resource][o.GetName()] == nil {
		kind = "ADDED"
	}
	a.objects[resource][o.GetName()] = raw
	a.note(change{a.version, resource, kind, raw})
}

func (a *api) remove(t testing.TB, resource, name string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	raw := a.objects[resource][name]
	if raw == nil {
		t.Fatalf("there is no %s %s", resource, name)
	}
	delete(a.objects[resource], name)
	a.version++
	a.note(change{a.version, resource, "DELETED", raw})
}

func (a *api) note(c change) {
	a.history = append(a.history, c)
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	a.mu.Lock()
	unknown := a.unknown[resource]
	a.mu.Unlock()
	if unknown {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503}`)
		return
	}
	if query.Get("watch") == "" {
		a.list(w, resource)
		return
	}
	if query.Get("sendInitialEvents") == "true" { // the reflector then lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	}
	since, _ := strconv.Atoi(query.Get("resourceVersion"))
	flusher, _ := w.(http.Flusher)
	flusher.Flush()
	for {
		a.mu.Lock()
		news, changed := a.history, a.changed
		a.mu.Unlock()
		for _, c := range news {
			if c.version > since && c.resource == resource {
				_ = json.NewEncoder(w).Encode(map[string]any{"type": c.kind, "object": c.object})
			}
		}
		if len(news) > 0 {
			since = max(since, news[len(news)-1].version)
		}
		flusher.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (a *api) list(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []json.RawMessage{}
	for _, o := range a.objects[resource] {
		items = append(items, o)
	}
	kinds := map[string][2]string{
		"staticroutes": {"skerry.io/v1alpha1", "StaticRouteList"}, "nodes": {"v1", "NodeList"}, "servicecidrs": {"networking.k8s.io/v1", "ServiceCIDRList"},
	}[resource]
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": kinds[0], "kind": kinds[1], "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

// unsync makes a resource unknown, as on a device that has never had it from the cloud; sync ends
// that.
func (a *api) unsync(resource string) { a.setUnknown(resource, true) }

func (a *api) sync(resource string) { a.setUnknown(resource, false) }

func (a *api) setUnknown(resource string, is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unknown[resource] = is
}

// services stores the range of Services.
func (a *api) services(t testing.TB, cidr string) {
	t.Helper()
	a.put(t, "servicecidrs", &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	})
}

// node stores this node's object with these labels.
func (a *api) node(t testing.TB, uid string, labels map[string]string) {
	t.Helper()
	a.put(t, "nodes", &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: types.UID(uid), Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
	})
}

// route stores a StaticRoute; one of the name is changed, and its generation grows.
func (a *api) route(t testing.TB, name string, spec v1alpha1.StaticRouteSpec, more ...func(*v1alpha1.StaticRoute)) {
	t.Helper()
	o := &v1alpha1.StaticRoute{
		TypeMeta:   metav1.TypeMeta{APIVersion: "skerry.io/v1alpha1", Kind: "StaticRoute"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name), Generation: 1, CreationTimestamp: metav1.Unix(1_000_000_000, 0)},
		Spec:       spec,
	}
	a.mu.Lock()
	if raw := a.objects["staticroutes"][name]; raw != nil {
		var old v1alpha1.StaticRoute
		if err := json.Unmarshal(raw, &old); err != nil {
			a.mu.Unlock()
			t.Fatal(err)
		}
		o.Generation, o.CreationTimestamp = old.Generation+1, old.CreationTimestamp
	}
	a.mu.Unlock()
	for _, f := range more {
		f(o)
	}
	a.put(t, "staticroutes", o)
}
