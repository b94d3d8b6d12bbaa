package operationset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain/operationset"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// apiserver answers as kube-apiserver does: with versions, preconditions and conflicts. Its watches
// are the stores.
type apiserver struct {
	t      *testing.T
	events *fake.Clientset
	stores stores

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]any // by path
	requests map[string]int            // by method and collection
}

// stores are the collections that the controller opens.
type stores struct{ Sets, Operations, Nodes, Pools *kube.Store }

func newAPIServer(t *testing.T) *apiserver {
	store := func(plural string) *kube.Store { return kube.NewStore(v1alpha1.Resource(plural)) }
	a := &apiserver{
		t: t, events: fake.NewClientset(), objects: map[string]map[string]any{}, requests: map[string]int{},
		stores: stores{
			Sets: store(v1alpha1.NodeOperationSets), Operations: store(v1alpha1.NodeOperations), Pools: store(v1alpha1.NodePools),
			Nodes: kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes")),
		},
	}
	for _, s := range []*kube.Store{a.stores.Sets, a.stores.Operations, a.stores.Pools, a.stores.Nodes} {
		if err := s.Replace(nil); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a *apiserver) Kubernetes() kubernetes.Interface { return a.events }

func (a *apiserver) Open(resource schema.GroupVersionResource) (store *kube.Store, release func()) {
	return map[string]*kube.Store{
		v1alpha1.NodeOperationSets: a.stores.Sets, v1alpha1.NodeOperations: a.stores.Operations, v1alpha1.NodePools: a.stores.Pools, "nodes": a.stores.Nodes,
	}[resource.Resource], func() {}
}

func answer(code int, reason metav1.StatusReason, o any) (*kube.Response, error) {
	if code >= 300 {
		o = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)}
	}
	body, err := json.Marshal(o)
	return &kube.Response{Code: code, Body: body}, err
}

func (a *apiserver) Do(_ context.Context, _ kube.Identity, r kube.Request) (*kube.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path, status := strings.CutSuffix(r.Path, "/status")
	collection, name := path[:strings.LastIndex(path, "/")], path[strings.LastIndex(path, "/")+1:]
	var body map[string]any
	if len(r.Body) > 0 {
		if err := json.Unmarshal(r.Body, &body); err != nil {
			return nil, err
		}
	}
	if r.Method == http.MethodPost {
		collection, name = path, body["metadata"].(map[string]any)["name"].(string)
		path = collection + "/" + name
	}
	a.requests[r.Method+" "+collection[strings.LastIndex(collection, "/")+1:]]++
	old := a.objects[path]
	if old == nil && r.Method != http.MethodPost {
		return answer(http.StatusNotFound, metav1.StatusReasonNotFound, nil)
	}
	differs := func(from map[string]any) bool {
		for _, key := range []string{"uid", "resourceVersion"} {
			if v, ok := from[key]; ok && v != old["metadata"].(map[string]any)[key] {
				return true
			}
		}
		return false
	}
	switch r.Method {
	case http.MethodGet:
		return answer(http.StatusOK, "", old)
	case http.MethodPost:
		if old != nil {
			return answer(http.StatusConflict, metav1.StatusReasonAlreadyExists, nil)
		}
		delete(body, "status")
		a.put(path, body)
	case http.MethodPut:
		if differs(body["metadata"].(map[string]any)) || !status {
			return answer(http.StatusConflict, metav1.StatusReasonConflict, nil)
		}
		a.put(path, merge(old, map[string]any{"status": nil}, map[string]any{"status": body["status"]}))
	case http.MethodPatch:
		if differs(body["metadata"].(map[string]any)) {
			return answer(http.StatusConflict, metav1.StatusReasonConflict, nil)
		}
		a.put(path, merge(old, body))
	case http.MethodDelete:
		if p, ok := body["preconditions"].(map[string]any); ok && differs(p) {
			return answer(http.StatusConflict, metav1.StatusReasonConflict, nil)
		}
		a.remove(path)
	}
	return answer(http.StatusOK, "", a.objects[path])
}

// merge is a merge patch of a copy.
func merge(old map[string]any, patches ...map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(old)
	for _, patch := range patches {
		for k, v := range patch {
			inner, isMap := v.(map[string]any)
			into, has := out[k].(map[string]any)
			switch {
			case v == nil:
				delete(out, k)
			case isMap && has:
				out[k] = merge(into, inner)
			default:
				out[k] = v
			}
		}
	}
	return out
}

func (a *apiserver) store(path string) *kube.Store {
	for plural, s := range map[string]*kube.Store{
		v1alpha1.NodeOperationSets: a.stores.Sets, v1alpha1.NodeOperations: a.stores.Operations, "nodes": a.stores.Nodes,
	} {
		if strings.Contains(path, "/"+plural+"/") {
			return s
		}
	}
	return nil
}

// put writes an object with its next version.
func (a *apiserver) put(path string, o map[string]any) {
	a.version++
	m := o["metadata"].(map[string]any)
	m["resourceVersion"] = fmt.Sprint(a.version)
	if m["uid"] == nil {
		m["uid"], m["creationTimestamp"] = fmt.Sprint("uid-", a.version), time.Now().UTC().Format(time.RFC3339)
	}
	a.objects[path] = o
	var object runtime.Object = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o)}
	if strings.HasPrefix(path, "/api/") {
		n := &corev1.Node{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, n); err != nil {
			a.t.Error(err)
		}
		object = n
	}
	if err := a.store(path).Put(object); err != nil {
		a.t.Error(err)
	}
}

func (a *apiserver) remove(path string) {
	delete(a.objects, path)
	a.store(path).Delete(kube.Key{Name: path[strings.LastIndex(path, "/")+1:]})
}

// write is put by a client.
func (a *apiserver) write(path string, o any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	text, err := json.Marshal(o)
	if err != nil {
		a.t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		a.t.Fatal(err)
	}
	a.put(path, object)
}

const (
	setPath       = "/apis/skerry.io/v1alpha1/nodeoperationsets/"
	operationPath = "/apis/skerry.io/v1alpha1/nodeoperations/"
)

// devices end all operations with success.
func (a *apiserver) devices() { a.end(ended(booted)) }

// end ends all operations that run.
func (a *apiserver) end(end v1alpha1.NodeOperationStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, o := range a.objects {
		if !strings.HasPrefix(path, operationPath) || o["status"] != nil {
			continue
		}
		text, _ := json.Marshal(end)
		var status map[string]any
		_ = json.Unmarshal(text, &status)
		a.put(path, merge(o, map[string]any{"status": status}))
	}
}

// Events name the device, who requested the operation, and its digest: that of the program which
// the device has found, or of the configuration's template.
func TestController_EventsNameTheDigest(t *testing.T) {
	digest := "sha256:" + strings.Repeat("2", 64)
	for name, c := range map[string]struct {
		template v1alpha1.NodeOperationTemplate
		found    *v1alpha1.UpgradeStatus
		want     []string
	}{
		"a version": {
			v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: "v1.4.0"}}, &v1alpha1.UpgradeStatus{Digest: digest},
			[]string{"Node/n1: OperationCreated: NodeOperationSet a: Upgrade v1.4.0, requested by alice", "NodeOperationSet/a: OperationFailed: n1: Upgrade v1.4.0 " + digest + ", requested by alice: RolledBack: "},
		},
		"a version of a digest": {
			v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: "v1.4.0", Digest: digest}}, &v1alpha1.UpgradeStatus{Digest: digest},
			[]string{"OperationCreated: NodeOperationSet a: Upgrade v1.4.0 " + digest + ", requested by alice", "OperationFailed: n1: Upgrade v1.4.0 " + digest + ", requested by alice: RolledBack: "},
		},
		"a version that no device has found": {
			v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: "v1.4.0"}}, nil,
			[]string{"OperationFailed: n1: Upgrade v1.4.0, requested by alice: RolledBack: "},
		},
		"a configuration": {
			v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationConfig, Config: &v1alpha1.ConfigSpec{Patch: "{}"}}, &v1alpha1.UpgradeStatus{},
			[]string{"OperationCreated: NodeOperationSet a: Config of template ", "OperationFailed: n1: Config of template "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPIServer(t)
				a.write("/api/v1/nodes/n1", &corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{v1alpha1.EdgeOwnLabel: ""}},
					Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}},
				})
				a.write(setPath+"a", &v1alpha1.NodeOperationSet{
					TypeMeta:   metav1.TypeMeta{APIVersion: "skerry.io/v1alpha1", Kind: "NodeOperationSet"},
					ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1, Annotations: map[string]string{v1alpha1.RequestedByAnnotation: "alice"}},
					Spec:       v1alpha1.NodeOperationSetSpec{Template: c.template, NodeSelector: &metav1.LabelSelector{}},
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- controller.NewManager(a, a).Run(ctx, operationset.Controller()) }()
				time.Sleep(10 * time.Second)
				status := ended(v1alpha1.OperationRolledBack)
				status.Upgrade = c.found
				a.end(status)
				time.Sleep(10 * time.Second)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				found := a.recorded()
				for _, want := range c.want {
					if !strings.Contains(found, want) {
						t.Errorf("no event %q in\n%s", want, found)
					}
				}
			})
		})
	}
}

// recorded are the events, one a line.
func (a *apiserver) recorded() (lines string) {
	events, err := a.events.CoreV1().Events("").List(a.t.Context(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, e := range events.Items {
		lines += e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name + ": " + e.Reason + ": " + e.Message + "\n"
	}
	return lines
}

// The controller carries a set out to its end, with a bounded number of requests a device, makes no
// request without a reason, and leaves no object when the set is gone.
func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 20
		a := newAPIServer(t)
		for i := range nodes {
			name := fmt.Sprintf("n%d", i)
			a.write("/api/v1/nodes/"+name, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.EdgeOwnLabel: ""}},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}},
			})
		}
		spec := v1alpha1.NodeOperationSetSpec{Template: v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationReboot}, NodeSelector: &metav1.LabelSelector{}}
		canary(&spec)
		a.write(setPath+"a", &v1alpha1.NodeOperationSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: "skerry.io/v1alpha1", Kind: "NodeOperationSet"},
			ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1, Annotations: map[string]string{v1alpha1.RequestedByAnnotation: "alice"}}, Spec: spec,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- controller.NewManager(a, a).Run(ctx, operationset.Controller()) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		status := func() v1alpha1.NodeOperationSetStatus {
			a.mu.Lock()
			defer a.mu.Unlock()
			var s v1alpha1.NodeOperationSet
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.objects[setPath+"a"], &s); err != nil {
				t.Fatal(err)
			}
			return s.Status
		}
		for range 30 {
			time.Sleep(10 * time.Second)
			a.devices()
		}
		if s := status(); s.Done != 2 || s.Wave != "1/3" || s.Conditions[0].Message == "" {
			t.Errorf("while it soaks: %+v", s)
		}
		for range 400 {
			time.Sleep(10 * time.Second)
			a.devices()
		}
		if s := status(); s.Progress != "20/20" || s.Conditions[0].Reason != "Complete" {
			t.Errorf("the end: %+v", s)
		}
		a.mu.Lock()
		made := a.requests["POST nodeoperations"]
		perDevice := float64(made+a.requests["PATCH nodes"]+a.requests["GET nodes"]) / nodes
		statuses := a.requests["PUT nodeoperationsets"]
		clear(a.requests)
		a.mu.Unlock()
		if made != nodes || perDevice > 4 || statuses > 20 {
			t.Errorf("%d operations, %v requests a device, %d statuses", made, perDevice, statuses)
		}
		time.Sleep(24 * time.Hour)
		a.mu.Lock()
		if len(a.requests) > 0 {
			t.Errorf("when it was complete: %v", a.requests)
		}
		for path := range a.objects {
			if strings.HasPrefix(path, operationPath) {
				t.Errorf("%s is left", path)
			}
		}
		a.remove(setPath + "a")
		a.mu.Unlock()
		time.Sleep(time.Minute)
		a.mu.Lock()
		defer a.mu.Unlock()
		for path, o := range a.objects {
			if text, ok, _ := unstructured.NestedString(o, "metadata", "annotations", v1alpha1.OperationSetsAnnotation); ok {
				t.Errorf("%s has %s", path, text)
			}
		}
		found := a.recorded()
		for _, want := range []string{"Node/n7: OperationCreated: NodeOperationSet a: Reboot, requested by alice", "NodeOperationSet/a: WaveBegun: wave 2/3", "NodeOperationSet/a: Complete: 20 of 20"} {
			if !strings.Contains(found, want) {
				t.Errorf("no event %q in\n%s", want, found)
			}
		}
	})
}
