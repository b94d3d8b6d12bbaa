package drain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// node fakes a kube-apiserver that lists the pods of a node, a few at a time, and has the DaemonSet
// "here".
type node []corev1.Pod

const nodePage = 3

func (n node) RoundTrip(r *http.Request) (*http.Response, error) {
	var answer any
	code := http.StatusOK
	switch {
	case r.URL.Path == "/api/v1/pods":
		from := 0
		if at := r.URL.Query().Get("continue"); at != "" {
			if _, err := fmt.Sscan(at, &from); err != nil {
				return nil, err
			}
		}
		to := len(n)
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if r.URL.Query().Get("limit") != "" {
			if to = min(from+nodePage, len(n)); to < len(n) {
				list.Continue = fmt.Sprint(to)
			}
		}
		list.Items = n[from:to]
		answer = list
	case strings.HasSuffix(r.URL.Path, "/daemonsets/here"):
		answer = appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}}
	case strings.HasSuffix(r.URL.Path, "/daemonsets/gone"):
		code = http.StatusNotFound
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404}
	default:
		code = http.StatusForbidden
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

// The evicted pods are those that `kubectl drain` would evict: compared with its own code, which a
// test may link.
func TestLeavingAsKubectl(t *testing.T) {
	var all node
	controllers := map[string]*metav1.OwnerReference{
		"bare":    nil,
		"replica": {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"},
		"daemon":  {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "here"},
		"orphan":  {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "gone"},
		"foreign": {APIVersion: "example.com/v1", Kind: "DaemonSet", Name: "here"},
	}
	for name, c := range controllers {
		for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed} {
			for i := range 8 {
				p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%s-%d", name, strings.ToLower(string(phase)), i)}, Status: corev1.PodStatus{Phase: phase}}
				if c != nil {
					owner := *c
					owner.Controller = new(bool)
					*owner.Controller = true
					p.OwnerReferences = []metav1.OwnerReference{owner}
				}
				if i&1 != 0 {
					p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
				}
				if i&2 != 0 {
					p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: new(corev1.EmptyDirVolumeSource)}}}
				}
				if i&4 != 0 {
					p.DeletionTimestamp = &metav1.Time{}
				}
				all = append(all, p)
			}
		}
	}
	api := &rest.Config{Host: "http://api.invalid", Transport: all, QPS: -1} // kubectl asks for the DaemonSet of each pod
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		t.Fatal(err)
	}
	helper := &kubectl.Helper{Ctx: t.Context(), Client: client, Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1}
	want, errs := helper.GetPodsForDeletion("edge1")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	w, err := NewWorker(WorkerConfig{NodeName: "edge1", API: api})
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.leaving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(podNames(want.Pods()), podNames(got)); diff != "" {
		t.Errorf("kubectl's and ours differ (-kubectl +ours):\n%s", diff)
	}
	if len(got) == 0 || len(got) == len(all) {
		t.Errorf("%d of %d leave", len(got), len(all))
	}
}

// A pod whose DaemonSet can't be read is no orphan: no pod is evicted on a guess.
func TestLeavingUnknown(t *testing.T) {
	yes := true
	all := node{{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "p", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "secret", Controller: &yes}},
	}}}
	w, err := NewWorker(WorkerConfig{NodeName: "edge1", API: &rest.Config{Host: "http://api.invalid", Transport: all}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.leaving(t.Context()); err == nil || !strings.Contains(err.Error(), "default/p") {
		t.Errorf("the error is %v, and should name the pod", err)
	}
}

// late fakes a kube-apiserver with one pod that a ReplicaSet pins to the node. An eviction ends it
// at once, and the next one is created 3 s after it.
type late struct {
	mu     sync.Mutex
	number int
	from   time.Time
}

func (l *late) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var answer any
	code := http.StatusOK
	switch {
	case r.Method == http.MethodPost:
		l.number, l.from = l.number+1, time.Now().Add(3*time.Second)
		answer, code = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: 201}, http.StatusCreated
	default:
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		name := fmt.Sprintf("web-%d", l.number)
		if at := r.URL.Query().Get("fieldSelector"); !time.Now().Before(l.from) && (!strings.Contains(at, "metadata.name=") || strings.Contains(at, "metadata.name="+name)) {
			owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(bool)}
			*owner.Controller = true
			list.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{owner}}}}
		}
		answer = list
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

// A node is not drained while a pinned pod is recreated shortly after each check.
func TestDrain_05_PinnedPodThatComesBackLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := NewWorker(WorkerConfig{NodeName: "edge1", API: &rest.Config{Host: "http://api.invalid", Transport: new(late)}})
		if err != nil {
			t.Fatal(err)
		}
		res := w.Attempt(t.Context(), time.Hour, Progress{Blocked: func([]v1alpha1.BlockedPod) {}, Evicted: func(*corev1.Pod) {}})
		if res.Err == nil || len(res.Blocked) != 1 || res.Blocked[0].Reason != v1alpha1.BlockedPinned {
			t.Errorf("%v, blocked %+v; want one that is pinned", res.Err, res.Blocked)
		}
	})
}

func podNames(pods []corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}
