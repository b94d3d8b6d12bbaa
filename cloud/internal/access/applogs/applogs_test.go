package applogs_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/cloud/internal/access/applogs"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/applog"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// sink keeps the lines that it takes.
type sink struct {
	fails   error
	lines   []string
	dropped int64
}

func (s *sink) Write(_ context.Context, o applogs.Origin) error {
	if s.fails != nil {
		return s.fails
	}
	s.dropped += o.Dropped
	for _, l := range o.Lines {
		s.lines = append(s.lines, o.Node+" "+l.Text)
	}
	return nil
}

func apps(t *testing.T) *kube.Store {
	t.Helper()
	store := kube.NewStore(v1alpha1.Resource(v1alpha1.EdgeApps))
	var all []runtime.Object
	for name, wants := range map[string]bool{"speaks": true, "silent": false} {
		all = append(all, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "EdgeApp", "metadata": map[string]any{"namespace": "ns", "name": name, "uid": name + "-uid"},
			"spec": map[string]any{"collectLogs": wants},
		}})
	}
	if err := store.Replace(all); err != nil {
		t.Fatal(err)
	}
	return store
}

// Lines that came already are left out, also where a batch begins with them; lines that the sink
// does not take are not acknowledged, and those that it refuses for good hold no others back.
func TestEachLineOnce(t *testing.T) {
	to := &sink{}
	l := applogs.New(to, apps(t), quota.Rate{})
	send := func(app, uid string, dropped int64, ends ...int64) (code int32, through int64) {
		t.Helper()
		b := applog.Batch{AppUID: uid, Pod: "p", PodUID: "pod-uid", Container: "c", Dropped: dropped}
		for _, end := range ends {
			b.Lines = append(b.Lines, applog.Line{End: end, Text: string(rune('a' + end))})
		}
		body, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		a, ok := l.Serve(t.Context(), "edge1", &topicpb.APIRequest{Method: http.MethodPost, Path: applog.Path("ns", app), Body: body})
		if !ok {
			t.Fatal("it is not served")
		}
		var answer applog.Answer
		if a.Code == http.StatusOK {
			if err := json.Unmarshal(a.Body, &answer); err != nil {
				t.Fatal(err)
			}
		}
		return a.Code, answer.Through
	}
	for i, step := range []struct {
		fails   error
		app     string
		dropped int64
		ends    []int64
		code    int32
		through int64
		have    []string
	}{
		{app: "speaks", ends: []int64{1, 2}, code: 200, through: 2, have: []string{"edge1 b", "edge1 c"}},
		{app: "speaks", ends: []int64{1, 2}, code: 200, through: 2, have: []string{"edge1 b", "edge1 c"}},
		{fails: errors.New("not now"), app: "speaks", dropped: 4, ends: []int64{2, 3}, code: 503, have: []string{"edge1 b", "edge1 c"}},
		{app: "speaks", dropped: 4, ends: []int64{3, 4}, code: 200, through: 4, have: []string{"edge1 b", "edge1 c", "edge1 d", "edge1 e"}},
		{app: "speaks", dropped: 4, ends: []int64{3, 4, 5}, code: 200, through: 5, have: []string{"edge1 b", "edge1 c", "edge1 d", "edge1 e", "edge1 f"}},
		{fails: otlp.ErrRefused, app: "speaks", ends: []int64{6}, code: 200, through: 6, have: []string{"edge1 b", "edge1 c", "edge1 d", "edge1 e", "edge1 f"}},
		{app: "silent", ends: []int64{9}, code: 403, have: []string{"edge1 b", "edge1 c", "edge1 d", "edge1 e", "edge1 f"}},
		{app: "unknown", ends: []int64{9}, code: 403, have: []string{"edge1 b", "edge1 c", "edge1 d", "edge1 e", "edge1 f"}},
		{app: "speaks", ends: []int64{9, 8}, code: 400, have: []string{"edge1 b", "edge1 c", "edge1 d", "edge1 e", "edge1 f"}},
	} {
		to.fails = step.fails
		code, through := send(step.app, step.app+"-uid", step.dropped, step.ends...)
		if code != step.code || through != step.through || !slices.Equal(to.lines, step.have) {
			t.Errorf("step %d: %d through %d, the sink has %q", i, code, through, to.lines)
		}
	}
	if to.dropped != 4 {
		t.Errorf("%d are said to be dropped, want 4", to.dropped)
	}
	if code, _ := send("speaks", "another-uid", 0, 20); code != http.StatusForbidden {
		t.Errorf("an application that was made again: %d", code)
	}
}

// A path that is not of logs is another's business.
func TestPath(t *testing.T) {
	for path, want := range map[string]bool{
		applog.Path("ns", "app"): true, applog.Path("ns", "a/b"): false, "/apis/skerry.io/v1alpha1/namespaces/ns/edgeapps/app": false, "/apis/skerry.io/v1alpha1/namespaces//edgeapps/app/logs": false,
	} {
		if _, _, ok := applog.Parse(path); ok != want {
			t.Errorf("%s: %v", path, ok)
		}
	}
}
