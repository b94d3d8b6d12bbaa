package edgeapi_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

func TestWrites(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	b.apiserver = func(r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
		return statusAnswer(http.StatusConflict, metav1.StatusReasonAlreadyExists), nil
	}
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	for name, config := range reach(t, s, edgeapi.Identity{Kubelet: true}) {
		t.Run(name, func(t *testing.T) {
			c := client(t, config)
			patch := []byte(`{"status":{"message":"` + name + `"}}`)
			patched, err := c.CoreV1().Pods("default").Patch(t.Context(), "a", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			if err != nil || patched.Status.Message != name || patched.ResourceVersion != version(b.Version()) {
				t.Errorf("patched: %v, %v", patched, err)
			}
			b.mu.Lock()
			last := b.writes[len(b.writes)-1]
			b.mu.Unlock()
			ref := object.Ref{Resource: pods, Namespace: "default", Name: "a"}
			if last.Subresource != "status" || last.PatchType != types.StrategicMergePatchType || last.Ref != ref {
				t.Errorf("write: %+v", last)
			}
			b.set(pods, pod("gone"))
			now := metav1.NewDeleteOptions(0)
			now.Preconditions = metav1.NewUIDPreconditions("uid-gone")
			if err := c.CoreV1().Pods("default").Delete(t.Context(), "gone", *now); err != nil {
				t.Errorf("deleting: %v", err)
			}
			_, err = c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				t.Errorf("what kube-apiserver answers: %v, want AlreadyExists", err)
			}
			_, err = c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "x", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				t.Errorf("what kube-apiserver answers: %v, want AlreadyExists", err)
			}
		})
	}
}

// TestRegisterWithoutLink: a kubelet that starts without a link finds the Node that it had.
func TestRegisterWithoutLink(t *testing.T) {
	b := newFakeBackend(t)
	b.setLinked(false)
	b.sync(nodes)
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	config := s.ClientConfig(edgeapi.Identity{Kubelet: true})
	config.Transport = noRetries{config.Transport}
	create := func() error {
		_, err := client(t, config).CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
		return err
	}
	if err := create(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a node that was never there: %v, want ServiceUnavailable", err)
	}
	b.set(nodes, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node, UID: "u"}})
	if err := create(); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the node that is held: %v, want AlreadyExists", err)
	}
}

func TestBadRequests(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.sync(configMaps)
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	h := s.Handler(edgeapi.AsDevice)
	const (
		list  = "/api/v1/pods?resourceVersion=0"
		one   = "/api/v1/namespaces/default/pods/a"
		table = "application/json;as=Table;g=meta.k8s.io;v="
	)
	big := strings.NewReader(strings.Repeat("x", 3<<20+1))
	tests := map[string]struct {
		method, path, contentType, accept string
		body                              io.Reader
		want                              int
	}{
		"body too large":       {"POST", "/api/v1/namespaces/default/configmaps", "application/json", "", big, http.StatusRequestEntityTooLarge},
		"patch of no type":     {"PATCH", one, "", "", strings.NewReader("{}"), http.StatusUnsupportedMediaType},
		"accepts nothing":      {"GET", list, "", "image/png", nil, http.StatusNotAcceptable},
		"table of other group": {"GET", list, "", table + "v9", nil, http.StatusNotAcceptable},
		"upgrade":              {"GET", one + "/exec", "", "", nil, http.StatusMethodNotAllowed},
		"bad table option":     {"GET", list + "&includeObject=All", "", table + "v1", nil, http.StatusBadRequest},
		"bad timeout":          {"GET", list + "&timeoutSeconds=soon", "", "", nil, http.StatusBadRequest},
		"a watch of a match":   {"GET", list + "&watch=true&resourceVersionMatch=Exact", "", "", nil, http.StatusUnprocessableEntity},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, test.body)
			r.Header.Set("Content-Type", test.contentType)
			r.Header.Set("Accept", test.accept)
			if name == "upgrade" {
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "SPDY/3.1")
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Kind != "Status" {
				t.Errorf("the answer is no Status: %s", w.Body)
			}
			if w.Code != test.want {
				t.Errorf("code %d, want %d: %s", w.Code, test.want, w.Body)
			}
		})
	}
}

// TestRetryAfter: programs get seconds, people's tools a date, so that these don't sleep until
// then.
func TestRetryAfter(t *testing.T) {
	b := newFakeBackend(t)
	b.setLinked(false)
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	for _, device := range []bool{false, true} {
		h := s.Handler(func(*http.Request) (edgeapi.Identity, error) { return edgeapi.Identity{Device: device}, nil })
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/secrets", nil))
		after := w.Header().Get("Retry-After")
		_, errDate := http.ParseTime(after)
		_, errSeconds := strconv.Atoi(after)
		if w.Code != http.StatusServiceUnavailable || device && errDate != nil || !device && errSeconds != nil {
			t.Errorf("device %v: %d, Retry-After %q", device, w.Code, after)
		}
	}
}

// TestPanic: a panicking request affects no other request.
func TestPanic(t *testing.T) {
	b := newFakeBackend(t)
	b.apiserver = func(*topicpb.APIRequest) (*topicpb.APIResponse, error) { panic("a mistake") }
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	config := s.ClientConfig(edgeapi.Identity{})
	_, err := client(t, config).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsInternalError(err) {
		t.Errorf("got %v, want InternalError", err)
	}
}

func TestTooManyRequests(t *testing.T) {
	b := newFakeBackend(t)
	release := make(chan struct{})
	b.apiserver = func(*topicpb.APIRequest) (*topicpb.APIResponse, error) {
		<-release
		return statusAnswer(http.StatusNotFound, metav1.StatusReasonNotFound), nil
	}
	h := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, MaxRequests: 1}).Handler(edgeapi.AsDevice)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/secrets", nil))
	}()
	poll.True(t, "the first request", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.requests) == 1
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("the second request: %d %v", w.Code, w.Header())
	}
	close(release)
	<-done
}

// TestListeners: which clients are accepted, and how a second process fails.
func TestListeners(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	kubeconfig, socket := serve(t, b)

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	list := func(config *rest.Config) error {
		_, err := client(t, config).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(config); err != nil {
		t.Errorf("with the admin's kubeconfig: %v", err)
	}
	stranger := rest.AnonymousClientConfig(config)
	if err := list(stranger); !apierrors.IsUnauthorized(err) {
		t.Errorf("without anything: %v, want Unauthorized", err)
	}
	// Another device's authority: the connection fails in TLS.
	otherKubeconfig, _ := serve(t, newFakeBackend(t))
	other, err := clientcmd.BuildConfigFromFlags("", otherKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	other.Host, other.CAData = config.Host, config.CAData
	if err := list(other); err == nil || apierrors.IsUnauthorized(err) {
		t.Errorf("with another device's certificate: %v, want a refused connection", err)
	}
	for _, path := range []string{kubeconfig, socket} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v), want 0600", path, info.Mode(), err)
		}
	}
	unix := &rest.Config{Host: "http://unix", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	if err := list(unix); err != nil {
		t.Errorf("over the socket: %v", err)
	}
	again := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: t.TempDir(), Socket: socket})
	if err := again.Serve(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "served by another process") {
		t.Errorf("a second server on the socket: %v", err)
	}
	taken := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: t.TempDir(), Listen: strings.TrimPrefix(config.Host, "https://")})
	if err := taken.Serve(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second server on the port: %v", err)
	}
}

// TestSocketLeftBehind: a process that was killed leaves its socket.
func TestSocketLeftBehind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: newFakeBackend(t), Socket: path})
	if err := s.Serve(ctx, cancel); err != nil {
		t.Errorf("serving: %v", err)
	}
}

// TestServiceAccount: a pod's own token, authorized by kube-apiserver while there is a link, and by
// its last answer without one.
func TestServiceAccount(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	allowed := map[string]bool{"good list pods": true}
	b.apiserver = func(r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
		if r.GetBearerToken() == "" {
			t.Errorf("%s %s was asked as the node", r.GetMethod(), r.GetPath())
		}
		if r.GetPath() == "/openid/v1/jwks" {
			return statusAnswer(http.StatusForbidden, metav1.StatusReasonForbidden), nil
		}
		if accountOf(r.GetBearerToken()) == "forged" {
			return statusAnswer(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), nil
		}
		if r.GetPath() != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
			return statusAnswer(http.StatusTeapot, "PassedThrough"), nil
		}
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.Unmarshal(r.GetBody(), &review); err != nil {
			return nil, err
		}
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = allowed[accountOf(r.GetBearerToken())+" "+a.Verb+" "+a.Resource]
		body, err := json.Marshal(&review)
		return &topicpb.APIResponse{Code: http.StatusCreated, ContentType: "application/json", Body: body}, err
	}
	server := httptest.NewServer(edgeapi.New(edgeapi.Config{NodeName: node, Backend: b}).Handler(edgeapi.AsDevice))
	defer server.Close()
	as := func(token string) kubernetes.Interface {
		return client(t, &rest.Config{Host: server.URL, BearerToken: accountToken(token), Transport: noRetries{http.DefaultTransport}})
	}
	list := func(token string) error {
		_, err := as(token).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		return err
	}
	check := func(what string, err error, want func(error) bool) {
		t.Helper()
		if want == nil && err != nil || want != nil && !want(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("an account that may", list("good"), nil)
	check("an account that may not", list("poor"), apierrors.IsForbidden)
	check("a forged token", list("forged"), apierrors.IsUnauthorized)
	_, err := as("good").CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	check("another verb", err, apierrors.IsForbidden)
	_, err = as("good").CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	check("what isn't held", err, func(err error) bool { return apierrors.ReasonForError(err) == "PassedThrough" })
	err = as("good").CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{})
	check("a write", err, func(err error) bool { return apierrors.ReasonForError(err) == "PassedThrough" })
	// By way of the Backend: the version in it may be one that the pod has read here.
	_, err = as("good").CoreV1().Pods("default").Update(t.Context(), pod("a"), metav1.UpdateOptions{})
	check("an update", err, func(err error) bool { return apierrors.ReasonForError(err) == "PassedThrough" })
	if last := b.lastWrite(); last.Verb != "update" || last.Caller != (metamanager.Caller{BearerToken: accountToken("good")}) {
		t.Errorf("the Backend was asked to %s by %v", last.Verb, last.Caller)
	}

	b.setLinked(false)
	check("without a link, an account that might", list("good"), nil)
	check("without a link, one that might not", list("poor"), apierrors.IsForbidden)
	check("without a link, an unknown one", list("new"), apierrors.IsServiceUnavailable)
	check("without a link, the forged one", list("forged"), apierrors.IsServiceUnavailable)

	b.setLinked(true)
	delete(allowed, "good list pods")
	check("an account that may no longer", list("good"), apierrors.IsForbidden)
	b.setLinked(false)
	check("and without a link", list("good"), apierrors.IsForbidden)
}

// accountToken looks like a ServiceAccount token; its signature is invalid.
func accountToken(name string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"RS256","kid":"k"}`)) + "." + part([]byte(`{"sub":"system:serviceaccount:default:`+name+`"}`)) + ".c2ln"
}

func accountOf(token string) string {
	raw, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	var c struct {
		Sub string `json:"sub"`
	}
	_ = json.Unmarshal(raw, &c)
	return c.Sub[strings.LastIndex(c.Sub, ":")+1:]
}

// TestHeld: root's view of resources that the node may not list.
func TestHeld(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods, "spec.nodeName="+node)
	b.set(pods, pod("a"))
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	var warnings warnings
	config := s.ClientConfig(edgeapi.Identity{Device: true})
	config.WarningHandler = &warnings
	c := client(t, config)
	for _, linked := range []bool{true, false} { // kube-apiserver refuses; there is no kube-apiserver
		b.setLinked(linked)
		list, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("linked %v: %v, %v", linked, list, err)
		}
		w, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatalf("linked %v: %v", linked, err)
		}
		b.set(pods, pod("a"))
		if got := take(t, w, 1); got[0] != "MODIFIED a "+version(b.Version()) {
			t.Errorf("linked %v: %v", linked, got)
		}
		w.Stop()
	}
	want := `only the objects stored on node edge1 are listed; the cluster may have more`
	if diff := cmp.Diff([]string{want, want}, []string(warnings)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	b.setLinked(true)
	_, err := c.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("of what nothing is held: %v, want what kube-apiserver says", err)
	}
}

// A device gives the same answer if its link is down, and if kube-apiserver can't be reached by the
// link.
func TestSameAnswerWithoutKubeAPIServer(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods, "spec.nodeName="+node)
	b.set(pods, pod("a"))
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: t.TempDir()})
	ways := map[string]func(){
		"no link":           func() { b.setLinked(false) },
		"no kube-apiserver": func() { b.setLinked(true); b.apiserver = down },
	}
	up := func(r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
		answer := &topicpb.APIResponse{Code: http.StatusCreated, ContentType: "application/json"}
		answer.Body = []byte(`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
		if r.GetMethod() == http.MethodGet {
			answer.Code = http.StatusOK
			answer.Body = []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"7"}}`)
		}
		return answer, nil
	}
	account := client(t, s.ClientConfig(edgeapi.Identity{Token: appToken}))
	device := client(t, s.ClientConfig(edgeapi.Identity{Device: true}))
	b.apiserver = up
	got, err := account.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.ResourceVersion != "7" {
		t.Fatalf("with kube-apiserver: %v, %v; want its own answer, which can be written back", got, err)
	}
	for name, set := range ways {
		t.Run(name, func(t *testing.T) {
			set()
			if got, err := account.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{}); err != nil || got.Name != "a" {
				t.Errorf("a pod's get of a pod that is held: %v", err)
			}
			if err := account.CoreV1().RESTClient().Get().MaxRetries(0).AbsPath("/api/v1/namespaces/default/pods/b").Do(t.Context()).Error(); !apierrors.IsServiceUnavailable(err) {
				t.Errorf("a pod's get of one that is not held: %v", err)
			}
			for _, namespace := range []string{"default", ""} {
				if list, err := device.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
					t.Errorf("the device's list in %q: %v", namespace, err)
				}
			}
		})
	}
}

// appToken is taken apart and not verified by a process that saw kube-apiserver accept it. Its
// claims are of system:serviceaccount:default:app.
const appToken = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6ZGVmYXVsdDphcHAiLCJleHAiOjQxMDI0NDQ4MDB9.c2lnbmF0dXJl"

func down(*topicpb.APIRequest) (*topicpb.APIResponse, error) {
	return statusAnswer(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable), nil
}

type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

func TestRecorder(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(events)
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
	r, err := s.StartRecorder(t.Context(), "vip")
	if err != nil {
		t.Fatal(err)
	}
	r.Eventf(&corev1.ObjectReference{Kind: "Node", Name: node, UID: node}, corev1.EventTypeWarning, "Moved", "address %s", "10.0.0.1")
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := client(t, s.ClientConfig(edgeapi.Identity{})).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("events: %v, %v", list, err)
	}
	e := list.Items[0]
	if e.Message != "address 10.0.0.1" || e.Source != (corev1.EventSource{Component: "vip", Host: node}) {
		t.Errorf("event: %v", e)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend(t)
		b.sync(pods)
		s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b})
		c := client(t, s.ClientConfig(edgeapi.Identity{}))
		w, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first), AllowWatchBookmarks: true})
		if err != nil {
			t.Fatal(err)
		}
		quiet, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version(first)})
		if err != nil {
			t.Fatal(err)
		}
		b.set(configMaps, configMap("a")) // the version grows, and this watch has no event
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"BOOKMARK  " + version(first), "BOOKMARK  " + version(first+1)}, take(t, w, 2)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		synctest.Wait()
		select {
		case e := <-w.ResultChan():
			t.Errorf("a second bookmark of the same version: %v", e)
		case e := <-quiet.ResultChan():
			t.Errorf("an event for a client that wants no bookmarks: %v", e)
		default:
		}
		w.Stop()
		quiet.Stop()
		synctest.Wait()
		if n := b.watching(); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

// FuzzRequest: no request line makes the server panic, fail without a Status, or list a set that
// isn't synced.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"/api/v1/pods", "/api/v1/namespaces/default/pods/a?resourceVersion=0", "/apis/apps/v1/watch/deployments", "/api/v1/pods?watch=1&timeoutSeconds=1",
		"/apis", "/api/v1", "/apis/skerry.io/v1alpha1/routes?labelSelector=a%3Db&fieldSelector=metadata.name%3Dx", "/version",
		"/api/v1/pods?resourceVersion=-1&limit=x",
		"/api/v1/namespaces/..%2f..%2fsecrets/pods", "/api/v1/namespaces/a%00b/pods/c", "//api//v1//pods", "/api/v1/pods?labelSelector=" + strings.Repeat("a,", 10_000),
		"/api/v1/namespaces/n/pods/p/exec?command=sh", "/api/v1/nodes/another/proxy/", "/api/v1/pods?continue=" + strings.Repeat("x", 64<<10), "/apis/a.b/v1/" + strings.Repeat("c/", 1000),
	} {
		f.Add("GET", seed, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "", "")
	}
	f.Add("PATCH", "/api/v1/namespaces/default/pods/a/status", "", "application/strategic-merge-patch+json", `{"status":{"phase":"Running"}}`)
	f.Add("PATCH", "/api/v1/namespaces/default/pods/a", "", "application/json-patch+json", `[{"op":"remove","path":"/metadata/labels"}]`)
	f.Add("PUT", "/api/v1/namespaces/default/pods/a/status", "", "application/json", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"},"metadata":{"name":"a","uid":"v"}}`)
	f.Add("POST", "/api/v1/namespaces/default/events", "", "application/json", `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e","namespace":"kube-system"}}`)
	f.Add("POST", "/api/v1/namespaces/default/pods/a/eviction", "application/json", "application/vnd.kubernetes.protobuf", "k8s\x00")
	f.Add("DELETE", "/api/v1/namespaces/default/pods/a", "application/vnd.kubernetes.protobuf", "application/json", `{"preconditions":{"uid":"v"}}`)
	f.Add("GET", "/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion=1", "application/vnd.kubernetes.protobuf;stream=watch", "", "")
	f.Fuzz(func(t *testing.T, method, path, accept, contentType, body string) {
		for _, synced := range []bool{false, true} {
			b := newFakeBackend(t)
			if synced {
				b.sync(pods)
				b.sync(events)
				b.set(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "u"}, Spec: corev1.PodSpec{NodeName: node}})
			}
			b.setLinked(false)
			handler := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b}).Handler(edgeapi.AsDevice)
			for range 2 { // the second one finds the writes of the first
				r, err := http.NewRequestWithContext(t.Context(), method, "http://edge.invalid"+path, strings.NewReader(body))
				if err != nil {
					t.Skip()
				}
				r.RequestURI = r.URL.RequestURI()
				r.Header.Set("Accept", accept)
				r.Header.Set("Content-Type", contentType)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r.WithContext(ctx))
				cancel()
				if w.Code >= 300 && !strings.Contains(w.Header().Get("Content-Type"), "protobuf") {
					if body := w.Body.String(); !strings.Contains(body, "Status") {
						t.Errorf("%s %s: %d without a Status: %s", method, path, w.Code, body)
					}
				}
				if !synced && w.Code == http.StatusOK && strings.Contains(w.Body.String(), `"items":[]`) {
					t.Errorf("%s %s: an empty list of what was never synced: %s", method, path, w.Body)
				}
			}
		}
	})
}
