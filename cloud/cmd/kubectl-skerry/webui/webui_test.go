package webui_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/cmd/kubectl-skerry/webui"
	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const token = "a-token"

func newServer(t *testing.T) *webui.Server {
	t.Helper()
	nothing := func(context.Context, string) (webui.Timeline, error) { return webui.Timeline{}, nil }
	s := webui.New(webui.Config{Token: token, Device: nothing, Recorder: func(_ context.Context, name string) (webui.Timeline, error) {
		return webui.Timeline{}, errors.New("no link to " + name + "\x1b[2J")
	}})
	if err := s.Set(webui.Fleet{Summary: "1 device", Nodes: []fleet.Node{{Name: "edge1", Link: fleet.Up}}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask makes one request; change may alter it.
func ask(s *webui.Server, method, path string, change func(*http.Request)) (code int, body string, header http.Header) {
	r := httptest.NewRequest(method, "http://127.0.0.1:8042"+path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Header()
}

// The page is for one person on this machine, and for reading.
func TestServer_refuses(t *testing.T) {
	s := newServer(t)
	for name, tc := range map[string]struct {
		method, path string
		change       func(*http.Request)
		want         int
		says         string
	}{
		"a reader":                            {http.MethodGet, "/api/fleet", nil, 200, "edge1"},
		"the page has no data, and no token":  {http.MethodGet, "/", func(r *http.Request) { r.Header.Del("Authorization") }, 200, "<!doctype html>"},
		"by localhost":                        {http.MethodGet, "/api/fleet", func(r *http.Request) { r.Host = "localhost:9" }, 200, "edge1"},
		"by IPv6's loopback":                  {http.MethodGet, "/api/fleet", func(r *http.Request) { r.Host = "[::1]:8042" }, 200, "edge1"},
		"no token":                            {http.MethodGet, "/api/fleet", func(r *http.Request) { r.Header.Del("Authorization") }, 401, "token"},
		"another token":                       {http.MethodGet, "/api/fleet", func(r *http.Request) { r.Header.Set("Authorization", "Bearer b-token") }, 401, "token"},
		"the token as a parameter":            {http.MethodGet, "/api/fleet?token=" + token, func(r *http.Request) { r.Header.Del("Authorization") }, 401, "token"},
		"the token in a cookie":               {http.MethodGet, "/api/device/edge1", func(r *http.Request) { r.Header.Set("Cookie", "token="+token); r.Header.Del("Authorization") }, 401, "token"},
		"a name resolved to loopback":         {http.MethodGet, "/", func(r *http.Request) { r.Host = "rebind.example:8042" }, 421, "loopback"},
		"a name that begins like loopback":    {http.MethodGet, "/", func(r *http.Request) { r.Host = "127.0.0.1.example" }, 421, "loopback"},
		"a change":                            {http.MethodPost, "/api/fleet", nil, 405, "only reads"},
		"a deletion":                          {http.MethodDelete, "/api/device/edge1", nil, 405, "only reads"},
		"a preflight":                         {http.MethodOptions, "/api/fleet", nil, 405, "only reads"},
		"kube-apiserver is not passed on":     {http.MethodGet, "/api/v1/secrets", nil, 404, ""},
		"a path out of the API":               {http.MethodGet, "/api/device/..%2f..%2fsecrets", nil, 400, "no name of a node"},
		"a device that does not answer":       {http.MethodGet, "/api/recorder/edge1", nil, 502, `"no link to edge1[2J"`},
		"a device that nobody knows anything": {http.MethodGet, "/api/device/edge1", nil, 200, `"entries":[]`},
	} {
		t.Run(name, func(t *testing.T) {
			code, body, header := ask(s, tc.method, tc.path, tc.change)
			if code != tc.want || !strings.Contains(body, tc.says) {
				t.Errorf("%d %s, want %d %q", code, body, tc.want, tc.says)
			}
			csp := header.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
				if !strings.Contains(csp, want) {
					t.Errorf("the policy %q lacks %s", csp, want)
				}
			}
			if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" || header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("headers: %v", header)
			}
		})
	}
	if code, _, _ := ask(webui.New(webui.Config{}), http.MethodGet, "/api/fleet", func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") }); code != 401 {
		t.Errorf("a server without a token answers %d", code)
	}
}

// A page that waits gets a change at once, and an answer where there is none.
func TestServer_waits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var first struct{ Version string }
		_, body, _ := ask(s, http.MethodGet, "/api/fleet", nil)
		if err := json.Unmarshal([]byte(body), &first); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if code, _, _ := ask(s, http.MethodGet, "/api/fleet?after="+first.Version, nil); code != 204 || time.Since(begin) < 5*time.Second {
			t.Errorf("without a change: %d after %v", code, time.Since(begin))
		}
		go func() {
			time.Sleep(3 * time.Second)
			_ = s.Set(webui.Fleet{Summary: "1 device", Nodes: []fleet.Node{{Name: "edge1", Link: fleet.Up}}}, time.Now()) // no change but the clock's
			time.Sleep(time.Second)
			_ = s.Set(webui.Fleet{Nodes: []fleet.Node{{Name: "edge1", Link: fleet.Down}}}, time.Now())
		}()
		begin = time.Now()
		if code, body, _ := ask(s, http.MethodGet, "/api/fleet?after="+first.Version, nil); code != 200 || !strings.Contains(body, "Down") || time.Since(begin) != 4*time.Second {
			t.Errorf("%d %s after %v", code, body, time.Since(begin))
		}
	})
}

// A fifth question about devices at once is refused, whatever the devices do.
func TestServer_isBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := func(ctx context.Context, _ string) (webui.Timeline, error) {
			<-ctx.Done()
			return webui.Timeline{}, ctx.Err()
		}
		s := webui.New(webui.Config{Token: token, Recorder: stalled, Device: stalled})
		codes := make(chan int, 5)
		for range 4 {
			go func() {
				code, _, _ := ask(s, http.MethodGet, "/api/recorder/edge1", nil)
				codes <- code
			}()
		}
		synctest.Wait()
		if code, _, _ := ask(s, http.MethodGet, "/api/recorder/edge1", nil); code != 429 {
			t.Errorf("the fifth: %d", code)
		}
		begin := time.Now()
		for range 4 {
			if code := <-codes; code != 502 {
				t.Errorf("a stalled device: %d", code)
			}
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("a stalled device held the page for %v", took)
		}
	})
}

// The page is small, and asks nobody else.
func TestPage_isSmall(t *testing.T) {
	lines, bytes := 0, 0
	for _, name := range []string{"page.html", "page.css", "page.js", "webui.go", "objects.go", "timeline.go", "../ui.go"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(raw), "\n")
		if strings.HasPrefix(name, "page.") {
			bytes += len(raw)
			for _, foreign := range []string{"http://", "https://", "innerHTML", "eval(", "style=", "onclick"} {
				if strings.Contains(string(raw), foreign) {
					t.Errorf("%s has %s", name, foreign)
				}
			}
		}
	}
	if lines > 1500 || bytes > 40<<10 {
		t.Errorf("%d lines, %d bytes", lines, bytes)
	}
}

func TestHistory_Timeline(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.Date(2026, 11, 28, 8, minute, 0, 0, time.UTC) }
	ptr := func(t metav1.Time) *metav1.Time { return &t }
	h := webui.History{
		Node: fleet.Node{Link: fleet.Down, LastContact: ptr(at(50)), Session: fleet.Session{Since: ptr(at(10)), Transport: "quic", Version: "v1"}},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", CreationTimestamp: at(1)},
			Status: corev1.PodStatus{
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(3), Reason: "ContainersNotReady"}},
				ContainerStatuses: []corev1.ContainerStatus{{
					Name: "c", RestartCount: 2, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(4), Reason: "OOMKilled", ExitCode: 137}},
				}},
			},
		}},
		Operations: []*v1alpha1.NodeOperation{{
			ObjectMeta: metav1.ObjectMeta{Name: "reboot-1", CreationTimestamp: at(5)}, Spec: v1alpha1.NodeOperationSpec{Operation: "Reboot"},
			Status: v1alpha1.NodeOperationStatus{RequestedBy: "ann", CompletedAt: ptr(at(9)), Conditions: []metav1.Condition{{Type: v1alpha1.OperationDone, Status: "True", Reason: "Rebooted", LastTransitionTime: at(9)}}},
		}},
		Events: []corev1.Event{{Reason: "NodeNotReady", Message: "bad\x1b[2J", LastTimestamp: at(55)}, {Reason: "Series", Series: &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(at(56).Time)}}, {Reason: "Timeless"}},
	}
	var got []string
	for _, e := range h.Timeline() {
		got = append(got, strings.TrimSpace(strings.Join([]string{e.Time.Format("04"), e.Kind, e.Object, e.Reason, e.Message}, " ")))
	}
	want := []string{
		"56 Event Node Series", "55 Event Node NodeNotReady bad[2J", "50 Link  LastContact the last renewal of the Lease before the cut", "10 Link  Up by quic, edgecore v1",
		"09 Operation Reboot reboot-1 Rebooted", "05 Operation Reboot reboot-1 Created ann", "04 Container shop/till/c OOMKilled exit code 137; 2 restarts",
		"03 Pod shop/till NotReady ContainersNotReady", "01 Pod shop/till Created",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	h.Events = make([]corev1.Event, 1000)
	for i := range h.Events {
		h.Events[i].LastTimestamp = at(i % 60)
	}
	if n := len(h.Timeline()); n != 300 {
		t.Errorf("%d entries", n)
	}
}

// What a device sends is text, of a bounded size.
func FuzzRecorded(f *testing.F) {
	f.Add([]byte(`[{"time":"2026-11-28T08:00:00Z","kind":"Boot","reason":"PowerLoss","cause":"<script>alert(1)</script>\u202e"}]`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := webui.Recorded(raw)
		if err != nil {
			return
		}
		for _, e := range all {
			if len(e.Message) > 500 || strings.ContainsAny(e.Message+e.Kind+e.Object+e.Reason, "\x1b\n\u202e") {
				t.Errorf("%q", e)
			}
		}
	})
}

func TestRecorded(t *testing.T) {
	all, err := webui.Recorded([]byte(`[{"time":"2026-11-28T08:00:00Z","kind":"Boot","reason":"PowerLoss","cause":"a\u001bb"},{"time":"2026-11-28T09:00:00Z","kind":"Link"}]`))
	if err != nil || len(all) != 2 || all[0].Kind != "Link" || all[1].Message != "ab" || all[1].From != "device" {
		t.Errorf("%v: %+v", err, all)
	}
	if _, err := webui.Recorded([]byte(`{}`)); err == nil {
		t.Error("an object was taken for a list")
	}
}

// The files are served as they are.
func TestServer_serves(t *testing.T) {
	s := newServer(t)
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	for name, kind := range map[string]string{"/page.js": "text/javascript", "/page.css": "text/css", "/": "text/html"} {
		res, err := http.Get(server.URL + name)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), kind) || len(body) < 1000 {
			t.Errorf("%s: %s %s", name, res.Status, res.Header.Get("Content-Type"))
		}
	}
}
