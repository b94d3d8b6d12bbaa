package drain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// nodes is a cluster's other nodes, as kube-apiserver lists them. This node has no pods.
type nodes []corev1.Node

func (n nodes) RoundTrip(r *http.Request) (*http.Response, error) {
	var list any = corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: n}
	if r.URL.Path == "/api/v1/pods" {
		list = corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	}
	body, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

func TestCheck(t *testing.T) {
	node := func(cordoned bool, by string, managers ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.CordonAnnotation: by}}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		for _, m := range managers {
			n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: m, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
			})
		}
		return n
	}
	unready := node(false, "")
	unready.Status.Conditions[0].Status = corev1.ConditionUnknown
	tests := map[string]struct {
		others nodes
		alone  bool
	}{
		"no other node":                      {nil, true},
		"one that takes pods":                {nodes{node(false, "")}, false},
		"one that is not Ready":              {nodes{unready}, true},
		"one that is being drained itself":   {nodes{node(true, "edgecore", "edgecore-drain")}, false},
		"managedFields that were stripped":   {nodes{node(true, "edgecore")}, false},
		"an administrator's cordon":          {nodes{node(true, "", "kubectl-cordon")}, true},
		"an administrator's cordon on ours":  {nodes{node(true, "edgecore", "kubectl")}, true},
		"the second of two that could do so": {nodes{unready, node(false, "")}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, err := drain.NewWorker(drain.WorkerConfig{NodeName: "edge1", API: &rest.Config{Host: "http://api.invalid", Transport: tc.others}})
			if err != nil {
				t.Fatal(err)
			}
			if res := w.Check(t.Context()); res.Err != nil || res.Alone != tc.alone {
				t.Errorf("alone: %t, %v; want %t", res.Alone, res.Err, tc.alone)
			}
		})
	}
}

// requester is the way to the cloud.
type requester func(*topicpb.APIRequest) (*topicpb.APIResponse, error)

func (r requester) Request(_ context.Context, q *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	return r(q)
}

func TestThrough(t *testing.T) {
	var asked []string
	tests := map[string]struct {
		answer *topicpb.APIResponse
		err    error
		code   int // 0: an error
		after  string
	}{
		"an answer":                    {answer: &topicpb.APIResponse{Code: 404, RetryAfter: "9"}, code: 404},
		"a budget":                     {answer: &topicpb.APIResponse{Code: 429, RetryAfter: "10"}, code: 429, after: "10"},
		"no link":                      {err: apierrors.NewServiceUnavailable("no link"), code: 503},
		"the cloud is slow":            {answer: &topicpb.APIResponse{Code: 504, RetryAfter: "1"}, code: 504},
		"what is no answer in any way": {err: errors.New("broken")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			through := drain.Through(requester(func(q *topicpb.APIRequest) (*topicpb.APIResponse, error) {
				asked = append(asked, q.GetMethod()+" "+q.GetPath()+"?"+q.GetQuery()+" "+string(q.GetBody()))
				return tc.answer, tc.err
			}))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, through.Host+"/api/v1/a%2Fb?x=1", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := through.Transport.RoundTrip(r)
			if (err != nil) != (tc.code == 0) {
				t.Fatal(err)
			}
			if diff := cmp.Diff("POST /api/v1/a%2Fb?x=1 body", asked[len(asked)-1]); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if err != nil {
				return
			}
			defer answer.Body.Close()
			if answer.StatusCode != tc.code || answer.Header.Get("Retry-After") != tc.after {
				t.Errorf("code %d, after %q", answer.StatusCode, answer.Header.Get("Retry-After"))
			}
		})
	}
}
