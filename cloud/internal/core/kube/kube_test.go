package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// apiserver serves ConfigMaps one by one, with watches, and reviews; forbid sets the denied
// requests of each node.
type apiserver struct {
	*httptest.Server
	mu        sync.Mutex
	objects   map[string]*corev1.ConfigMap
	version   int
	watchers  map[int]*watcher
	next      int
	forbidden map[string]bool // user
	requests  []string        // "user METHOD path?query"
	headers   []http.Header
}

type watcher struct {
	user, name string
	events     chan []byte
	cancel     context.CancelFunc
}

func newObjects() map[string]*corev1.ConfigMap { return map[string]*corev1.ConfigMap{} }

func serve(t *testing.T) *apiserver {
	t.Helper()
	a := &apiserver{objects: newObjects(), version: 100, watchers: map[int]*watcher{}, forbidden: map[string]bool{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func failure(code int, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason)}
}

func (a *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user := r.Header.Get("Impersonate-User")
	a.mu.Lock()
	a.requests = append(a.requests, strings.TrimSpace(user+" "+r.Method+" "+r.URL.Path))
	a.headers = append(a.headers, r.Header.Clone())
	forbidden := a.forbidden[user]
	a.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		a.mu.Lock()
		review.Status.Allowed = !a.forbidden[review.Spec.User]
		a.mu.Unlock()
		review.Status.Reason = "said the test"
		review.Kind, review.APIVersion = "SubjectAccessReview", "authorization.k8s.io/v1"
		reply(w, 201, &review)
	case forbidden:
		reply(w, 403, failure(403, metav1.StatusReasonForbidden))
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, user)
	case strings.HasSuffix(r.URL.Path, "/configmaps"):
		a.mu.Lock()
		defer a.mu.Unlock()
		list := &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}}
		list.ResourceVersion = fmt.Sprint(a.version)
		if cm := a.objects[strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")]; cm != nil {
			list.Items = append(list.Items, *cm)
		}
		reply(w, 200, list)
	default:
		a.mu.Lock()
		cm := a.objects[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		a.mu.Unlock()
		if cm == nil {
			reply(w, 404, failure(404, metav1.StatusReasonNotFound))
			return
		}
		reply(w, 200, cm)
	}
}

func eventOf(kind string, cm *corev1.ConfigMap) []byte {
	b, _ := json.Marshal(map[string]any{"type": kind, "object": cm})
	return append(b, '\n')
}

func (a *apiserver) watch(w http.ResponseWriter, r *http.Request, user string) {
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	a.mu.Lock()
	a.next++
	id := a.next
	v := &watcher{user, name, make(chan []byte, 100), cancel}
	a.watchers[id] = v
	if cm := a.objects[name]; cm != nil && r.URL.Query().Get("resourceVersion") == "0" {
		v.events <- eventOf("ADDED", cm)
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		v.events <- eventOf("BOOKMARK", &corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(a.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		})
	}
	a.mu.Unlock()
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, id)
		a.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-v.events:
			if _, err := w.Write(b); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func (a *apiserver) set(name, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	kind := "MODIFIED"
	if a.objects[name] == nil {
		kind = "ADDED"
	}
	cm := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: fmt.Sprint(a.version)},
		Data:       map[string]string{"k": value},
	}
	a.objects[name] = cm
	a.send(name, eventOf(kind, cm))
}

func (a *apiserver) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	cm := a.objects[name].DeepCopy()
	cm.ResourceVersion = fmt.Sprint(a.version)
	delete(a.objects, name)
	a.send(name, eventOf("DELETED", cm))
}

func (a *apiserver) send(name string, event []byte) {
	for _, v := range a.watchers {
		if v.name == name {
			v.events <- event
		}
	}
}

func (a *apiserver) forbid(node string, yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forbidden["system:node:"+node] = yes
}

// openers are the users that watch, in order.
func (a *apiserver) openers() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []string{}
	for _, v := range a.watchers {
		out = append(out, strings.TrimPrefix(v.user, "system:node:")+" "+v.name)
	}
	slices.Sort(out)
	return out
}

func client(t *testing.T, a *apiserver, mode kube.Impersonation) *kube.Client {
	t.Helper()
	config := &rest.Config{Host: a.URL, BearerToken: "cloudcores-own"}
	c, err := kube.NewClient(config, mode)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// jsonClient speaks JSON, which is all that the apiserver of these tests understands in a body.
func jsonClient(t *testing.T, c *kube.Client) kubernetes.Interface {
	t.Helper()
	config := c.Config()
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestWhoMakesARequest(t *testing.T) {
	for name, test := range map[string]struct {
		mode kube.Impersonation
		as   kube.Identity
		want map[string][]string
	}{
		"cloudcore itself": {kube.Constrained, kube.Identity{}, map[string][]string{"Authorization": {"Bearer cloudcores-own"}}},
		"a node": {kube.Constrained, kube.Identity{Node: "edge1"}, map[string][]string{
			"Authorization": {"Bearer cloudcores-own"}, "Impersonate-User": {"system:node:edge1"},
		}},
		"a node, for older clusters": {kube.Classic, kube.Identity{Node: "edge1"}, map[string][]string{
			"Authorization": {"Bearer cloudcores-own"}, "Impersonate-User": {"system:node:edge1"}, "Impersonate-Group": {"system:nodes", "system:authenticated"},
		}},
		"a token, without anything of cloudcore's": {kube.Constrained, kube.Identity{Node: "edge1", Token: "a-pods"}, map[string][]string{"Authorization": {"Bearer a-pods"}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := serve(t)
			resp, err := client(t, a, test.mode).Do(t.Context(), test.as, kube.Request{Method: "GET", Path: "/api/v1/namespaces/default/configmaps/none"})
			if err != nil {
				t.Fatal(err)
			}
			if !apierrors.IsNotFound(resp.Err()) {
				t.Errorf("got %v", resp.Err())
			}
			got := map[string][]string{}
			for key, values := range a.headers[0] {
				if key == "Authorization" || strings.HasPrefix(key, "Impersonate") {
					got[key] = values
				}
			}
			want(t, "headers", got, test.want)
		})
	}
	if _, err := kube.NewClient(&rest.Config{}, "Sometimes"); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestAnswersThatAreNoStatus(t *testing.T) {
	for name, test := range map[string]struct {
		response kube.Response
		is       func(error) bool
	}{
		"fine":               {kube.Response{Code: 201}, func(err error) bool { return err == nil }},
		"a proxy's page":     {kube.Response{Code: 502, Body: []byte("<html>bad gateway</html>")}, func(err error) bool { return err != nil }},
		"an empty 429":       {kube.Response{Code: 429, Header: http.Header{"Retry-After": {"3"}}}, apierrors.IsTooManyRequests},
		"a redirect":         {kube.Response{Code: 302}, func(err error) bool { return err != nil }},
		"an object with 500": {kube.Response{Code: 500, Body: []byte(`{"kind":"Pod"}`)}, apierrors.IsInternalError},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.response.Err(); !test.is(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAccessRemembersOnlyPermissions(t *testing.T) {
	a := serve(t)
	access := kube.NewAccess(jsonClient(t, client(t, a, kube.Constrained)))
	at := kube.Attributes{Verb: "watch", Resource: kube.Secrets, Namespace: "default", Name: "s"}
	asked := func() (n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, r := range a.requests {
			if strings.HasSuffix(r, "/subjectaccessreviews") {
				n++
			}
		}
		return n
	}

	a.forbid("edge1", true)
	for range 2 {
		if d, err := access.Allowed(t.Context(), "edge1", at); err != nil || d.Allowed || d.Reason != "said the test" {
			t.Errorf("got %+v, %v", d, err)
		}
	}
	want(t, "refusals are asked again", asked(), 2)
	a.forbid("edge1", false)
	for range 5 {
		if d, err := access.Allowed(t.Context(), "edge1", at); err != nil || !d.Allowed {
			t.Errorf("got %+v, %v", d, err)
		}
	}
	want(t, "permissions are remembered", asked(), 3)
	if d, err := access.Allowed(t.Context(), "edge2", at); err != nil || !d.Allowed {
		t.Errorf("got %+v, %v", d, err)
	}
	want(t, "each node for itself", asked(), 4)
	a.forbid("edge1", true)
	if d, err := access.Review(t.Context(), "edge1", at); err != nil || d.Allowed {
		t.Errorf("got %+v, %v", d, err)
	}
	if d, err := access.Allowed(t.Context(), "edge1", at); err != nil || d.Allowed {
		t.Errorf("a review that refuses is not believed: %+v, %v", d, err)
	}
}

// seen is the last state that a member of a single watch received.
type seen struct {
	mu    sync.Mutex
	last  kube.ObjectState
	calls int
}

func (s *seen) changed(state kube.ObjectState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.calls = state, s.calls+1
}

func (s *seen) is(version string) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch version {
		case "refused":
			return s.last.Err != nil
		case "absent":
			return s.last.Known && s.last.Object == nil && s.last.Err == nil
		}
		return s.last.Object != nil && s.last.Object.Version == version && s.last.Err == nil
	}
}

func objectWatches(t *testing.T, a *apiserver) *kube.ObjectWatches {
	t.Helper()
	c := client(t, a, kube.Constrained)
	w, err := kube.NewObjectWatches(c, kube.NewAccess(jsonClient(t, c)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func ref(name string) kube.Ref {
	return kube.Ref{Resource: kube.ConfigMaps, Key: kube.Key{Namespace: "default", Name: name}}
}

func TestASingleObjectIsFollowed(t *testing.T) {
	a := serve(t)
	a.set("cm", "1") // version 101
	w := objectWatches(t, a)
	var one seen
	cancel := w.Watch(ref("cm"), "edge1", one.changed).Cancel
	poll.True(t, "the object", one.is("101"))
	a.set("cm", "2")
	poll.True(t, "a change", one.is("102"))
	a.remove("cm")
	poll.True(t, "its deletion", one.is("absent"))
	a.set("cm", "3")
	poll.True(t, "that it is there again", one.is("104"))

	var none seen
	cancelNone := w.Watch(ref("none"), "edge1", none.changed).Cancel
	poll.True(t, "the absence of one that never was", none.is("absent"))

	a.mu.Lock()
	for _, v := range a.watchers {
		v.cancel() // kube-apiserver ends watches as it likes
	}
	a.mu.Unlock()
	a.set("cm", "4")
	poll.True(t, "a change across two watches", func() bool { return one.is("105")() || len(a.openers()) == 2 })
	cancel()
	cancelNone()
	poll.True(t, "the watches to end", func() bool { return len(a.openers()) == 0 && w.Len() == 0 })
}

func TestNodesShareAWatchAndEachIsAskedAbout(t *testing.T) {
	a := serve(t)
	a.set("cm", "1")
	w := objectWatches(t, a)
	var one, two, three seen
	leaveOne := w.Watch(ref("cm"), "edge1", one.changed).Cancel
	poll.True(t, "edge1", one.is("101"))
	a.forbid("edge3", true)
	leaveTwo := w.Watch(ref("cm"), "edge2", two.changed).Cancel
	leaveThree := w.Watch(ref("cm"), "edge3", three.changed).Cancel
	poll.True(t, "edge2", two.is("101"))
	want(t, "one watch, as the first", a.openers(), []string{"edge1 cm"})
	a.set("cm", "2")
	poll.True(t, "both", func() bool { return one.is("102")() && two.is("102")() })
	if three.calls != 0 {
		t.Errorf("edge3 received %+v", three.last)
	}
	leaveOne()
	poll.True(t, "the watch to be opened as another", func() bool { return slices.Equal(a.openers(), []string{"edge2 cm"}) })
	a.set("cm", "3")
	poll.True(t, "edge2 goes on", two.is("103"))
	a.forbid("edge3", false)
	poll.True(t, "edge3, when it may", three.is("103"))
	leaveTwo()
	leaveThree()
	poll.True(t, "the watch to end", func() bool { return len(a.openers()) == 0 })
}

func TestARefusalRightAfterBindingIsNotBelieved(t *testing.T) {
	a := serve(t)
	a.set("cm", "1")
	a.forbid("edge1", true)
	w := objectWatches(t, a)
	var one seen
	defer w.Watch(ref("cm"), "edge1", one.changed).Cancel()
	poll.True(t, "some attempts", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.requests) >= 3 })
	if one.calls != 0 {
		t.Errorf("received %+v", one.last)
	}
	a.forbid("edge1", false)
	poll.True(t, "the object", one.is("101"))
}

func TestSelect(t *testing.T) {
	pods := func(namespace, name, node, phase string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: corev1.PodPhase(phase)}}
	}
	store := kube.NewStore(kube.Pods)
	for _, p := range []*corev1.Pod{
		pods("a", "x", "edge1", "Running", map[string]string{"app": "web"}), pods("a", "y", "edge2", "Running", nil), pods("b", "x", "edge1", "Failed", nil), pods("b", "z", "", "Pending", nil),
	} {
		if err := store.Put(p); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		from kube.Source
		want []string // nil: refused
	}{
		"all":                         {kube.Source{}, []string{"a/x", "a/y", "b/x", "b/z"}},
		"a namespace":                 {kube.Source{Namespace: "a"}, []string{"a/x", "a/y"}},
		"a node":                      {kube.Source{Fields: "spec.nodeName=edge1"}, []string{"a/x", "b/x"}},
		"a node, twice":               {kube.Source{Fields: "spec.nodeName=edge1,spec.nodeName=edge2"}, []string{}},
		"not a node":                  {kube.Source{Fields: "spec.nodeName!=edge1"}, []string{"a/y", "b/z"}},
		"no node":                     {kube.Source{Fields: "spec.nodeName="}, []string{"b/z"}},
		"a node and a phase":          {kube.Source{Fields: "spec.nodeName=edge1,status.phase!=Failed"}, []string{"a/x"}},
		"a name":                      {kube.Source{Fields: "metadata.name=x"}, []string{"a/x", "b/x"}},
		"a name in a namespace":       {kube.Source{Namespace: "b", Fields: "metadata.name=x"}, []string{"b/x"}},
		"a name by both":              {kube.Source{Fields: "metadata.namespace=b,metadata.name=x"}, []string{"b/x"}},
		"a namespace against":         {kube.Source{Namespace: "a", Fields: "metadata.namespace=b"}, []string{}},
		"not a name":                  {kube.Source{Fields: "metadata.name!=x"}, []string{"a/y", "b/z"}},
		"labels":                      {kube.Source{Labels: "app in (web, db)"}, []string{"a/x"}},
		"a field that is none":        {kube.Source{Fields: "spec.colour=red"}, nil},
		"a field selector that isn't": {kube.Source{Fields: "spec.nodeName"}, nil},
		"a label selector that isn't": {kube.Source{Labels: "app in ("}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			sel, err := kube.Select(kube.Pods, test.from)
			if (err != nil) != (test.want == nil) {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				return
			}
			got := []string{}
			store.Each(sel, func(o *kube.Object) bool { got = append(got, o.Key.String()); return true })
			slices.Sort(got)
			want(t, "selected", got, test.want)
		})
	}
}

func FuzzSelect(f *testing.F) {
	f.Add("default", "app=web", "spec.nodeName=edge1")
	f.Add("", "a in (b,c),!d", "metadata.name!=x,status.phase=Running")
	f.Add("../\x00", "a in ("+strings.Repeat("b,", 50_000)+"c)", "")
	f.Add("", strings.Repeat("a!=b,", 10_000)+"a", strings.Repeat("metadata.name=x,", 10_000)+"spec.nodeName=\\")
	f.Add("default", "app=web", "metadata.name=x,metadata.namespace=default,spec.nodeName!=edge1,status.phase=Running")
	resources := []schema.GroupVersionResource{kube.Pods, kube.Secrets, {Version: "v1", Resource: "services"}, {Group: "skerry.io", Version: "v1alpha1", Resource: "staticroutes"}}
	f.Fuzz(func(t *testing.T, namespace, labels, fields string) {
		for _, resource := range resources {
			sel, err := kube.Select(resource, kube.Source{Namespace: namespace, Labels: labels, Fields: fields})
			if err != nil {
				continue
			}
			for _, labels := range []map[string]string{nil, {"app": "web"}} {
				o := &kube.Object{Key: kube.Key{Namespace: "default", Name: "x"}, Labels: labels}
				if sel.Matches(o) && sel.Namespace != "" && sel.Namespace != o.Namespace {
					t.Errorf("an object of another namespace than %q", sel.Namespace)
				}
			}
		}
	})
}

func TestStoreTellsItsObservers(t *testing.T) {
	s := kube.NewStore(kube.Pods)
	var log []string
	cancel := s.Observe(func(old, new *kube.Object) {
		switch {
		case old == nil:
			log = append(log, "+"+new.Name)
		case new == nil:
			log = append(log, "-"+old.Name)
		default:
			log = append(log, "~"+new.Name)
		}
	})
	pod := func(name, version, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), ResourceVersion: version}, Spec: corev1.PodSpec{NodeName: node}}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Put(pod("a", "1", "n1")))
	must(s.Put(pod("a", "2", "n2")))
	if s.HasSynced() {
		t.Error("synced before the whole was there")
	}
	must(s.Replace(nil))
	if !s.HasSynced() {
		t.Error("not synced")
	}
	must(s.Put(pod("b", "3", "n1")))
	s.Delete(kube.Key{Namespace: "d", Name: "none"})
	want(t, "changes", log, []string{"+a", "~a", "-a", "+b"})
	cancel()
	s.Delete(kube.Key{Namespace: "d", Name: "b"})
	want(t, "after cancel", len(log), 4)
	want(t, "objects", s.Len(), 0)
}

func TestWhatAPodNeeds(t *testing.T) {
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	spec := corev1.PodSpec{
		NodeName: "edge1", ImagePullSecrets: []corev1.LocalObjectReference{local("pull")},
		InitContainers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("env")}}}}},
		Containers: []corev1.Container{{Env: []corev1.EnvVar{
			{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("key")}}},
		}}},
		Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("kube-root-ca.crt")}}, {Secret: &corev1.SecretProjection{LocalObjectReference: local("key")}},
			}}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
		},
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"all of it": {func(*corev1.Pod) {}, []string{
			"configmaps/env", "configmaps/kube-root-ca.crt", "persistentvolumeclaims/claim", "persistentvolumeclaims/p-scratch", "secrets/key", "secrets/pull",
		}},
		"not bound":    {func(p *corev1.Pod) { p.Spec.NodeName = "" }, nil},
		"a mirror pod": {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p"}, Spec: *spec.DeepCopy()}
			test.change(p)
			s := kube.NewStore(kube.Pods)
			if err := s.Put(p); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range s.Get(kube.Key{Namespace: "d", Name: "p"}).Refs {
				got = append(got, r.Resource.Resource+"/"+r.Name)
			}
			want(t, "refs", got, test.want)
		})
	}
}

func TestEveryBuiltInKindHasAnEncoding(t *testing.T) {
	for _, gvr := range []schema.GroupVersionResource{
		kube.Pods, kube.Secrets, kube.ConfigMaps, kube.Claims, kube.Volumes, {Version: "v1", Resource: "endpoints"}, {Version: "v1", Resource: "nodes"},
		{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}, {Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
		{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "podcertificaterequests"},
	} {
		if !kube.BuiltIn(gvr) {
			t.Errorf("%s is taken for a custom resource", gvr)
		}
	}
	if kube.BuiltIn(schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "routes"}) {
		t.Error("a custom resource is taken for a built-in one")
	}
}

// Equal parts of two versions of an object are kept once, and an outline answers selections as the
// object does, without keeping its content.
func TestObject_Outline(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	s := kube.NewStore(pods)
	var olds []*kube.Object
	defer s.Observe(func(old, _ *kube.Object) { olds = append(olds, old) })()
	for _, version := range []string{"1", "2"} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u", ResourceVersion: version, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "edge1"},
		}
		if err := s.Put(p); err != nil {
			t.Fatal(err)
		}
	}
	old, now := olds[1].Outline(), s.Get(kube.Key{Namespace: "default", Name: "web"})
	if old.Raw != nil || olds[0].Outline() != nil {
		t.Error("an outline keeps the content")
	}
	if old.Sum == now.Sum || reflect.ValueOf(old.Labels).Pointer() != reflect.ValueOf(now.Labels).Pointer() {
		t.Errorf("the versions %v and %v share what they should not, or do not share their labels", old, now)
	}
	for source, want := range map[kube.Source]bool{
		{Labels: "app=web", Fields: "spec.nodeName=edge1"}: true, {Labels: "app=db"}: false, {Fields: "spec.nodeName=edge2"}: false, {Fields: "metadata.name=web"}: true,
	} {
		sel, err := kube.Select(pods, source)
		if err != nil || sel.Matches(old) != want || sel.Matches(now) != want {
			t.Errorf("%v: matches %v and %v, want %v (%v)", source, sel.Matches(old), sel.Matches(now), want, err)
		}
	}
}
