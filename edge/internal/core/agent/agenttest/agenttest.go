// Package agenttest fakes an agent's environment: the edge API, and the outbox that takes its
// reports.
//
// It owns an edge API in memory with lists and watches, which keeps its objects while agents come
// and go, and a collector of reports. It does not validate: agents send only valid requests. It
// opens no socket, so that it works inside a testing/synctest bubble. All methods may be called by
// many goroutines at once.
package agenttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// API is an edge API. Its objects stay until they are removed.
type API struct {
	mu       sync.Mutex
	version  int
	objects  map[string]map[string]stored // by resource and key
	history  []change
	changed  chan struct{}   // closed and replaced with each change
	unsynced map[string]bool // resources that are answered with 503
}

type stored struct {
	raw    json.RawMessage
	labels labels.Set
	fields fields.Set
}

type change struct {
	version  int
	resource string
	kind     string
	object   stored
}

// NewAPI returns an empty API.
func NewAPI() *API {
	return &API{objects: map[string]map[string]stored{}, changed: make(chan struct{}), unsynced: map[string]bool{}}
}

// Config returns a client configuration for the API.
func (a *API) Config() *rest.Config {
	return &rest.Config{Host: "http://edge", Transport: a, QPS: -1}
}

// Put stores an object, which has its TypeMeta set, as a new version of itself.
func (a *API) Put(t testing.TB, resource string, o metav1.Object) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Spec struct {
			NodeName string `json:"nodeName"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	item := stored{raw, o.GetLabels(), fields.Set{
		"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(), "spec.nodeName": spec.Spec.NodeName,
	}}
	key := keyOf(o.GetNamespace(), o.GetName())
	kind := "MODIFIED"
	if _, there := a.objects[resource][key]; !there {
		kind = "ADDED"
	}
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]stored{}
	}
	a.objects[resource][key] = item
	a.note(change{a.version, resource, kind, item})
}

// Get reads an object into o, and reports whether there is one.
func (a *API) Get(t testing.TB, resource, namespace, name string, o any) bool {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	item, there := a.objects[resource][keyOf(namespace, name)]
	if there {
		if err := json.Unmarshal(item.raw, o); err != nil {
			t.Fatal(err)
		}
	}
	return there
}

// Remove deletes an object.
func (a *API) Remove(t testing.TB, resource, namespace, name string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	key := keyOf(namespace, name)
	item, there := a.objects[resource][key]
	if !there {
		t.Fatalf("there is no %s %s", resource, key)
	}
	delete(a.objects[resource], key)
	a.version++
	a.note(change{a.version, resource, "DELETED", item})
}

// Unsync makes the API answer 503 for a resource, as on a device that has never had it from the
// cloud; Sync ends that.
func (a *API) Unsync(resource string) { a.setUnsynced(resource, true) }

// Sync makes a resource known.
func (a *API) Sync(resource string) { a.setUnsynced(resource, false) }

func (a *API) setUnsynced(resource string, is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unsynced[resource] = is
}

func keyOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func (a *API) note(c change) {
	a.history = append(a.history, c)
	close(a.changed)
	a.changed = make(chan struct{})
}

// query has the parameters of a list or a watch.
type query struct {
	resource  string
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (q query) matches(resource string, o stored) bool {
	return resource == q.resource && (q.namespace == "" || q.namespace == o.fields["metadata.namespace"]) &&
		q.labels.Matches(o.labels) && q.fields.Matches(o.fields)
}

// RoundTrip implements http.RoundTripper.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	q := query{resource: parts[len(parts)-1]}
	if i := slices.Index(parts, "namespaces"); i >= 0 && i+1 < len(parts) {
		q.namespace = parts[i+1]
	}
	var err error
	if q.labels, err = labels.Parse(r.URL.Query().Get("labelSelector")); err != nil {
		return nil, err
	}
	if q.fields, err = fields.ParseSelector(r.URL.Query().Get("fieldSelector")); err != nil {
		return nil, err
	}
	a.mu.Lock()
	unsynced := a.unsynced[q.resource]
	a.mu.Unlock()
	switch {
	case unsynced:
		return refuse(http.StatusServiceUnavailable, "ServiceUnavailable"), nil
	case r.URL.Query().Get("watch") == "":
		return a.list(q, parts)
	case r.URL.Query().Get("sendInitialEvents") == "true": // the reflector then lists
		return refuse(http.StatusUnprocessableEntity, "Invalid"), nil
	}
	since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		return nil, err
	}
	body := newStream()
	go a.watch(r.Context().Done(), body, q, since)
	return answer(http.StatusOK, body), nil
}

func answer(code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: body,
		Header: http.Header{"Content-Type": []string{"application/json"}},
	}
}

func refuse(code int, reason string) *http.Response {
	text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	return answer(code, io.NopCloser(strings.NewReader(text)))
}

func (a *API) list(q query, path []string) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []json.RawMessage{}
	for _, o := range a.objects[q.resource] {
		if q.matches(q.resource, o) {
			items = append(items, o.raw)
		}
	}
	group := path[1] // api/v1/..., apis/GROUP/VERSION/...
	if path[0] == "apis" {
		group += "/" + path[2]
	}
	raw, err := json.Marshal(map[string]any{
		"apiVersion": group, "kind": listKind(q.resource), "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)},
	})
	if err != nil {
		return nil, err
	}
	return answer(http.StatusOK, io.NopCloser(bytes.NewReader(raw))), nil
}

func listKind(resource string) string {
	return map[string]string{
		"nodes": "NodeList", "pods": "PodList", "services": "ServiceList", "configmaps": "ConfigMapList",
		"servicecidrs": "ServiceCIDRList", "staticroutes": "StaticRouteList", "virtualips": "VirtualIPList",
		"nodeoperations": "NodeOperationList", "servicecollections": "ServiceCollectionList", "ingresses": "IngressList", "endpointslices": "EndpointSliceList",
		"edgeapps": "EdgeAppList",
	}[resource]
}

func (a *API) watch(ended <-chan struct{}, to *stream, q query, since int) {
	for {
		a.mu.Lock()
		history, changed := a.history, a.changed
		a.mu.Unlock()
		for _, c := range history {
			if c.version > since && q.matches(c.resource, c.object) {
				to.write(map[string]any{"type": c.kind, "object": c.object.raw})
			}
		}
		if len(history) > 0 {
			since = max(since, history[len(history)-1].version)
		}
		select {
		case <-changed:
		case <-to.closed:
			return
		case <-ended:
			to.end()
			return
		}
	}
}

// stream is the body of a watch. It is bounded by the objects that a test puts into the API.
type stream struct {
	closed chan struct{}
	close  func()

	mu     sync.Mutex
	buffer bytes.Buffer
	ended  bool
	more   *sync.Cond
}

func newStream() *stream {
	s := &stream{closed: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	s.close = sync.OnceFunc(func() { close(s.closed) })
	return s
}

func (s *stream) write(event any) {
	raw, err := json.Marshal(event)
	if err != nil {
		panic(err) // stored bytes are from json.Marshal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buffer.Write(append(raw, '\n'))
	s.more.Broadcast()
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.more.Broadcast()
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.buffer.Len() == 0 && !s.ended {
		s.more.Wait()
	}
	if s.buffer.Len() == 0 {
		return 0, io.EOF
	}
	return s.buffer.Read(p)
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.close()
	s.end()
	return nil
}

// Report is one report of an agent.
type Report struct {
	Resource, Name string
	UID            types.UID
	Body           string
}
