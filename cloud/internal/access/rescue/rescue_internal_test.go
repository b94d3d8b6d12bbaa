package rescue

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
)

// apiserver has NodeOperations and the Lease of a node.
type apiserver struct {
	operations map[string]*v1alpha1.NodeOperation
	epoch      string // of the Lease; "" without one
	broken     bool   // Leases can't be read
	written    []string
	annotated  []string // patches of the Node
}

func (a *apiserver) Do(_ context.Context, as kube.Identity, r kube.Request) (*kube.Response, error) {
	answer := func(v any) (*kube.Response, error) {
		raw, err := json.Marshal(v)
		return &kube.Response{Code: http.StatusOK, Body: raw}, err
	}
	name, status := strings.CutSuffix(strings.TrimPrefix(r.Path, operationsPath()+"/"), "/status")
	switch {
	case r.Path == "/version":
		return answer(map[string]string{"gitVersion": "v1.37.2"})
	case r.Method == http.MethodPatch && r.Path == "/api/v1/nodes/edge1" && as.Node == "edge1":
		a.annotated = append(a.annotated, string(r.Body))
		return answer(struct{}{})
	case strings.Contains(r.Path, "/leases/") && a.broken:
		return &kube.Response{Code: http.StatusInternalServerError, Body: []byte("{}")}, nil
	case strings.Contains(r.Path, "/leases/") && a.epoch != "":
		return answer(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fence.EpochAnnotation: a.epoch}}})
	case r.Path == operationsPath() && as.Node == "edge1":
		list := v1alpha1.NodeOperationList{}
		for _, o := range a.operations {
			list.Items = append(list.Items, *o)
		}
		return answer(list)
	case status && as == (kube.Identity{}):
		a.written = append(a.written, name+" "+string(r.Body))
		return answer(struct{}{})
	case a.operations[name] != nil && as.Node == "edge1":
		return answer(a.operations[name])
	}
	return &kube.Response{Code: http.StatusNotFound, Body: []byte("{}")}, nil
}

func newSystem() (*apiserver, *session) {
	of := func(name, node string, kind v1alpha1.OperationType) *v1alpha1.NodeOperation {
		return &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.NodeOperationSpec{NodeName: node, Operation: kind}}
	}
	a := &apiserver{operations: map[string]*v1alpha1.NodeOperation{
		"up": of("up", "edge1", v1alpha1.OperationUpgrade), "reboot": of("reboot", "edge1", v1alpha1.OperationReboot), "theirs": of("theirs", "edge2", v1alpha1.OperationUpgrade),
	}}
	p := New(Config{
		Client: a, Protocols: protocol.Window{Min: 4, Max: 5}, Prefix: "artefact/",
		Artefact: func(context.Context, types.NodeName, string) (net.Conn, error) { return nil, errors.New("artefact") },
		Merge: func(o *v1alpha1.NodeOperation, node string, status []byte) error {
			return json.Unmarshal(status, &o.Status)
		},
	})
	return a, &session{Session: &hubtest.Session{Name: "edge1", Number: 7}, part: p}
}

func (s *session) ask(t *testing.T, method, path, body string) (any, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://cloudcore"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return s.handle(t.Context(), r)
}

// A device that is rescued reads the upgrades of its own, and the facts by which it judges them.
func TestQuestions(t *testing.T) {
	_, s := newSystem()
	if facts, err := s.ask(t, http.MethodGet, "/facts", ""); err != nil || *facts.(*Facts) != (Facts{Kubernetes: "v1.37.2", Protocol: 5, ProtocolMin: 4}) {
		t.Errorf("facts: %+v, %v", facts, err)
	}
	all, err := s.ask(t, http.MethodGet, "/operations", "")
	if err != nil || len(all.(*v1alpha1.NodeOperationList).Items) != 1 || all.(*v1alpha1.NodeOperationList).Items[0].Name != "up" {
		t.Errorf("operations: %+v, %v", all, err)
	}
	if _, err := s.accept(t.Context(), "artefact/timestamp.json/0"); err == nil || err.Error() != "artefact" {
		t.Errorf("an artefact: %v", err)
	}
	if _, err := s.accept(t.Context(), "console/vm"); err == nil {
		t.Error("a console was opened")
	}
}

// The questions of a device that is rescued, and the bytes of their answers, are frozen: the device
// may be years older. A difference here is a mistake in the change, never in the file.
func TestAnswersAreFrozen(t *testing.T) {
	raw, err := os.ReadFile("../../../../common/topic/testdata/rescue-http.txt")
	if err != nil {
		t.Fatal(err)
	}
	frozen := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if frozen[name], err = strconv.Unquote(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	a, s := newSystem()
	up := a.operations["up"]
	up.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperation"}
	up.Spec.Upgrade = &v1alpha1.UpgradeSpec{Version: "v1.4.0", Digest: "sha256:" + strings.Repeat("0", 64), AllowDowngrade: true}
	up.Spec.HealthTimeout = &metav1.Duration{Duration: time.Minute}
	up.Spec.Window = &v1alpha1.OperationWindow{Days: []v1alpha1.Weekday{"Sat"}, Start: "22:00", End: "04:00", TimeZone: "Europe/Berlin"}
	for _, name := range []string{"facts-GET", "operations-GET", "operations-PUT"} {
		conn, err := s.accept(t.Context(), protocol.RescueTarget)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(frozen[name])); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil || string(answer) != frozen[name+"-answer"] {
			t.Errorf("%s is answered by\n%q, %v, was\n%q", name, answer, err, frozen[name+"-answer"])
		}
	}
	if len(a.written) != 1 || !strings.HasPrefix(a.written[0], "up ") || !strings.Contains(a.written[0], `"attempts":1`) {
		t.Errorf("the report is written as %q", a.written)
	}
	if _, err := s.accept(t.Context(), frozen["artefact"]); err == nil || err.Error() != "artefact" {
		t.Errorf("the artefact: %v", err)
	}
}

// The Node is annotated once in a while for as long as the device asks for its upgrades.
func TestRescuedNodeIsAnnotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at midnight of 2000
		a, s := newSystem()
		for range 41 { // ten minutes
			if _, err := s.ask(t, http.MethodGet, "/operations", ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Second)
		}
		want := []string{
			`{"metadata":{"annotations":{"skerry.io/rescued-at":"2000-01-01T00:00:00Z"}}}`, `{"metadata":{"annotations":{"skerry.io/rescued-at":"2000-01-01T00:05:00Z"}}}`,
			`{"metadata":{"annotations":{"skerry.io/rescued-at":"2000-01-01T00:10:00Z"}}}`,
		}
		if !slices.Equal(a.annotated, want) {
			t.Errorf("patched by %v, want %v", a.annotated, want)
		}
	})
}

// Only reports of the device's own upgrades are written, and no report of a session that was
// replaced.
func TestReports(t *testing.T) {
	for name, c := range map[string]struct {
		method, path, body, epoch string
		code                      int // 0: it is written
	}{
		"progress":        {http.MethodPut, "/operations/up?uid=up", `{"attempts":1}`, "", 0},
		"of this session": {http.MethodPut, "/operations/up?uid=up", `{"attempts":1}`, "7", 0},
		"of an older one": {http.MethodPut, "/operations/up?uid=up", `{"attempts":1}`, "8", http.StatusConflict},
		"another uid":     {http.MethodPut, "/operations/up?uid=x", `{}`, "", http.StatusConflict},
		"a reboot":        {http.MethodPut, "/operations/reboot?uid=reboot", `{}`, "", http.StatusConflict},
		"another node's":  {http.MethodPut, "/operations/theirs?uid=theirs", `{}`, "", http.StatusConflict},
		"no status":       {http.MethodPut, "/operations/up?uid=up", `[]`, "", http.StatusBadRequest},
		"no operation":    {http.MethodPut, "/operations/none?uid=up", `{}`, "", http.StatusServiceUnavailable},
		"a deletion":      {http.MethodDelete, "/operations/up", ``, "", http.StatusNotFound},
		"a secret":        {http.MethodGet, "/api/v1/secrets", ``, "", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newSystem()
			a.epoch = c.epoch
			_, err := s.ask(t, c.method, c.path, c.body)
			if c.code == 0 {
				if err != nil || len(a.written) != 1 || !strings.HasPrefix(a.written[0], "up ") || !strings.Contains(a.written[0], `"attempts":1`) {
					t.Errorf("%v; written: %v", err, a.written)
				}
				return
			}
			if err == nil || codeOf(err) != c.code || !slices.Equal(a.written, nil) {
				t.Errorf("want %d, got %v; written: %v", c.code, err, a.written)
			}
		})
	}
}

// Where nobody can tell whether the node has a newer session, no report is written.
func TestReportWithoutTheLease(t *testing.T) {
	a, s := newSystem()
	a.broken = true
	if _, err := s.ask(t, http.MethodPut, "/operations/up?uid=up", `{"attempts":1}`); err == nil || codeOf(err) != http.StatusServiceUnavailable || len(a.written) > 0 {
		t.Errorf("%v; written: %v", err, a.written)
	}
}

// However many upgrades a device has had, the answer has those that have not ended.
func TestOperationsInOrder(t *testing.T) {
	a, s := newSystem()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2 * maxOperations {
		o := *a.operations["up"]
		o.Name, o.CreationTimestamp = fmt.Sprintf("ended-%03d", i), metav1.NewTime(began.Add(time.Duration(i)*time.Hour))
		o.Status.CompletedAt = &o.CreationTimestamp
		if i == 1 {
			o.Name, o.Spec.Retry = "again", 1
		}
		a.operations[o.Name] = &o
	}
	a.operations["up"].CreationTimestamp = metav1.NewTime(began.AddDate(1, 0, 0))
	all, err := s.ask(t, http.MethodGet, "/operations", "")
	if err != nil {
		t.Fatal(err)
	}
	items := all.(*v1alpha1.NodeOperationList).Items
	if len(items) != maxOperations || items[0].Name != "again" || items[1].Name != "up" || items[2].Name != "ended-127" {
		t.Errorf("%d operations, first %s, %s, %s", len(items), items[0].Name, items[1].Name, items[2].Name)
	}
}

// A device can't fill cloudcore's log: a path that is refused is cut.
func TestRefusedPathIsCut(t *testing.T) {
	_, s := newSystem()
	var logged string
	logger := funcr.New(func(_, args string) { logged += args }, funcr.Options{Verbosity: 2})
	near, far := net.Pipe()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.answer(logger, far)
	}()
	if _, err := fmt.Fprintf(near, "GET /%s HTTP/1.1\r\nHost: cloudcore\r\n\r\n", strings.Repeat("x", 20000)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(near), nil)
	if err != nil || answer.StatusCode != http.StatusNotFound {
		t.Errorf("%v, %v", answer, err)
	}
	_ = near.Close()
	<-answered
	if len(logged) > 1000 || !strings.Contains(logged, "/xxx") {
		t.Errorf("logged %d bytes: %.100s", len(logged), logged)
	}
}
