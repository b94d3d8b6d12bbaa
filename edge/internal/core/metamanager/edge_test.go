package metamanager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// edge is a Manager that runs against a cloud.
type edge struct {
	*metamanager.Manager
	t      testing.TB
	cloud  *cloud
	path   string
	config metamanager.Config
	store  *store.Store
	stop   func()
}

// memoryDir is a directory without sync latency, if there is one: the tests here are of order,
// those of the store are of disks.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "skerry-meta-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newEdge(t testing.TB, c *cloud, config metamanager.Config) *edge {
	t.Helper()
	config.NodeName = "edge1"
	e := &edge{t: t, cloud: c, path: memoryDir(t) + "/edge.db", config: config}
	e.start()
	t.Cleanup(func() { e.stop() })
	return e
}

func (e *edge) start() {
	e.t.Helper()
	s, err := store.Open(context.Background(), store.Config{Path: e.path})
	if err != nil {
		e.t.Fatal(err)
	}
	e.store = s
	e.config.Store = s
	e.Manager = metamanager.New(e.config)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Manager.Serve(ctx, e.cloud) }()
	e.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			e.t.Errorf("Run: %v", err)
		}
		if err := s.Close(); err != nil {
			e.t.Error(err)
		}
		e.stop = func() {}
	}
	<-e.cloud.ready
}

// restart simulates a reboot: the state of the process is lost, and so are the cloud's undelivered
// messages.
func (e *edge) restart() {
	e.t.Helper()
	e.cloud.mu.Lock()
	e.cloud.up = false
	e.cloud.mu.Unlock()
	e.stop()
	for len(e.cloud.toEdge) > 0 {
		<-e.cloud.toEdge
	}
	e.start()
}

func selection(resourceName string, terms ...string) object.Selection {
	s := object.Selection{Resource: resource(resourceName), Labels: labels.Everything(), Fields: fields.Everything()}
	for _, term := range terms {
		s.Fields = fields.ParseSelectorOrDie(term)
	}
	return s
}

func ownPods() object.Selection { return selection("pods", "spec.nodeName=edge1") }

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		Spec:     corev1.PodSpec{NodeName: "edge1", Containers: []corev1.Container{{Name: "main", Image: "pause"}}},
		Status:   corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// uses makes a pod refer to ConfigMaps.
func uses(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, n := range names {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: n, VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: n}},
			}})
		}
	}
}

func configMap(data string) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{"k": data}}
}

// hold makes the edge hold its pods, as a kubelet does.
func (e *edge) holdPods() {
	e.t.Helper()
	if _, _, err := e.List(context.Background(), ownPods(), metamanager.ListOptions{FromReflector: true}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *edge) pod(name string) *corev1.Pod {
	e.t.Helper()
	o, err := e.Get(context.Background(), ref("pods", "default", name), metamanager.Caller{Kubelet: true})
	if err != nil {
		e.t.Fatal(err)
	}
	obj, err := object.Decode(o)
	if err != nil {
		e.t.Fatal(err)
	}
	return obj.(*corev1.Pod)
}

// patchStatus acts as a kubelet when a pod's state has changed.
func (e *edge) patchStatus(name, message string) error {
	uid := e.pod(name).UID
	body := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"message":%q,"conditions":[{"type":"Ready","status":"True","message":%q}]}}`,
		uid, message, message)
	_, err := e.Write(context.Background(), metamanager.Write{
		Verb: "patch", Ref: ref("pods", "default", name), Subresource: "status", PatchType: types.StrategicMergePatchType, Body: []byte(body),
		Caller: metamanager.Caller{Kubelet: true},
	})
	return err
}

// deletePod acts as a kubelet when all containers of a pod have ended.
func (e *edge) deletePod(name string) error {
	body := fmt.Appendf(nil, `{"gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, e.pod(name).UID)
	_, err := e.Write(context.Background(), metamanager.Write{
		Verb: "delete", Ref: ref("pods", "default", name), Body: body, Caller: metamanager.Caller{Kubelet: true},
	})
	return err
}

func (e *edge) event(name string, count int) error {
	ev := &corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Reason: "Started", Message: "message of " + name, Count: int32(count),
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "a", Namespace: "default", UID: "u"},
	}
	body, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	_, err = e.Write(context.Background(), metamanager.Write{Verb: "create", Ref: object.Ref{Resource: resource("events"), Namespace: "default"}, Body: body})
	return err
}

func (e *edge) repeatEvent(name string, count int) error {
	_, err := e.Write(context.Background(), metamanager.Write{
		Verb: "patch", Ref: ref("events", "default", name), PatchType: types.StrategicMergePatchType, Body: fmt.Appendf(nil, `{"count":%d}`, count),
	})
	return err
}

// answerRecording answers every request with 200 and notes the resourceVersion of its body.
func answerRecording(sent *[]string) func(*topicpb.APIRequest) *topicpb.APIResponse {
	return func(r *topicpb.APIRequest) *topicpb.APIResponse {
		obj, err := object.DecodeRaw(r.Body)
		if err != nil {
			*sent = append(*sent, err.Error())
		} else {
			*sent = append(*sent, obj.(metav1.Object).GetResourceVersion())
		}
		return &topicpb.APIResponse{Code: 200}
	}
}

// eventIn decodes the body of an event's write. Fields that the cloud sets are not in it.
func eventIn(t testing.TB, body []byte) *corev1.Event {
	obj, err := object.DecodeRaw(body)
	e, ok := obj.(*corev1.Event)
	if err != nil || !ok {
		t.Errorf("event %q: %T, %v", body, obj, err)
		return &corev1.Event{}
	}
	if e.UID != "" || !e.CreationTimestamp.IsZero() || e.ResourceVersion != "" {
		t.Errorf("event %s/%s goes up with uid %q, made at %v, version %q", e.Namespace, e.Name, e.UID, e.CreationTimestamp, e.ResourceVersion)
	}
	return e
}
