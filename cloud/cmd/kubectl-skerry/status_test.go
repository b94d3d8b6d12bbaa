package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
)

// apiserver answers lists in pages, as kube-apiserver does, and refuses forbidden ones.
type apiserver struct {
	*httptest.Server
	nodes     int
	ahead     time.Duration // of its clock
	forbidden string        // a resource
	away      string        // why no device answers; empty: they do
	slow      time.Duration // of a list of Leases
	pages     int
	changes   map[string]chan map[string]any // sent to the watches of a resource
}

func newAPIServer(t *testing.T, nodes int) *apiserver {
	a := &apiserver{nodes: nodes}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *apiserver) ToRESTConfig() (*rest.Config, error) { return &rest.Config{Host: a.URL}, nil }

func (a *apiserver) serve(w http.ResponseWriter, r *http.Request) {
	now := time.Now().Add(a.ahead)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	path := strings.Split(r.URL.Path, "/")
	resource := path[len(path)-1]
	if resource == a.forbidden {
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
			Message: fmt.Sprintf(`%s is forbidden: User "ann" cannot list resource %q in API group ""`, resource, resource),
		})
		return
	}
	if slices.Contains([]string{"status", "rehearsal", "recorder", "log"}, resource) { // of subresources.skerry.io
		switch {
		case a.away != "":
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable, Message: a.away,
			})
		case r.URL.Query().Get("format") == "text":
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "node\tedge-0001\x1b[2J\nlink\tup\n")
		default:
			_, _ = io.WriteString(w, `{"node":"edge-0001"}`)
		}
		return
	}
	if r.URL.Query().Get("watch") != "" {
		if r.URL.Query().Get("sendInitialEvents") != "" { // a kube-apiserver without streaming lists
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
			return
		}
		for {
			w.(http.Flusher).Flush()
			select {
			case object := <-a.changes[resource]:
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": object})
			case <-r.Context().Done():
				return
			}
		}
	}
	if resource == "leases" {
		time.Sleep(a.slow)
	}
	list := map[string]any{"metadata": map[string]any{"resourceVersion": "7"}, "items": []any{}}
	var items []any
	switch resource {
	case "nodes":
		list["kind"], list["apiVersion"] = "NodeList", "v1"
		for i := range a.nodes {
			items = append(items, nodeOf(i, "True"))
		}
	case "leases":
		list["kind"], list["apiVersion"] = "LeaseList", "coordination.k8s.io/v1"
		for i := range a.nodes {
			items = append(items, leaseOf(i, now))
		}
	case "pods":
		list["kind"], list["apiVersion"] = "PodList", "v1"
	case "nodeoperations":
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		return
	}
	from := 0
	_, _ = fmt.Sscanf(r.URL.Query().Get("continue"), "from-%d", &from)
	to := len(items)
	if limit := r.URL.Query().Get("limit"); limit != "" {
		var n int
		_, _ = fmt.Sscan(limit, &n)
		to = min(to, from+n)
	}
	if a.pages++; to < len(items) {
		list["metadata"] = map[string]any{"resourceVersion": "7", "continue": fmt.Sprintf("from-%d", to)}
	}
	if len(items) > 0 {
		list["items"] = items[from:to]
	}
	_ = json.NewEncoder(w).Encode(list)
}

func nodeOf(i int, ready string) map[string]any {
	return map[string]any{
		"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": fmt.Sprintf("edge-%04d", i), "labels": map[string]any{"skerry.io/edge": ""}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": ready, "message": "container runtime is down"}}},
	}
}

func leaseOf(i int, renewed time.Time) map[string]any {
	return map[string]any{
		"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
		"metadata": map[string]any{"name": fmt.Sprintf("edge-%04d", i), "annotations": map[string]any{"skerry.io/epoch": "1", "skerry.io/session": `{"transport":"quic","since":"2026-01-01T00:00:00Z","version":"v1"}`}},
		"spec":     map[string]any{"renewTime": renewed.UTC().Format(metav1.RFC3339Micro), "leaseDurationSeconds": 40},
	}
}

// run is the command's output.
func run(t *testing.T, a *apiserver, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := statusCommand(a, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	c.SetArgs(args)
	c.SilenceErrors = true
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestStatus_InPages(t *testing.T) {
	a := newAPIServer(t, 1203)
	a.ahead = time.Hour // a laptop's clock may be off: the Leases are not old for that
	out, err := run(t, a)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 1205 || lines[0] != "1203 devices: 1203 up; 0 with problems" {
		t.Fatalf("%v: %d lines, %q", err, len(lines), lines[0])
	}
	if a.pages != 3+3+1 {
		t.Errorf("%d pages", a.pages)
	}
	out, err = run(t, a, "-o", "json")
	var list struct {
		Kind  string
		Items []struct{ Name, Link, Version string }
	}
	if jsonErr := json.Unmarshal([]byte(out), &list); err != nil || jsonErr != nil || len(list.Items) != 1203 || list.Items[7].Link != "Up" || list.Items[7].Version != "v1" {
		t.Errorf("%v, %v: %.200s", err, jsonErr, out)
	}
	if out, err := run(t, a, "--problems", "--no-headers"); err != nil || out != "" {
		t.Errorf("%v: %q", err, out)
	}
}

func TestStatus_EndsWithOne(t *testing.T) {
	a := newAPIServer(t, 2)
	a.ahead = 0
	if _, err := run(t, a); err != nil {
		t.Errorf("all are well: %v", err)
	}
	if _, err := run(t, a, "--certificate-left", "1h", "-o", "wide"); err != nil {
		t.Errorf("wide: %v", err)
	}
	a.forbidden = "leases"
	_, err := run(t, a)
	if err == nil || !strings.Contains(err.Error(), `cannot list resource "leases"`) || !strings.Contains(err.Error(), "--clusterrole=skerry:viewer") {
		t.Errorf("without a right: %v", err)
	}
	if _, err := run(t, a, "-l", "a=="); err == nil || errors.Is(err, cmdutil.ErrExit) {
		t.Errorf("a selector that is none: %v", err)
	}
	if _, err := run(t, a, "-o", "jason"); err == nil {
		t.Error("a format that is none is taken")
	}
}

// After the table status -w prints a row for each device whose state changes, and no row for a
// renewal.
func TestStatus_Watch(t *testing.T) {
	a := newAPIServer(t, 3)
	a.changes = map[string]chan map[string]any{"nodes": make(chan map[string]any), "leases": make(chan map[string]any)}
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	c := statusCommand(a, genericiooptions.IOStreams{In: strings.NewReader(""), Out: in, ErrOut: in})
	c.SetArgs([]string{"-w"})
	c.SilenceErrors = true
	ended := make(chan error, 1)
	go func() {
		ended <- c.ExecuteContext(ctx)
		_ = in.Close()
	}()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for all := bufio.NewScanner(out); all.Scan(); { // a writer to the pipe waits for it
			lines <- all.Text()
		}
	}()
	next := func() string {
		line, ok := <-lines
		if !ok {
			t.Fatal("the command has ended")
		}
		return line
	}
	for _, want := range []string{"3 devices: 3 up; 0 with problems", "NAME ", "edge-0000 ", "edge-0001 ", "edge-0002 "} {
		if got := next(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	now := time.Now()
	a.changes["leases"] <- leaseOf(0, now.Add(time.Second))
	a.changes["nodes"] <- nodeOf(2, "False")
	if got := next(); !strings.HasPrefix(got, "edge-0002 ") || !strings.HasSuffix(got, "node NotReady: container runtime is down") {
		t.Errorf("of a node that is not Ready: %q", got)
	}
	a.changes["leases"] <- leaseOf(1, now.Add(-time.Hour))
	if got := next(); !strings.HasPrefix(got, "edge-0001 ") || !strings.Contains(got, " Down ") {
		t.Errorf("of a link that is down: %q", got)
	}
	a.changes["nodes"] <- nodeOf(2, "True")
	if got := next(); !strings.HasPrefix(got, "edge-0002 ") || strings.Contains(got, "NotReady") {
		t.Errorf("of a node that is Ready again: %q", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended by the user: %v", err)
	}
}

// A kube-apiserver that does not answer is named, with a remedy.
func TestStatus_WithoutKubeAPIServer(t *testing.T) {
	a := newAPIServer(t, 1)
	a.Close()
	if _, err := run(t, a); err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "kube-apiserver does not answer: is it running") {
		t.Errorf("got %v", err)
	}
	if err := unreached(errors.New("x509: certificate signed by unknown authority")); strings.Contains(err.Error(), "running") {
		t.Errorf("got %v", err)
	}
}

// A watch shows no device before all collections are read, in a cluster without the CRD too.
func TestFollow_WaitsForAllCollections(t *testing.T) {
	a := newAPIServer(t, 3)
	a.slow = 500 * time.Millisecond
	c, err := connect(a)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	called := errors.New("called")
	err = c.follow(ctx, func(f fleet.Facts) error {
		if len(f.Nodes) != 3 || len(f.Leases) != 3 {
			t.Errorf("%d Nodes and %d Leases", len(f.Nodes), len(f.Leases))
		}
		return called
	})
	if !errors.Is(err, called) {
		t.Errorf("followed: %v", err)
	}
}

// A device that answers is shown in its own words, without terminal commands; one that does not, by
// the facts of the cluster, their age and the reason.
func TestNode(t *testing.T) {
	a := newAPIServer(t, 2)
	ask := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := nodeCommand(a, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
		c.SetArgs(args)
		c.SilenceErrors = true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := ask("edge-0001"); err != nil || out != "node edge-0001[2J\nlink up\n" {
		t.Errorf("%v: %q", err, out)
	}
	if out, err := ask("edge-0001", "-o", "json"); err != nil || out != `{"node":"edge-0001"}` {
		t.Errorf("%v: %q", err, out)
	}
	a.away = "node edge-0001: edge-0001 has no link"
	out, err := ask("edge-0001")
	if err == nil || !strings.Contains(err.Error(), "this is what was last known, ") || !strings.Contains(err.Error(), a.away) || !strings.Contains(out, "link           Up for ") {
		t.Errorf("%v: %q", err, out)
	}
	a.away, a.forbidden = "", "status"
	if _, err := ask("edge-0001"); err == nil || !strings.Contains(err.Error(), `resource "status"`) || !strings.Contains(err.Error(), "skerry:viewer") {
		t.Errorf("without the right: %v", err)
	}
}

// Most of a pod is dropped; the judged fields stay.
func TestStripped(t *testing.T) {
	p := stripped(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"big": "1"}},
		Spec:       corev1.PodSpec{NodeName: "edge1", Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, {State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "X"}}},
		}},
	}).(*corev1.Pod)
	if len(p.Annotations) > 0 || len(p.Spec.Containers) > 0 || p.Spec.NodeName != "edge1" || len(p.Status.ContainerStatuses) != 1 {
		t.Errorf("%+v", p)
	}
}
