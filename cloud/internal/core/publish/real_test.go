package publish_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// system is a cloudcore's way down at a real kube-apiserver, with the rights of its
// manifests and no others.
type system struct {
	plane     *cluster.ControlPlane
	admin     kubernetes.Interface
	publisher *publish.Publisher
	objects   *kube.ObjectWatches
	informers *kube.Informers
}

func newSystem(t *testing.T) *system {
	t.Helper()
	return newSystemAt(t, cluster.Run(t))
}

// newOwnSystem is newSystem at a kube-apiserver that the test may kill and restore.
func newOwnSystem(t *testing.T) *system {
	t.Helper()
	return newSystemAt(t, cluster.Own(t))
}

func newSystemAt(t *testing.T, plane *cluster.ControlPlane) *system {
	t.Helper()
	plane.Apply(t, "manifests/cloudcore")
	return serveAt(t, plane, plane.ServiceAccount(t, "skerry-system", "cloudcore"))
}

// replica is another cloudcore at the same kube-apiserver.
func (r *system) replica(t *testing.T) *system {
	return serveAt(t, r.plane, r.plane.ServiceAccount(t, "skerry-system", "cloudcore"))
}

// serveAt runs a way down until the test ends.
func serveAt(t *testing.T, plane *cluster.ControlPlane, config *rest.Config) *system {
	t.Helper()
	client, err := kube.NewClient(config, kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	access := kube.NewAccess(client.Kubernetes())
	informers := kube.NewInformers(client)
	objects, err := kube.NewObjectWatches(client, access)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return client.Revisions().Run(ctx) })
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return objects.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &system{plane, plane.Client(), publish.New(informers.Requested(), objects, access, publish.DefaultQuotas()), objects, informers}
}

func (r *system) edge(t *testing.T, node string) *edge {
	e := newEdge(t)
	e.Name, e.settle = types.NodeName(node), func() {}
	return e
}

func (e *edge) holds(resource string, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for gvr, objects := range e.objects {
		for key := range objects {
			if gvr.Resource == resource && key.Name == name {
				return true
			}
		}
	}
	return false
}

func (e *edge) isSynced(ids ...uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id uint64) bool { return !e.synced[id] })
}

func (e *edge) refusal(id uint64) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refused[id]
}

func (r *system) pod(t *testing.T, namespace, name, node string, configMap, secret string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "example.test/none:1"}},
		Volumes: []corev1.Volume{
			{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}},
		},
	}}
	p, err := r.admin.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestReal(t *testing.T) {
	r := newSystem(t)
	ns := r.plane.Namespace(t)
	ctx := t.Context()
	for _, node := range []string{"edge1", "edge2"} {
		r.plane.AddNode(t, node)
		for kind, create := range map[string]func(string) error{
			"cm": func(name string) error {
				_, err := r.admin.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "1"}},
					metav1.CreateOptions{})
				return err
			},
			"secret": func(name string) error {
				_, err := r.admin.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": "1"}},
					metav1.CreateOptions{})
				return err
			},
		} {
			if err := create(kind + "-of-" + node); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.pod(t, ns, "theirs", "edge2", "cm-of-edge2", "secret-of-edge2")

	e := r.edge(t, "edge1")
	single := func(id uint64, resource, name string) *topicpb.Interest {
		return &topicpb.Interest{Id: id, Resource: &topicpb.Resource{Version: "v1", Resource: resource}, Namespace: ns, FieldSelector: "metadata.name=" + name}
	}
	e.connect(r.publisher, podsOf(1, "edge1"), dependencies(2), allServices(3),
		&topicpb.Interest{Id: 4, Resource: resource(nodes), FieldSelector: "metadata.name=edge1"},
		&topicpb.Interest{Id: 5, Resource: &topicpb.Resource{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}},
		&topicpb.Interest{Id: 6, Resource: &topicpb.Resource{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}},
		&topicpb.Interest{Id: 7, Resource: &topicpb.Resource{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"}, FieldSelector: "metadata.name=edge1"},
		// Objects of edge2 alone:
		podsOf(11, "edge2"), single(12, "secrets", "secret-of-edge2"), single(13, "configmaps", "cm-of-edge2"),
		&topicpb.Interest{Id: 14, Resource: resource(nodes), FieldSelector: "metadata.name=edge2"},
		&topicpb.Interest{Id: 15, Resource: resource(kube.Pods)},
		&topicpb.Interest{Id: 16, Resource: resource(kube.Secrets), Namespace: ns},
	)
	asked := time.Now()
	poll.True(t, "the kubelet's interests are synced", func() bool { return e.isSynced(1, 2, 3, 4, 5, 6, 7) })
	t.Logf("synced after %v", time.Since(asked))
	if !e.holds("nodes", "edge1") || !e.holds("services", "kubernetes") {
		t.Error("the node or the kubernetes service is missing")
	}

	t.Run("a pod comes with its ConfigMap and Secret", func(t *testing.T) {
		start := time.Now()
		r.pod(t, ns, "mine", "edge1", "cm-of-edge1", "secret-of-edge1")
		poll.True(t, "the pod is there", func() bool { return e.holds("pods", "mine") })
		t.Logf("after %v", time.Since(start))
		if !e.holds("configmaps", "cm-of-edge1") || !e.holds("secrets", "secret-of-edge1") {
			t.Error("the pod came before what it needs")
		}
	})
	t.Run("a ConfigMap changes", func(t *testing.T) {
		start := time.Now()
		cm, err := r.admin.CoreV1().ConfigMaps(ns).Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm-of-edge1"}, Data: map[string]string{"k": "2"}},
			metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		poll.True(t, "the change is there", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			c := e.objects[kube.ConfigMaps][kube.Key{Namespace: ns, Name: "cm-of-edge1"}]
			return c != nil && c.ResourceVersion == cm.ResourceVersion
		})
		t.Logf("after %v", time.Since(start))
	})
	t.Run("two nodes share the watch of a ConfigMap", func(t *testing.T) {
		other := r.edge(t, "edge2")
		other.connect(r.publisher, podsOf(1, "edge2"), dependencies(2))
		poll.True(t, "edge2 is synced", func() bool { return other.isSynced(1, 2) })
		before := r.objects.Len()
		r.pod(t, ns, "also", "edge2", "cm-of-edge1", "secret-of-edge1")
		poll.True(t, "the pod is there", func() bool {
			return other.holds("pods", "also") && other.holds("configmaps", "cm-of-edge1") && other.holds("secrets", "secret-of-edge1")
		})
		if got := r.objects.Len(); got != before {
			t.Errorf("%d watches of single objects, before %d", got, before)
		}
		other.disconnect()
	})
	t.Run("custom resources", func(t *testing.T) {
		r.plane.ApplyObjects(t, widgets()...)
		interests := kubeletInterests("edge1")
		interests = append(interests, &topicpb.Interest{Id: 20, Resource: &topicpb.Resource{Group: "example.test", Version: "v1", Resource: "widgets"}})
		other := r.edge(t, "edge1")
		other.connect(r.publisher, interests...)
		cluster.Eventually(t, "the kind is served", func(context.Context) error {
			return manifest.Apply(ctx, r.plane.Admin(), object(`{"apiVersion":"example.test/v1","kind":"Widget","metadata":{"name":"w","namespace":"`+ns+`"},"spec":{"size":3}}`))
		})
		poll.True(t, "the widget is there", func() bool { return other.holds("widgets", "w") && other.isSynced(20) })
		var got struct {
			Metadata map[string]any
			Spec     struct{ Size int }
		}
		c := other.objects[schema.GroupVersionResource{Group: "example.test", Version: "v1", Resource: "widgets"}][kube.Key{Namespace: ns, Name: "w"}]
		if err := json.Unmarshal(c.Object, &got); err != nil || got.Spec.Size != 3 || got.Metadata["managedFields"] != nil {
			t.Errorf("%s: %v", c.Object, err)
		}
		other.disconnect()
	})
	t.Run("what is another node's is refused", func(t *testing.T) {
		poll.True(t, "all are refused", func() bool {
			for id := uint64(11); id <= 16; id++ {
				if e.refusal(id) != "Forbidden" {
					return false
				}
			}
			return true
		})
		for _, held := range []struct{ resource, name string }{{"pods", "theirs"}, {"secrets", "secret-of-edge2"}, {"configmaps", "cm-of-edge2"}, {"nodes", "edge2"}} {
			if e.holds(held.resource, held.name) {
				t.Errorf("edge1 got %s %s", held.resource, held.name)
			}
		}
	})
	t.Run("a resume without changes sends nothing", func(t *testing.T) {
		e.disconnect()
		interests := []*topicpb.Interest{podsOf(1, "edge1"), dependencies(2), allServices(3)}
		e.connect(r.publisher, interests...)
		poll.True(t, "synced again", func() bool { return e.isSynced(1, 2, 3) })
		for _, line := range e.takeLog() {
			if line[0] == '+' {
				t.Errorf("sent again: %s", line)
			}
		}
	})
	t.Run("the last pod goes, and what it needed", func(t *testing.T) {
		if err := r.admin.CoreV1().Pods(ns).Delete(ctx, "mine", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		poll.True(t, "all is gone", func() bool {
			return !e.holds("pods", "mine") && !e.holds("configmaps", "cm-of-edge1") && !e.holds("secrets", "secret-of-edge1")
		})
	})
	e.disconnect()
}

func object(text string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		panic(err)
	}
	return o
}

// widgets is a custom resource that nodes may read, and cloudcore for them.
func widgets() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{
		object(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.test"},"spec":{"group":"example.test",
			"scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,
			"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`),
		object(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"widgets","labels":{"skerry.io/aggregate-to-cloudcore":"true"}},
			"rules":[{"apiGroups":["example.test"],"resources":["widgets"],"verbs":["list","watch"]}]}`),
		object(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"widgets"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"widgets"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:nodes"}]}`),
	}
}
