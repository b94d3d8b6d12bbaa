package edgeapi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

const first = uint64(1_700_000_000_000)

var (
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	events     = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	leases     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	csiNodes   = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"}
	routes     = schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "routes"}
)

// fakeBackend is a metamanager in memory: it holds objects and interests, keeps a history, and
// follows the real one's contract.
type fakeBackend struct {
	t *testing.T

	mu        sync.Mutex
	linked    bool
	version   uint64
	oldest    uint64 // watches from before this version are expired
	objects   map[object.Ref]object.Object
	synced    map[schema.GroupVersionResource][]string // field selectors of the synced interests of a resource; "" is everything
	refused   map[schema.GroupVersionResource]bool
	history   []fakeChange
	watchers  map[*fakeWatch]bool
	requests  []*topicpb.APIRequest
	writes    []metamanager.Write
	apiserver func(*topicpb.APIRequest) (*topicpb.APIResponse, error)
}

type fakeChange struct {
	before, after *object.Object
	version       uint64
}

func newFakeBackend(t *testing.T) *fakeBackend {
	return &fakeBackend{
		t: t, linked: true, version: first, oldest: first,
		objects: map[object.Ref]object.Object{}, synced: map[schema.GroupVersionResource][]string{}, refused: map[schema.GroupVersionResource]bool{},
		watchers: map[*fakeWatch]bool{},
	}
}

func (b *fakeBackend) sync(resource schema.GroupVersionResource, fields ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(fields) == 0 {
		fields = []string{""}
	}
	b.synced[resource] = append(b.synced[resource], fields...)
}

func (b *fakeBackend) set(resource schema.GroupVersionResource, o runtime.Object) {
	b.t.Helper()
	converted, err := object.FromObject(resource, o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.version++
	converted.Version = b.version
	change := fakeChange{after: &converted, version: b.version}
	if before, ok := b.objects[converted.Ref]; ok {
		change.before = &before
	}
	b.objects[converted.Ref] = converted
	b.tell(change)
}

func (b *fakeBackend) remove(ref object.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.objects[ref]
	delete(b.objects, ref)
	b.version++
	b.tell(fakeChange{before: &before, version: b.version})
}

func (b *fakeBackend) tell(c fakeChange) {
	b.history = append(b.history, c)
	for w := range b.watchers {
		w.put(c)
	}
}

func (b *fakeBackend) setLinked(linked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.linked = linked
}

func (b *fakeBackend) covered(s object.Selection) bool {
	for _, f := range b.synced[s.Resource] {
		if f == "" || f == s.FieldString() {
			return true
		}
	}
	return false
}

func (b *fakeBackend) Covered(s object.Selection) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.covered(s)
}

func (b *fakeBackend) Linked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.linked
}

func (b *fakeBackend) Version() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.version
}

func (b *fakeBackend) Resources() []schema.GroupVersionResource {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []schema.GroupVersionResource
	for r := range b.synced {
		all = append(all, r)
	}
	return all
}

func unsynced() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable,
		Message: "not synced yet", Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
	}}
}

// elsewhere is the answer for objects that aren't cached.
func (b *fakeBackend) elsewhere() error {
	if b.linked {
		return metamanager.ErrPassThrough
	}
	return unsynced()
}

// reflect answers a reflector's call for a set that isn't cached: as if the interest was made and
// synced, or refused, or as if there was no link.
func (b *fakeBackend) reflect(s object.Selection) error {
	switch {
	case b.covered(s):
		return nil
	case !b.linked:
		return unsynced()
	case b.refused[s.Resource]:
		return apierrors.NewForbidden(s.Resource.GroupResource(), "", nil)
	}
	b.synced[s.Resource] = append(b.synced[s.Resource], s.FieldString())
	return nil
}

func (b *fakeBackend) Get(_ context.Context, ref object.Ref, _ metamanager.Caller) (object.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.synced[ref.Resource]) == 0 {
		return object.Object{}, b.elsewhere()
	}
	o, ok := b.objects[ref]
	if !ok {
		return o, apierrors.NewNotFound(ref.Resource.GroupResource(), ref.Name)
	}
	return o, nil
}

func (b *fakeBackend) List(_ context.Context, s object.Selection, options metamanager.ListOptions) ([]object.Object, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case options.Held:
		if len(b.synced[s.Resource]) == 0 {
			return nil, 0, unsynced()
		}
	case options.FromReflector:
		if err := b.reflect(s); err != nil {
			return nil, 0, err
		}
	case !b.covered(s):
		return nil, 0, b.elsewhere()
	}
	return b.selected(s), b.version, nil
}

func (b *fakeBackend) selected(s object.Selection) []object.Object {
	var items []object.Object
	for _, o := range b.objects {
		if ok, err := s.Matches(o); err != nil {
			b.t.Error(err)
		} else if ok && o.Resource == s.Resource {
			items = append(items, o)
		}
	}
	slices.SortFunc(items, func(x, y object.Object) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return items
}

func (b *fakeBackend) Watch(_ context.Context, s object.Selection, options metamanager.WatchOptions) (metamanager.Watch, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if options.Held {
		if len(b.synced[s.Resource]) == 0 {
			return nil, unsynced()
		}
	} else if err := b.reflect(s); err != nil {
		return nil, err
	}
	if options.From != 0 && (options.From < b.oldest || options.From > b.version) {
		return nil, apierrors.NewResourceExpired("too old")
	}
	w := &fakeWatch{backend: b, selection: s, events: make(chan metamanager.Event, 1000)}
	if options.From == 0 {
		for _, o := range b.selected(s) {
			w.events <- metamanager.Event{Type: watch.Added, Object: o, Version: o.Version}
		}
		if options.InitialEvents {
			w.events <- metamanager.Event{Type: watch.Bookmark, Version: b.version, InitialEnd: true}
		}
	} else {
		for _, c := range b.history {
			if c.version > options.From {
				w.put(c)
			}
		}
	}
	b.watchers[w] = true
	return w, nil
}

type fakeWatch struct {
	backend   *fakeBackend
	selection object.Selection
	events    chan metamanager.Event
}

func (w *fakeWatch) Events() <-chan metamanager.Event { return w.events }

func (w *fakeWatch) Stop() {
	w.backend.mu.Lock()
	defer w.backend.mu.Unlock()
	delete(w.backend.watchers, w)
}

func (w *fakeWatch) put(c fakeChange) {
	matches := func(o *object.Object) bool {
		if o == nil || o.Resource != w.selection.Resource {
			return false
		}
		ok, err := w.selection.Matches(*o)
		return ok && err == nil
	}
	was, is := matches(c.before), matches(c.after)
	switch {
	case was && is:
		w.events <- metamanager.Event{Type: watch.Modified, Object: *c.after, Version: c.version}
	case is:
		w.events <- metamanager.Event{Type: watch.Added, Object: *c.after, Version: c.version}
	case was:
		o := *c.before
		o.Version = c.version
		w.events <- metamanager.Event{Type: watch.Deleted, Object: o, Version: c.version}
	}
}

// expire forgets the history, and ends open watches as too slow.
func (b *fakeBackend) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.version++
	b.oldest = b.version
	b.history = nil
	status := apierrors.NewResourceExpired("too slow").Status()
	for w := range b.watchers {
		w.events <- metamanager.Event{Type: watch.Error, Status: &status}
		close(w.events)
		delete(b.watchers, w)
	}
}

func (b *fakeBackend) watching() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.watchers)
}

func (b *fakeBackend) lastWrite() metamanager.Write {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writes[len(b.writes)-1]
}

func (b *fakeBackend) Write(ctx context.Context, write metamanager.Write) (metamanager.Result, error) {
	b.mu.Lock()
	b.writes = append(b.writes, write)
	b.mu.Unlock()
	if write.Ref.Resource == events && write.Verb == "create" {
		raw := write.Body
		o, err := object.FromRaw(events, raw)
		if err != nil {
			return metamanager.Result{}, apierrors.NewBadRequest(err.Error())
		}
		decoded, err := object.DecodeRaw(raw)
		if err != nil {
			return metamanager.Result{}, apierrors.NewBadRequest(err.Error())
		}
		b.set(events, decoded)
		b.mu.Lock()
		defer b.mu.Unlock()
		stored := b.objects[o.Ref]
		return metamanager.Result{Code: http.StatusCreated, Object: &stored}, nil
	}
	if write.Ref.Resource == pods && write.Verb == "patch" {
		b.mu.Lock()
		o, ok := b.objects[write.Ref]
		b.mu.Unlock()
		if !ok {
			return metamanager.Result{}, apierrors.NewNotFound(pods.GroupResource(), write.Ref.Name)
		}
		decoded, err := object.Decode(o)
		if err != nil {
			return metamanager.Result{}, err
		}
		patched, err := object.Patch(decoded, write.PatchType, write.Body)
		if err != nil {
			return metamanager.Result{}, apierrors.NewBadRequest(err.Error())
		}
		b.set(pods, patched)
		b.mu.Lock()
		defer b.mu.Unlock()
		o = b.objects[write.Ref]
		return metamanager.Result{Code: http.StatusOK, Object: &o}, nil
	}
	if write.Ref.Resource == pods && write.Verb == "delete" && write.Caller.Kubelet {
		b.remove(write.Ref)
		return metamanager.Result{Code: http.StatusOK, Status: &metav1.Status{Status: metav1.StatusSuccess}}, nil
	}
	answer, err := b.Request(ctx, &topicpb.APIRequest{
		Method: write.Verb, Path: write.Path, Body: write.Body, ContentType: write.ContentType, Accept: write.Accept, BearerToken: write.Caller.BearerToken,
	})
	if err != nil {
		return metamanager.Result{}, err
	}
	return metamanager.Result{Response: answer}, nil
}

func (b *fakeBackend) Request(_ context.Context, request *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	b.mu.Lock()
	b.requests = append(b.requests, request)
	linked, apiserver := b.linked, b.apiserver
	b.mu.Unlock()
	if !linked {
		return nil, unsynced()
	}
	if apiserver != nil {
		return apiserver(request)
	}
	return statusAnswer(http.StatusForbidden, metav1.StatusReasonForbidden), nil
}

func statusAnswer(code int32, reason metav1.StatusReason) *topicpb.APIResponse {
	body, _ := json.Marshal(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: "kube-apiserver says " + string(reason),
	})
	return &topicpb.APIResponse{Code: code, ContentType: "application/json", Body: body}
}

func version(v uint64) string { return strconv.FormatUint(v, 10) }
