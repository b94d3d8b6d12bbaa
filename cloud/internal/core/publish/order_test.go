package publish_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

var routes = schema.GroupVersionResource{Group: v1alpha1.Group, Version: "v1alpha1", Resource: v1alpha1.StaticRoutes}

// behind is another cloudcore, whose way to kube-apiserver leads through a fault proxy.
func (r *system) behind(t *testing.T) (*system, *faultproxy.Proxy) {
	t.Helper()
	proxy, host := r.plane.FaultProxy(t)
	config := r.plane.ServiceAccount(t, "skerry-system", "cloudcore")
	config.Host = host
	return serveAt(t, r.plane, config), proxy
}

// late is a watch cache that is 20 s behind.
func late(*http.Request) faultproxy.Lag { return faultproxy.Lag{By: 20 * time.Second} }

func (r *system) configMap(t *testing.T, ns, name, value string) *corev1.ConfigMap {
	t.Helper()
	maps := r.admin.CoreV1().ConfigMaps(ns)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": value}}
	out, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{})
	if err != nil {
		if out, err = maps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func (r *system) secret(t *testing.T, ns, name, value string) {
	t.Helper()
	secrets := r.admin.CoreV1().Secrets(ns)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": value}}
	if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		if _, err := secrets.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *system) deletePod(t *testing.T, ns, name string) {
	t.Helper()
	if err := r.admin.CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
}

func (r *system) route(t *testing.T, name, gateway string) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(r.plane.Admin()).Resource(routes)
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": routes.GroupVersion().String(), "kind": "StaticRoute", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"subnet": "172.20.0.0/16", "gateway": gateway},
	}}
	if _, err := client.Apply(t.Context(), name, o, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
		t.Fatal(err)
	}
}

// holdings lists the objects that an edge of a node should hold, by name, each with the field that
// tells its versions apart.
func (r *system) holdings(ctx context.Context, ns, node string) (map[string]string, error) {
	out := map[string]string{}
	pods, err := r.admin.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		out["pods/"+p.Name] = string(p.UID) + " " + p.ResourceVersion
		account, err := r.admin.CoreV1().ServiceAccounts(ns).Get(ctx, p.Spec.ServiceAccountName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		out["serviceaccounts/"+account.Name] = string(account.UID) + " " + account.ResourceVersion
		for _, v := range p.Spec.Volumes {
			switch {
			case v.ConfigMap != nil:
				cm, err := r.admin.CoreV1().ConfigMaps(ns).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				out["configmaps/"+cm.Name] = string(cm.UID) + " " + cm.ResourceVersion
			case v.Secret != nil:
				s, err := r.admin.CoreV1().Secrets(ns).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				out["secrets/"+s.Name] = string(s.UID) + " " + s.ResourceVersion
			}
		}
	}
	list, err := dynamic.NewForConfigOrDie(r.plane.Admin()).Resource(routes).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		gateway, _, _ := unstructured.NestedString(o.Object, "spec", "gateway")
		out["staticroutes/"+o.GetName()] = string(o.GetUID()) + " " + gateway
	}
	return out, nil
}

// holdings lists the edge's objects, without those that every pod has of its ServiceAccount.
func (e *edge) holdings() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]string{}
	for gvr, objects := range e.objects {
		for key, c := range objects {
			if key.Name == "kube-root-ca.crt" {
				continue
			}
			version := c.ResourceVersion
			if gvr == routes {
				u := &unstructured.Unstructured{}
				if err := u.UnmarshalJSON(c.Object); err != nil {
					e.t.Error(err)
				}
				version, _, _ = unstructured.NestedString(u.Object, "spec", "gateway")
			}
			out[gvr.Resource+"/"+key.Name] = c.Uid + " " + version
		}
	}
	return out
}

// converges waits until an edge holds exactly its cluster's objects.
func (r *system) converges(t *testing.T, what, ns string, e *edge) {
	t.Helper()
	start := time.Now()
	cluster.Eventually(t, what, func(ctx context.Context) error {
		want, err := r.holdings(ctx, ns, string(e.Name))
		if err != nil {
			return err
		}
		if d := cmp.Diff(want, e.holdings()); d != "" {
			return fmt.Errorf("(-cluster +edge)\n%s", d)
		}
		return nil
	})
	t.Logf("%s: after %v", what, time.Since(start).Round(10*time.Millisecond))
}

func (e *edge) version(gvr schema.GroupVersionResource, ns, name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.objects[gvr][kube.Key{Namespace: ns, Name: name}]; c != nil {
		return c.ResourceVersion
	}
	return ""
}

// wanted lists the interests of an edge of these tests.
func wanted(node types.NodeName) []*topicpb.Interest {
	return []*topicpb.Interest{podsOf(1, string(node)), dependencies(2), {Id: 3, Resource: resource(routes)}}
}

// etcd is restored to an older copy while cloudcore runs, with one edge linked and one away. Both
// converge to the cluster's new state, without an operator.
func TestOrder_00_EtcdFromAnOlderCopyConverges(t *testing.T) {
	r := newOwnSystem(t)
	r.plane.Apply(t, "manifests/crds")
	ns := r.plane.Namespace(t)
	edges := []*edge{r.edge(t, "edge1"), r.edge(t, "edge2")}
	linked, away := edges[0], edges[1]
	pod := func(e *edge, name string) { r.pod(t, ns, string(e.Name)+"-"+name, string(e.Name), "config", "secret") }
	r.configMap(t, ns, "config", "v1")
	r.secret(t, ns, "secret", "v1")
	r.route(t, "office", "192.0.2.1")
	r.route(t, "deleted-later", "192.0.2.1")
	for _, e := range edges {
		r.plane.AddNode(t, string(e.Name))
		pod(e, "stays")
		pod(e, "again")
		pod(e, "goes")
		e.connect(r.publisher, wanted(e.Name)...)
	}
	for _, e := range edges {
		r.converges(t, "first", ns, e)
	}
	backup, err := r.plane.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Changes that will be lost.
	for i := range 30 {
		r.configMap(t, ns, "config", fmt.Sprint("v2-", i))
	}
	r.secret(t, ns, "secret", "v2")
	r.route(t, "office", "192.0.2.2")
	r.route(t, "new", "192.0.2.2")
	if err := dynamic.NewForConfigOrDie(r.plane.Admin()).Resource(routes).Delete(t.Context(), "deleted-later", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, e := range edges {
		pod(e, "new")
		r.deletePod(t, ns, string(e.Name)+"-goes")
		r.deletePod(t, ns, string(e.Name)+"-again")
		pod(e, "again")
	}
	for _, e := range edges {
		r.converges(t, "with what will be lost", ns, e)
	}
	away.disconnect()
	if err := r.plane.Restore(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	r.converges(t, "linked, after the restore", ns, linked)
	r.configMap(t, ns, "config", "v3")
	pod(linked, "after")
	pod(away, "after")
	r.converges(t, "linked, with what has changed since", ns, linked)
	away.connect(r.publisher, wanted(away.Name)...)
	r.converges(t, "away meanwhile", ns, away)
	r.secret(t, ns, "secret", "v3")
	r.route(t, "office", "192.0.2.3")
	for _, e := range edges {
		r.converges(t, "and changes flow", ns, e)
		poll.True(t, "all is synced", func() bool { return e.isSynced(1, 2, 3) })
		e.disconnect()
	}
}

// An edge moves to a cloudcore whose watches are 20 s behind: no pod dies, no object becomes older.
func TestOrder_03_LaggingWatchMakesNothingOlder(t *testing.T) {
	a := newSystem(t)
	a.plane.Apply(t, "manifests/crds")
	b, proxy := a.behind(t)
	ns := a.plane.Namespace(t)
	e, other := a.edge(t, "edge1"), a.edge(t, "edge2")
	a.plane.AddNode(t, "edge1")
	a.plane.AddNode(t, "edge2")
	a.configMap(t, ns, "config", "v1")
	a.secret(t, ns, "secret", "v1")
	a.route(t, "office", "192.0.2.1")
	a.pod(t, ns, "old", "edge1", "config", "secret")
	a.pod(t, ns, "other", "edge2", "config", "secret")
	other.connect(b.publisher, wanted("edge2")...) // b watches all of it
	e.connect(a.publisher, wanted("edge1")...)
	a.converges(t, "at a", ns, e)
	a.converges(t, "another at b", ns, other)

	proxy.SetLag(late)
	a.configMap(t, ns, "config", "v2")
	a.configMap(t, ns, "new-config", "v1")
	a.secret(t, ns, "new-secret", "v1")
	a.route(t, "office", "192.0.2.2")
	a.pod(t, ns, "new", "edge1", "new-config", "new-secret")
	a.converges(t, "at a, with what b hasn't seen", ns, e)
	before := e.holdings()
	e.disconnect()
	e.takeBackwards()
	e.connect(b.publisher, wanted("edge1")...)
	poll.True(t, "synced by b", func() bool { return e.isSynced(1, 2, 3) })
	if d := cmp.Diff(before, e.holdings()); d != "" {
		t.Errorf("what the edge held and holds now (-before +now)\n%s", d)
	}
	cm := a.configMap(t, ns, "config", "v3") // comes late
	a.pod(t, ns, "late", "edge1", "config", "secret")
	poll.True(t, "what comes late", func() bool {
		return e.version(kube.ConfigMaps, ns, "config") == cm.ResourceVersion && e.holds("pods", "late")
	})
	a.converges(t, "all of it", ns, e)
	for _, what := range e.takeBackwards() {
		t.Errorf("backwards: %s", what)
	}
	e.disconnect()
	other.disconnect()
}

// A list whose answer is slow is overtaken by a later read for an edge: the newer objects stay.
func TestALateListTakesNothingBack(t *testing.T) {
	a := newOwnSystem(t)
	a.plane.Apply(t, "manifests/crds")
	b, proxy := a.behind(t)
	ns := a.plane.Namespace(t)
	e := a.edge(t, "edge1")
	a.plane.AddNode(t, "edge1")
	a.configMap(t, ns, "config", "v1")
	a.secret(t, ns, "secret", "v1")
	a.pod(t, ns, "old", "edge1", "config", "secret")
	interests := []*topicpb.Interest{podsOf(1, "edge1")}
	e.connect(b.publisher, interests...)
	poll.True(t, "synced by b", func() bool { return e.isSynced(1) })
	e.disconnect()

	// b lists again, by a watch whose first events don't arrive.
	proxy.Set(func(*http.Request) faultproxy.Fault { return faultproxy.Fault{Break: true} })
	if err := errors.Join(a.plane.Kill(t.Context()), a.plane.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	var lists atomic.Int64
	proxy.SetLag(func(*http.Request) faultproxy.Lag { return faultproxy.Lag{Hold: true} })
	proxy.Set(func(r *http.Request) faultproxy.Fault {
		if q := r.URL.Query(); r.URL.Path == "/api/v1/pods" && q.Get("sendInitialEvents") == "true" {
			lists.Add(1)
		}
		return faultproxy.Fault{}
	})
	poll.True(t, "b lists pods again", func() bool { return lists.Load() > 0 })
	time.Sleep(3 * time.Second) // until kube-apiserver has answered the list, which no metric shows: a pod that is in it would prove too little
	answered := time.Now()
	time.Sleep(3 * time.Second) // so much later than the list the pod arrives
	a.pod(t, ns, "new", "edge1", "config", "secret")
	e.connect(a.publisher, interests...)
	poll.True(t, "the new pod, by a", func() bool { return e.isSynced(1) && e.holds("pods", "new") })
	e.disconnect()
	e.takeBackwards()
	e.takeLog()
	e.connect(b.publisher, interests...)
	poll.True(t, "synced by b with what a has brought", func() bool { return e.isSynced(1) && e.holds("pods", "new") })

	behind := time.Since(answered) // the list arrives now, and later events after it
	proxy.SetLag(func(*http.Request) faultproxy.Lag { return faultproxy.Lag{By: behind} })
	a.pod(t, ns, "late", "edge1", "config", "secret")
	poll.True(t, "what comes late", func() bool { return e.holds("pods", "late") })
	if log := strings.Join(e.takeLog(), " "); strings.Contains(log, "-pods") {
		t.Errorf("a pod was taken away: %s", log)
	}
	for _, what := range e.takeBackwards() {
		t.Errorf("backwards: %s", what)
	}
	e.disconnect()
}

// The same where the cluster was restored from a backup: the edge's objects are of a lost history,
// and a cloudcore that lags can't tell by its watches. It converges.
func TestOrder_04_LaggingWatchAfterARestoreConverges(t *testing.T) {
	a := newOwnSystem(t)
	a.plane.Apply(t, "manifests/crds")
	b, proxy := a.behind(t)
	ns := a.plane.Namespace(t)
	e, other := a.edge(t, "edge1"), a.edge(t, "edge2")
	a.plane.AddNode(t, "edge1")
	a.plane.AddNode(t, "edge2")
	a.configMap(t, ns, "config", "v1")
	a.secret(t, ns, "secret", "v1")
	a.route(t, "office", "192.0.2.1")
	a.pod(t, ns, "old", "edge1", "config", "secret")
	a.pod(t, ns, "other", "edge2", "config", "secret")
	backup, err := a.plane.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other.connect(b.publisher, wanted("edge2")...)
	e.connect(a.publisher, wanted("edge1")...)
	a.configMap(t, ns, "config", "v2")
	a.secret(t, ns, "new-secret", "v1")
	a.route(t, "lost", "192.0.2.2")
	a.pod(t, ns, "lost", "edge1", "config", "new-secret")
	a.converges(t, "with what will be lost", ns, e)
	e.disconnect()
	proxy.SetLag(late)
	if err := a.plane.Restore(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	e.connect(b.publisher, wanted("edge1")...)
	a.converges(t, "at b", ns, e)
	a.pod(t, ns, "after", "edge1", "config", "secret")
	a.configMap(t, ns, "config", "v3")
	a.converges(t, "with what has changed since", ns, e)
	poll.True(t, "synced by b", func() bool { return e.isSynced(1, 2, 3) })
	if log := strings.Join(e.takeLog(), " "); !strings.Contains(log, "-pods/lost") {
		t.Errorf("the lost pod was not taken away: %s", log)
	}
	e.disconnect()
	other.disconnect()
}

// An edge has a status accepted through another cloudcore and moves to one whose watch is 20 s
// behind. The two agree in all else: the edge's set equals that of the lagging watch. It is synced
// only with the status that it has written, since it drops its own copy then.
func TestSyncedBringsWhatTheEdgeHasWritten(t *testing.T) {
	a := newSystem(t)
	a.plane.Apply(t, "manifests/crds")
	b, proxy := a.behind(t)
	ns := a.plane.Namespace(t)
	e := a.edge(t, "edge1")
	a.plane.AddNode(t, "edge1")
	a.configMap(t, ns, "config", "v1")
	a.secret(t, ns, "secret", "v1")
	pod := a.pod(t, ns, "pod", "edge1", "config", "secret")
	interests := []*topicpb.Interest{podsOf(1, "edge1"), dependencies(2)}
	e.connect(b.publisher, interests...)
	a.converges(t, "at b", ns, e)
	poll.True(t, "synced by b", func() bool { return e.isSynced(1, 2) })
	e.disconnect()

	proxy.SetLag(late)
	pod.Status.Message = "7"
	pod, err := a.admin.CoreV1().Pods(ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.written = map[schema.GroupVersionResource]uint64{kube.Pods: number(pod.ResourceVersion)}
	e.connect(b.publisher, interests...)
	poll.True(t, "synced by b again", func() bool { return e.isSynced(1) })
	if got := e.version(kube.Pods, ns, "pod"); got != pod.ResourceVersion {
		t.Errorf("synced with version %s of the pod, want %s, which the edge has written", got, pod.ResourceVersion)
	}
	poll.True(t, "dependencies are synced", func() bool { return e.isSynced(2) })
	e.disconnect()
}

// An edge receives a pod's deletion through one cloudcore, and moves to another whose watch is 20 s
// behind. The edge's objects are all older than that pod, or it has no objects, or those from
// before the pod was made: in none of these cases the pod comes back.
func TestNoDeletedPodComesBack(t *testing.T) {
	a := newSystem(t)
	a.plane.Apply(t, "manifests/crds")
	b, proxy := a.behind(t)
	ns := a.plane.Namespace(t)
	a.configMap(t, ns, "config", "v1")
	a.secret(t, ns, "secret", "v1")
	remove := func(pod *corev1.Pod) {
		now := int64(0)
		if err := a.admin.CoreV1().Pods(ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	for name, older := range map[string]bool{"the-only-one": false, "beside-an-older-one": true} {
		t.Run(name, func(t *testing.T) {
			e := a.edge(t, "edge-"+name)
			a.plane.AddNode(t, "edge-"+name)
			interests := []*topicpb.Interest{podsOf(1, "edge-"+name), dependencies(2)}
			if older {
				a.pod(t, ns, name+"-older", "edge-"+name, "config", "secret")
			}
			first := a.pod(t, ns, name+"-first", "edge-"+name, "config", "secret")
			e.connect(b.publisher, interests...)
			poll.True(t, "synced by b", func() bool { return e.isSynced(1, 2) })
			remove(first) // the lagging watch still gets it: b's history then has the edge without the pod
			poll.True(t, "the first has gone", func() bool { return e.version(kube.Pods, ns, first.Name) == "" })
			pod := a.pod(t, ns, name, "edge-"+name, "config", "secret")
			poll.True(t, "the pod is there", func() bool { return e.version(kube.Pods, ns, name) != "" })
			e.disconnect()
			proxy.SetLag(late)
			defer proxy.SetLag(nil)

			e.connect(a.publisher, interests...)
			poll.True(t, "synced by a", func() bool { return e.isSynced(1, 2) })
			remove(pod)
			poll.True(t, "the pod has gone", func() bool { return e.version(kube.Pods, ns, name) == "" })
			e.disconnect()
			e.takeLog()
			e.connect(b.publisher, interests...)
			poll.True(t, "synced by b again", func() bool { return e.isSynced(1) })
			if log := e.takeLog(); slices.Contains(log, "+pods/"+name) {
				t.Errorf("the pod has come back: %v", log)
			}
			e.disconnect()
		})
	}
}
