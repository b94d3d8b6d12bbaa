package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// ---- kube-apiserver ----

// apiserver keeps objects by path, as JSON, with versions and preconditions, and fails on request.
type apiserver struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	version int
	calls   []string                                                       // "node METHOD path"
	fail    func(as kube.Identity, r kube.Request) (*kube.Response, error) // nil, nil: no failure
	delay   func(r kube.Request) time.Duration
	busy    int
	most    int
	made    func(path string) // called for each create, in order
	listers []any             // the sessions that read all Leases
}

// sessionOf is the key of a context's session.
type sessionOf struct{}

func newAPIServer() *apiserver { return &apiserver{objects: map[string]map[string]any{}, version: 1} }

func status(code int, reason metav1.StatusReason, text string) *kube.Response {
	b, _ := json.Marshal(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: text,
	})
	return &kube.Response{Code: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: b}
}

func (a *apiserver) Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error) {
	a.mu.Lock()
	who := string(as.Node)
	if as.Token != "" {
		who = "token"
	}
	a.calls = append(a.calls, who+" "+r.Method+" "+r.Path)
	a.busy++
	a.most = max(a.most, a.busy)
	delay, fail := a.delay, a.fail
	var all *kube.Response // as they were when the request came
	if r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/leases") {
		a.listers = append(a.listers, ctx.Value(sessionOf{}))
		all = a.serve(r)
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.busy--
		a.mu.Unlock()
	}()
	if delay != nil {
		select {
		case <-time.After(delay(r)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		if resp, err := fail(as, r); resp != nil || err != nil {
			return resp, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	resp := all
	if resp == nil {
		resp = a.serve(r)
	}
	switch {
	case strings.HasPrefix(r.Accept, kube.Protobuf+";as=PartialObjectMetadata;"):
		return asProtobuf(resp, metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"), &metav1.PartialObjectMetadata{})
	case strings.HasPrefix(r.Accept, kube.Protobuf) && strings.HasSuffix(r.Path, "/leases") && r.Method == http.MethodGet:
		return asProtobuf(resp, coordinationv1.SchemeGroupVersion.WithKind("LeaseList"), &coordinationv1.LeaseList{})
	case strings.HasPrefix(r.Accept, kube.Protobuf) && strings.Contains(r.Path, "/leases"):
		return asProtobuf(resp, leaseKind, &coordinationv1.Lease{})
	}
	return resp, nil
}

var leaseKind = coordinationv1.SchemeGroupVersion.WithKind("Lease")

type encoded interface{ Marshal() ([]byte, error) }

// asProtobuf is an answer for a client that accepts protobuf: a failure, or an object of that kind.
func asProtobuf(r *kube.Response, kind schema.GroupVersionKind, o encoded) (*kube.Response, error) {
	if r.Err() != nil || strings.Contains(string(r.Body), `"kind":"Status"`) {
		o, kind = &metav1.Status{}, schema.GroupVersionKind{Version: "v1", Kind: "Status"}
	}
	if err := json.Unmarshal(r.Body, o); err != nil {
		return nil, err
	}
	body, err := kube.ToProtobuf(kind, o)
	return &kube.Response{Code: r.Code, Header: http.Header{"Content-Type": {kube.Protobuf}}, Body: body}, err
}

func (a *apiserver) serve(r kube.Request) *kube.Response {
	var body map[string]any
	if len(r.Body) > 0 {
		text := r.Body
		if r.ContentType == kube.Protobuf {
			var o interface{ Unmarshal([]byte) error } = &corev1.Event{}
			kind := corev1.SchemeGroupVersion.WithKind("Event")
			if strings.Contains(r.Path, "/leases") {
				o, kind = &coordinationv1.Lease{}, leaseKind
			}
			err := kube.FromProtobuf(text, kind, o)
			if err == nil {
				text, err = json.Marshal(o)
			}
			if err != nil {
				return status(400, metav1.StatusReasonBadRequest, err.Error())
			}
		}
		if err := json.Unmarshal(text, &body); err != nil {
			return status(400, metav1.StatusReasonBadRequest, err.Error())
		}
	}
	meta := func(o map[string]any) map[string]any { m, _ := o["metadata"].(map[string]any); return m }
	path := r.Path
	if r.Method == http.MethodPost {
		name, _ := meta(body)["name"].(string)
		path += "/" + name
	}
	have := a.objects[strings.TrimSuffix(path, "/status")]
	switch r.Method {
	case http.MethodPost:
		if have != nil {
			return status(409, metav1.StatusReasonAlreadyExists, path+" already exists")
		}
		meta(body)["uid"] = "uid-" + path
		if a.made != nil {
			a.made(path)
		}
		return a.store(path, body, 201)
	case http.MethodGet:
		if strings.HasSuffix(path, "/leases") {
			items := []map[string]any{}
			for of, o := range a.objects {
				if strings.HasPrefix(of, path+"/") {
					items = append(items, o)
				}
			}
			return answer(200, map[string]any{"items": items})
		}
		if have == nil {
			return status(404, metav1.StatusReasonNotFound, path+" not found")
		}
		return answer(200, have)
	case http.MethodPut:
		if have == nil {
			return status(404, metav1.StatusReasonNotFound, path+" not found")
		}
		if v := meta(body)["resourceVersion"]; v != nil && v != meta(have)["resourceVersion"] {
			return status(409, metav1.StatusReasonConflict, "the object has been modified")
		}
		return a.store(path, body, 200)
	case http.MethodPatch:
		path = strings.TrimSuffix(path, "/status")
		if have == nil {
			return status(404, metav1.StatusReasonNotFound, path+" not found")
		}
		if uid := meta(body)["uid"]; uid != nil && uid != meta(have)["uid"] {
			return status(409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: x, UID in object meta: y")
		}
		if v := meta(body)["resourceVersion"]; v != nil && v != meta(have)["resourceVersion"] {
			return status(409, metav1.StatusReasonConflict, "the object has been modified")
		}
		if len(body) == 0 {
			return answer(200, have) // no change
		}
		merged := map[string]any{}
		for k, v := range have {
			merged[k] = v
		}
		for k, v := range body {
			if k != "metadata" {
				merged[k] = v
			}
		}
		return a.store(path, merged, 200)
	case http.MethodDelete:
		if have == nil {
			return status(404, metav1.StatusReasonNotFound, path+" not found")
		}
		if p, ok := body["preconditions"].(map[string]any); ok && p["uid"] != meta(have)["uid"] {
			return status(409, metav1.StatusReasonConflict, "the UID in the precondition (x) does not match the UID in record (y)")
		} else if ok && p["resourceVersion"] != nil && p["resourceVersion"] != meta(have)["resourceVersion"] {
			return status(409, metav1.StatusReasonConflict, "the ResourceVersion in the precondition (x) does not match the ResourceVersion in record (y)")
		}
		delete(a.objects, path)
		return answer(200, map[string]any{"kind": "Status", "status": "Success"})
	}
	return status(405, metav1.StatusReasonMethodNotAllowed, r.Method)
}

func (a *apiserver) store(path string, o map[string]any, code int) *kube.Response {
	a.version++
	m, _ := o["metadata"].(map[string]any)
	copied := map[string]any{}
	for k, v := range m {
		copied[k] = v
	}
	copied["resourceVersion"] = strconv.Itoa(a.version)
	stored := map[string]any{}
	for k, v := range o {
		stored[k] = v
	}
	stored["metadata"] = copied
	a.objects[path] = stored
	return answer(code, stored)
}

func answer(code int, o map[string]any) *kube.Response {
	b, _ := json.Marshal(o)
	return &kube.Response{Code: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: b}
}

func (a *apiserver) get(path string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects[path]
}

func (a *apiserver) count(call string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if c == call {
			n++
		}
	}
	return n
}

// ---- the edge ----

type edge struct {
	hubtest.Session
	t      *testing.T
	mux    *message.Mux
	cancel context.CancelFunc
	ended  chan error

	mu      sync.Mutex
	results []*topicpb.WriteResult
	answers map[message.ID]*topicpb.APIResponse
}

func (e *edge) Send(_ context.Context, m message.Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch c := m.Content.(type) {
	case *topicpb.WriteResult:
		e.results = append(e.results, c)
	case *topicpb.APIResponse:
		e.answers[m.Header.ParentID] = c
	default:
		e.t.Errorf("unexpected %T", m.Content)
	}
	return nil
}

// stores are the collections of the test.
type stores struct{ pods *kube.Store }

func (s stores) Open(schema.GroupVersionResource) (*kube.Store, func()) { return s.pods, func() {} }

type system struct {
	t         *testing.T
	api       *apiserver
	pods      *kube.Store
	relay     *relay.Relay
	keepalive time.Duration // of the edges to come; 0: 10 s
}

func newSystem(t *testing.T) *system {
	w := &system{t: t, api: newAPIServer(), pods: kube.NewStore(kube.Pods)}
	if err := w.pods.Replace(nil); err != nil {
		t.Fatal(err)
	}
	index := relay.NewPods(stores{w.pods})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = index.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	w.relay = relay.New(w.api, index, "cloudcore-1")
	return w
}

func (w *system) connect(node types.NodeName, epoch uint64) *edge {
	e := w.open(node, epoch)
	synctest.Wait()
	return e
}

func (w *system) open(node types.NodeName, epoch uint64) *edge {
	return w.openWith(context.WithValue(w.t.Context(), sessionOf{}, node), node, epoch)
}

func (w *system) openWith(parent context.Context, node types.NodeName, epoch uint64) *edge {
	e := &edge{Session: hubtest.Session{Name: node, Number: epoch, Every: w.keepalive}, t: w.t, mux: message.NewMux(), answers: map[message.ID]*topicpb.APIResponse{}, ended: make(chan error, 1)}
	service := w.relay.Attach(e, e.mux)
	ctx, cancel := context.WithCancel(parent)
	e.cancel = cancel
	go func() { e.ended <- cloudhub.Serve(ctx, service) }()
	w.t.Cleanup(cancel)
	return e
}

func (w *system) addPod(name, node, uid string) {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: node}}
	if err := w.pods.Put(p); err != nil {
		w.t.Fatal(err)
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.api.objects["/api/v1/namespaces/default/pods/"+name] = map[string]any{"metadata": map[string]any{"name": name, "uid": uid, "resourceVersion": "1"}}
}

func (e *edge) send(m message.Message) {
	e.t.Helper()
	if err := e.mux.Dispatch(e.t.Context(), m); err != nil {
		e.t.Fatal(err)
	}
}

func (e *edge) takeResults() (out []string) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.results {
		if r.Accepted {
			out = append(out, fmt.Sprintf("%d accepted", r.Id))
			continue
		}
		var s metav1.Status
		if err := json.Unmarshal(r.Status, &s); err != nil {
			e.t.Errorf("status of %d: %v", r.Id, err)
		}
		out = append(out, fmt.Sprintf("%d %s", r.Id, s.Reason))
	}
	e.results = nil
	return out
}

func event(id uint64, verb topicpb.Verb, name string, about corev1.ObjectReference, count int) *topicpb.Write {
	e := &corev1.Event{
		TypeMeta:   metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "7", UID: "local"}, InvolvedObject: about, Count: int32(count),
		Source: corev1.EventSource{Component: "kubelet", Host: "edge1"},
	}
	b, _ := json.Marshal(e)
	return &topicpb.Write{
		Id: id, Verb: verb, Resource: &topicpb.Resource{Version: "v1", Resource: "events"}, Namespace: "default", Name: name, PatchType: string(types.StrategicMergePatchType), Body: b,
	}
}

// encodings are the encodings of an event's body. A body that is no JSON stays as it is.
func encodings(t *testing.T) map[string]func(*topicpb.Write) *topicpb.Write {
	return map[string]func(*topicpb.Write) *topicpb.Write{
		"JSON":     func(w *topicpb.Write) *topicpb.Write { return w },
		"protobuf": func(w *topicpb.Write) *topicpb.Write { return inProtobuf(t, w) },
	}
}

func inProtobuf(t *testing.T, w *topicpb.Write) *topicpb.Write {
	var e corev1.Event
	if json.Unmarshal(w.Body, &e) != nil {
		return w
	}
	body, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Event"), &e)
	if err != nil {
		t.Fatal(err)
	}
	w, ok := proto.Clone(w).(*topicpb.Write)
	if !ok {
		t.Fatal("the clone of a write is none")
	}
	w.Body = body
	return w
}

func podRef(name, uid string) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: name, UID: types.UID(uid)}
}

func podStatus(id uint64, name, uid, phase string) *topicpb.Write {
	return &topicpb.Write{
		Id: id, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, Namespace: "default", Name: name, Subresource: "status",
		PatchType: string(types.StrategicMergePatchType), Body: fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase), Uid: uid,
	}
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func (e *edge) answered() map[message.ID]*topicpb.APIResponse {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.answers)
}
