package publish_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/cloud/internal/publish"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

var (
	services = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	nodes    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

// ---- the cluster ----

// world is kube-apiserver as publish sees it.
type world struct {
	mu      sync.Mutex
	stores  map[schema.GroupVersionResource]*kube.Store
	opened  map[schema.GroupVersionResource]int
	singles map[kube.Ref]*kube.Object
	missing map[kube.Ref]bool // not known yet
	deny    map[kube.Ref]error
	watches map[kube.Ref]map[int]func(kube.Single)
	next    int
	version int
	denied  func(node types.NodeName, at kube.Attributes) (string, error)
	asked   []string
	single  *kube.Store // encodes single objects
}

func newWorld() *world {
	return &world{
		stores: map[schema.GroupVersionResource]*kube.Store{}, opened: map[schema.GroupVersionResource]int{}, singles: map[kube.Ref]*kube.Object{},
		missing: map[kube.Ref]bool{}, deny: map[kube.Ref]error{}, watches: map[kube.Ref]map[int]func(kube.Single){}, version: 100,
	}
}

func (c *world) store(gvr schema.GroupVersionResource) *kube.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stores[gvr] == nil {
		c.stores[gvr] = kube.NewStore(gvr)
	}
	return c.stores[gvr]
}

func (c *world) Open(gvr schema.GroupVersionResource) (*kube.Store, func()) {
	s := c.store(gvr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened[gvr]++
	return s, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.opened[gvr]--
	}
}

func (c *world) Serves(ref kube.Ref) bool {
	return ref.Resource == kube.Secrets || ref.Resource == kube.ConfigMaps
}

func (c *world) Watch(ref kube.Ref, _ types.NodeName, changed func(kube.Single)) func() {
	c.mu.Lock()
	c.next++
	id := c.next
	if c.watches[ref] == nil {
		c.watches[ref] = map[int]func(kube.Single){}
	}
	c.watches[ref][id] = changed
	state := c.state(ref)
	c.mu.Unlock()
	changed(state)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watches[ref], id)
		if len(c.watches[ref]) == 0 {
			delete(c.watches, ref)
		}
	}
}

func (c *world) state(ref kube.Ref) kube.Single {
	if err := c.deny[ref]; err != nil {
		return kube.Single{Err: err}
	}
	return kube.Single{Known: !c.missing[ref], Object: c.singles[ref]}
}

func (c *world) tell(ref kube.Ref) {
	c.mu.Lock()
	state := c.state(ref)
	all := slices.Collect(maps.Values(c.watches[ref]))
	c.mu.Unlock()
	for _, changed := range all {
		changed(state)
	}
}

func (c *world) Allowed(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error) {
	return c.Review(ctx, node, at)
}

func (c *world) Review(_ context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, at.Verb+" "+at.Resource.Resource)
	if c.denied != nil {
		if reason, err := c.denied(node, at); reason != "" || err != nil {
			return kube.Decision{Reason: reason}, err
		}
	}
	return kube.Decision{Allowed: true}, nil
}

func (c *world) stamp(o metav1.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	o.SetResourceVersion(fmt.Sprint(c.version))
	if o.GetUID() == "" {
		o.SetUID(types.UID("uid-" + o.GetNamespace() + "-" + o.GetName()))
	}
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "somebody"}})
}

func (c *world) put(t *testing.T, gvr schema.GroupVersionResource, o metav1.Object) {
	t.Helper()
	c.stamp(o)
	if err := c.store(gvr).Put(o.(runtime.Object)); err != nil {
		t.Fatal(err)
	}
}

// synced makes the store hold exactly these.
func (c *world) synced(t *testing.T, gvr schema.GroupVersionResource, all ...metav1.Object) {
	t.Helper()
	var list []runtime.Object
	for _, o := range all {
		c.stamp(o)
		list = append(list, o.(runtime.Object))
	}
	if err := c.store(gvr).Replace(list); err != nil {
		t.Fatal(err)
	}
}

func (c *world) configMap(t *testing.T, name, value string) kube.Ref {
	t.Helper()
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"k": value}}
	c.stamp(o)
	s := kube.NewStore(kube.ConfigMaps)
	if err := s.Put(o); err != nil {
		t.Fatal(err)
	}
	ref := cmRef(name)
	c.mu.Lock()
	c.singles[ref] = s.Get(ref.Key)
	delete(c.missing, ref)
	c.mu.Unlock()
	c.tell(ref)
	return ref
}

func cmRef(name string) kube.Ref {
	return kube.Ref{Resource: kube.ConfigMaps, Key: kube.Key{Namespace: "default", Name: name}}
}

func pod(name, node string, configMaps ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, cm := range configMaps {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: cm, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: cm}},
		}})
	}
	return p
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
}

// ---- the edge ----

// edge is the other end of a session: it stores what it gets and acknowledges it, and answers inventories, as metamanager does.
type edge struct {
	t      *testing.T
	mux    *message.Mux
	cancel context.CancelFunc
	ended  chan error

	mu       sync.Mutex
	objects  map[schema.GroupVersionResource]map[kube.Key]*topicpb.Change
	synced   map[uint64]bool
	refused  map[uint64]string
	log      []string // of changes, in order
	sequence uint64
	states   int
	asked    []string // inventories
	mute     bool     // acknowledges nothing
	node     types.NodeName
	settle   func() // waits until all that follows from the last step has happened
	unacked  int
}

func (e *edge) Node() types.NodeName         { return e.node }
func (e *edge) Epoch() uint64                { return 1 }
func (e *edge) Info() link.Info              { return link.Info{} }
func (e *edge) Close(link.CloseCode, string) {}
func (e *edge) Done() <-chan struct{}        { return nil }

func (e *edge) Send(ctx context.Context, m message.Message) error {
	switch content := m.Content.(type) {
	case *topicpb.State:
		e.apply(content)
		e.mu.Lock()
		mute := e.mute
		e.unacked++
		e.mu.Unlock()
		if !mute {
			return e.dispatch(topic.StateAck.New(message.Resource{}, &topicpb.StateAck{Sequence: content.Sequence}))
		}
	case *topicpb.InventoryRequest:
		return e.dispatch(topic.Inventory.New(message.Resource{}, e.inventory(content)))
	default:
		e.t.Errorf("unexpected %T", m.Content)
	}
	return nil
}

func (e *edge) dispatch(m message.Message) error { return e.mux.Dispatch(e.t.Context(), m) }

func gvrOf(r *topicpb.Resource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.GetGroup(), Version: r.GetVersion(), Resource: r.GetResource()}
}

func (e *edge) apply(s *topicpb.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sequence++
	e.states++
	if s.Sequence != e.sequence {
		e.t.Errorf("State %d came when %d was due", s.Sequence, e.sequence)
	}
	for _, group := range s.Changes {
		gvr := gvrOf(group.Resource)
		if e.objects[gvr] == nil {
			e.objects[gvr] = map[kube.Key]*topicpb.Change{}
		}
		for _, c := range group.Items {
			key := kube.Key{Namespace: c.Namespace, Name: c.Name}
			if c.Deleted {
				delete(e.objects[gvr], key)
				e.log = append(e.log, "-"+gvr.Resource+"/"+c.Name)
				continue
			}
			e.objects[gvr][key] = c
			e.log = append(e.log, "+"+gvr.Resource+"/"+c.Name)
		}
	}
	for _, id := range s.Synced {
		e.synced[id] = true
		e.log = append(e.log, fmt.Sprintf("synced %d", id))
	}
	for _, r := range s.Refused {
		var status metav1.Status
		if err := json.Unmarshal(r.Status, &status); err != nil {
			e.t.Error(err)
		}
		e.refused[r.Interest] = string(status.Reason)
	}
}

func (e *edge) digests() []*topicpb.Digest {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*topicpb.Digest
	for gvr, objects := range e.objects {
		if len(objects) == 0 {
			continue
		}
		var sum kube.Sum
		for _, c := range objects {
			sum.Xor(kube.SumOf(c.Uid, c.ResourceVersion))
		}
		out = append(out, &topicpb.Digest{Resource: resource(gvr), Count: uint64(len(objects)), Sum: sum[:]})
	}
	return out
}

func (e *edge) inventory(q *topicpb.InventoryRequest) *topicpb.Inventory {
	e.mu.Lock()
	defer e.mu.Unlock()
	objects := e.objects[gvrOf(q.Resource)]
	e.asked = append(e.asked, fmt.Sprintf("%s buckets=%v only=%d", q.Resource.Resource, q.Buckets, len(q.Only)))
	out := &topicpb.Inventory{Resource: q.Resource}
	if q.Buckets {
		sums := make([]kube.Sum, 256)
		for key, c := range objects {
			sums[publish.BucketOf(key)].Xor(kube.SumOf(c.Uid, c.ResourceVersion))
		}
		for _, s := range sums {
			out.Buckets = append(out.Buckets, s[:])
		}
		return out
	}
	for key, c := range objects {
		if len(q.Only) > 0 && !slices.Contains(q.Only, uint32(publish.BucketOf(key))) {
			continue
		}
		out.Entries = append(out.Entries, &topicpb.Entry{Namespace: c.Namespace, Name: c.Name, Uid: c.Uid, ResourceVersion: c.ResourceVersion})
	}
	return out
}

func resource(gvr schema.GroupVersionResource) *topicpb.Resource {
	return &topicpb.Resource{Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource}
}

func newEdge(t *testing.T) *edge {
	return &edge{t: t, node: "edge1", settle: synctest.Wait, objects: map[schema.GroupVersionResource]map[kube.Key]*topicpb.Change{}}
}

// connect opens a session; what the edge holds stays.
func (e *edge) connect(p *publish.Publisher, interests ...*topicpb.Interest) {
	e.t.Helper()
	e.mux, e.sequence, e.synced, e.refused, e.log, e.asked, e.states = message.NewMux(), 0, map[uint64]bool{}, map[uint64]string{}, nil, nil, 0
	run := p.Attach(e, e.mux)
	ctx, cancel := context.WithCancel(e.t.Context())
	e.cancel, e.ended = cancel, make(chan error, 1)
	go func() { e.ended <- run(ctx) }()
	e.declare(interests...)
}

func (e *edge) declare(interests ...*topicpb.Interest) {
	e.t.Helper()
	if err := e.dispatch(topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: interests, Digests: e.digests()})); err != nil {
		e.t.Fatal(err)
	}
	e.settle()
}

func (e *edge) disconnect() {
	e.t.Helper()
	e.cancel()
	if err := <-e.ended; err != nil {
		e.t.Errorf("the session ended with %v", err)
	}
}

func (e *edge) names(gvr schema.GroupVersionResource) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []string{}
	for key := range e.objects[gvr] {
		out = append(out, key.Name)
	}
	slices.Sort(out)
	return out
}

func (e *edge) takeLog() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	log := e.log
	e.log = nil
	return log
}

func podsOf(id uint64, node string) *topicpb.Interest {
	return &topicpb.Interest{Id: id, Resource: resource(kube.Pods), FieldSelector: "spec.nodeName=" + node}
}

func allServices(id uint64) *topicpb.Interest {
	return &topicpb.Interest{Id: id, Resource: resource(services), FieldSelector: "spec.clusterIP!=None"}
}

func dependencies(id uint64) *topicpb.Interest { return &topicpb.Interest{Id: id, Dependencies: true} }

func oneConfigMap(id uint64, name string) *topicpb.Interest {
	return &topicpb.Interest{Id: id, Resource: resource(kube.ConfigMaps), Namespace: "default", FieldSelector: "metadata.name=" + name}
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// ---- the tests ----

func TestFirstConnectDeliversWhatIsSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		headless := service("headless")
		headless.Spec.ClusterIP = "None"
		c.synced(t, kube.Pods, pod("mine", "edge1"), pod("other", "edge2"), pod("unbound", ""))
		c.synced(t, services, service("web"), headless)
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), allServices(2))
		want(t, "pods", e.names(kube.Pods), []string{"mine"})
		want(t, "services", e.names(services), []string{"web"})
		want(t, "synced", e.synced, map[uint64]bool{1: true, 2: true})

		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.objects[kube.Pods][kube.Key{Namespace: "default", Name: "mine"}].Object, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := o.(*corev1.Pod); !ok || p.Name != "mine" || len(p.ManagedFields) != 0 || p.ResourceVersion == "" {
			t.Errorf("not a pod in Kubernetes protobuf without managedFields: %#v", o)
		}
		e.disconnect()
		want(t, "collections in use", c.opened, map[schema.GroupVersionResource]int{kube.Pods: 0, services: 0})
	})
}

func TestChangesFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("a", "edge1"))
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"))
		e.takeLog()
		start := time.Now()
		steps := []struct {
			name string
			do   func()
			want []string
		}{
			{"a pod is bound to us", func() { c.put(t, kube.Pods, pod("b", "edge1")) }, []string{"+pods/b"}},
			{"a pod of another node changes", func() { c.put(t, kube.Pods, pod("x", "edge2")) }, nil},
			{"ours is deleted", func() { c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "a"}) }, []string{"-pods/a"}},
			{"ours becomes another node's", func() { c.put(t, kube.Pods, pod("b", "edge2")) }, []string{"-pods/b"}},
		}
		for _, s := range steps {
			s.do()
			synctest.Wait()
			want(t, s.name, e.takeLog(), s.want)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("changes waited for %v", d)
		}
		e.disconnect()
	})
}

func TestNothingIsSentBeforeTheCollectionIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.put(t, kube.Pods, pod("early", "edge1"))
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"))
		want(t, "before", e.takeLog(), []string(nil))
		c.synced(t, kube.Pods, pod("early", "edge1"), pod("late", "edge1"))
		synctest.Wait()
		want(t, "pods", e.names(kube.Pods), []string{"early", "late"})
		want(t, "synced", e.synced, map[uint64]bool{1: true})
		e.disconnect()
	})
}

func TestResume(t *testing.T) {
	many := func(n int) (all []metav1.Object) {
		for i := range n {
			all = append(all, service(fmt.Sprintf("s%04d", i)))
		}
		return all
	}
	for name, test := range map[string]struct {
		objects int
		change  func(t *testing.T, c *world)
		asked   []string
		log     []string
	}{
		"nothing changed": {objects: 1000, change: func(*testing.T, *world) {}, log: []string{"synced 1"}},
		"few objects: entries at once": {
			objects: 10, change: func(t *testing.T, c *world) { c.put(t, services, service("s0003")) },
			asked: []string{"services buckets=false only=0"}, log: []string{"+services/s0003", "synced 1"},
		},
		"many objects: buckets first": {
			objects: 1000, change: func(t *testing.T, c *world) { c.put(t, services, service("s0500")) },
			asked: []string{"services buckets=true only=0", "services buckets=false only=1"}, log: []string{"+services/s0500", "synced 1"},
		},
		"a deletion is found": {
			objects: 100, change: func(_ *testing.T, c *world) {
				c.store(services).Delete(kube.Key{Namespace: "default", Name: "s0007"})
			},
			asked: []string{"services buckets=true only=0", "services buckets=false only=1"}, log: []string{"-services/s0007", "synced 1"},
		},
		"resource versions went back": {
			objects: 3, change: func(t *testing.T, c *world) {
				c.mu.Lock()
				c.version = 10
				c.mu.Unlock()
				c.synced(t, services, service("s0001"))
			},
			asked: []string{"services buckets=false only=0"}, log: []string{"+services/s0001", "-services/s0000", "-services/s0002", "synced 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newWorld(), newEdge(t)
				c.synced(t, services, many(test.objects)...)
				p := publish.New(c, c, c)
				e.connect(p, allServices(1))
				if got := len(e.names(services)); got != test.objects {
					t.Fatalf("%d services, want %d", got, test.objects)
				}
				e.disconnect()
				test.change(t, c)
				e.connect(p, allServices(1))
				log := e.takeLog()
				slices.Sort(log)
				slices.Sort(test.log)
				want(t, "sent", log, test.log)
				want(t, "asked", e.asked, test.asked)
				e.disconnect()
			})
		})
	}
}

func TestDependenciesTravelBeforeThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		c.configMap(t, "shared", "1")
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), dependencies(2))
		want(t, "synced", e.synced, map[uint64]bool{1: true, 2: true})
		e.takeLog()

		c.put(t, kube.Pods, pod("a", "edge1", "shared"))
		synctest.Wait()
		want(t, "with its ConfigMap", e.takeLog(), []string{"+configmaps/shared", "+pods/a"})

		c.put(t, kube.Pods, pod("b", "edge1", "shared"))
		synctest.Wait()
		want(t, "a second one, and the ConfigMap is there", e.takeLog(), []string{"+pods/b"})

		late := cmRef("late")
		c.mu.Lock()
		c.missing[late] = true
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("c", "edge1", "shared", "late"))
		synctest.Wait()
		want(t, "nobody knows yet whether it exists", e.takeLog(), []string(nil))
		c.put(t, kube.Pods, pod("d", "edge1"))
		synctest.Wait()
		want(t, "others don't wait", e.takeLog(), []string{"+pods/d"})
		c.configMap(t, "late", "1")
		synctest.Wait()
		want(t, "now it is known", e.takeLog(), []string{"+configmaps/late", "+pods/c"})

		c.put(t, kube.Pods, pod("optional", "edge1", "absent"))
		synctest.Wait()
		want(t, "what doesn't exist holds nobody up", e.takeLog(), []string{"-configmaps/absent", "+pods/optional"})

		c.configMap(t, "shared", "2")
		synctest.Wait()
		want(t, "an update", e.takeLog(), []string{"+configmaps/shared"})

		for _, name := range []string{"a", "b", "c"} {
			c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: name})
		}
		synctest.Wait()
		log := e.takeLog()
		if !slices.Contains(log, "-configmaps/shared") || !slices.Contains(log, "-configmaps/late") {
			t.Errorf("nobody needs them any more, and they stay: %q", log)
		}
		e.disconnect()
		want(t, "watches left", len(c.watches), 0)
	})
}

func TestResumeOfDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		var names []string
		for i := range 500 {
			names = append(names, fmt.Sprintf("cm%03d", i))
			c.configMap(t, names[i], "1")
		}
		c.synced(t, kube.Pods, pod("big", "edge1", names...))
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		want(t, "config maps", len(e.names(kube.ConfigMaps)), 500)
		if i, j := slices.Index(e.log, "+pods/big"), slices.Index(e.log, "+configmaps/cm499"); i < j {
			t.Error("the pod came before what it needs")
		}
		e.disconnect()

		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		log := e.takeLog()
		slices.Sort(log)
		want(t, "nothing changed", log, []string{"synced 1", "synced 2"})
		e.disconnect()

		c.configMap(t, "cm123", "2")
		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "nobody"})
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		log = e.takeLog()
		slices.Sort(log)
		want(t, "one changed", log, []string{"+configmaps/cm123", "synced 1", "synced 2"})
		e.disconnect()

		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "big"})
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		want(t, "config maps when the pod is gone", e.names(kube.ConfigMaps), []string{})
		want(t, "pods", e.names(kube.Pods), []string{})
		e.disconnect()
	})
}

func TestClaimsBringTheirVolumesAndSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"}}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", NodeStageSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "key"},
			}},
		}}
		c.synced(t, kube.Claims, claim, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}})
		c.synced(t, kube.Volumes, volume)
		p := pod("db", "edge1")
		p.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		c.synced(t, kube.Pods)
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), dependencies(2))
		e.takeLog()
		c.put(t, kube.Pods, p)
		synctest.Wait()
		want(t, "sent", e.takeLog(), []string{"+persistentvolumeclaims/data", "+persistentvolumes/pv1", "-secrets/key", "+pods/db"})
		e.disconnect()
	})
}

func TestRefusals(t *testing.T) {
	forbidden := func(node types.NodeName, at kube.Attributes) (string, error) {
		if at.Resource == nodes && at.Name != "edge1" {
			return "only its own Node object", nil
		}
		return "", nil
	}
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.denied = forbidden
		c.synced(t, nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge2"}})
		e.connect(publish.New(c, c, c),
			&topicpb.Interest{Id: 1, Resource: resource(nodes), FieldSelector: "metadata.name=edge2"},
			&topicpb.Interest{Id: 2, Resource: resource(kube.Secrets), Namespace: "default"},
			&topicpb.Interest{Id: 3, Resource: resource(kube.Pods), FieldSelector: "spec.colour=red"},
			&topicpb.Interest{Id: 4},
		)
		want(t, "at once", e.refused, map[uint64]string{2: "Forbidden", 3: "BadRequest", 4: "BadRequest"})
		time.Sleep(45 * time.Second)
		synctest.Wait()
		want(t, "when it is believed", e.refused, map[uint64]string{1: "Forbidden", 2: "Forbidden", 3: "BadRequest", 4: "BadRequest"})
		want(t, "nodes", e.names(nodes), []string{})

		c.mu.Lock()
		c.denied = nil
		c.mu.Unlock()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want(t, "allowed later", e.names(nodes), []string{"edge2"})
		want(t, "synced", e.synced, map[uint64]bool{1: true})

		c.mu.Lock()
		c.denied = forbidden
		c.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		want(t, "revoked", e.names(nodes), []string{})
		e.disconnect()
	})
}

func TestARefusalThatPassesIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		tries := 0
		c.denied = func(types.NodeName, kube.Attributes) (string, error) {
			switch tries++; {
			case tries < 3:
				return "no relationship found", nil
			case tries < 6:
				return "", errors.New("connection refused")
			}
			return "", nil
		}
		c.synced(t, kube.Pods, pod("a", "edge1"))
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		want(t, "refused", e.refused, map[uint64]string{})
		want(t, "pods", e.names(kube.Pods), []string{"a"})
		e.disconnect()
	})
}

// An interest that nobody has decided about must not cost the edge what it holds.
func TestUndecidedInterestsDeleteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("a", "edge1"))
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"))
		e.disconnect()
		c.denied = func(types.NodeName, kube.Attributes) (string, error) { return "", errors.New("connection refused") }
		e.connect(p, podsOf(1, "edge1"))
		time.Sleep(time.Hour)
		synctest.Wait()
		want(t, "pods", e.names(kube.Pods), []string{"a"})
		want(t, "refused", e.refused, map[uint64]string{})
		e.disconnect()
	})
}

func TestSingleObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		ref := c.configMap(t, "one", "1")
		p := publish.New(c, c, c)
		e.connect(p, oneConfigMap(1, "one"), oneConfigMap(2, "absent"))
		want(t, "config maps", e.names(kube.ConfigMaps), []string{"one"})
		want(t, "synced", e.synced, map[uint64]bool{1: true, 2: true})
		e.takeLog()

		e.declare(oneConfigMap(1, "one"), oneConfigMap(2, "absent"), oneConfigMap(3, "another"))
		want(t, "one more interest", e.synced, map[uint64]bool{1: true, 2: true, 3: true})

		c.mu.Lock()
		c.deny[ref] = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "one", errors.New("no relationship found"))
		c.mu.Unlock()
		c.tell(ref)
		synctest.Wait()
		want(t, "revoked", e.names(kube.ConfigMaps), []string{})
		want(t, "told", e.refused, map[uint64]string{1: "Forbidden"})

		c.mu.Lock()
		delete(c.deny, ref)
		c.mu.Unlock()
		c.tell(ref)
		synctest.Wait()
		want(t, "allowed again", e.names(kube.ConfigMaps), []string{"one"})

		e.declare(oneConfigMap(2, "absent"))
		want(t, "dropped", e.names(kube.ConfigMaps), []string{})
		e.disconnect()
		want(t, "watches left", len(c.watches), 0)
	})
}

func TestInterestsThatComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		labelled := func(name, app string) *corev1.Service {
			s := service(name)
			s.Labels = map[string]string{"app": app}
			return s
		}
		c.synced(t, services, labelled("a", "x"), labelled("b", "y"), labelled("c", "z"))
		by := func(id uint64, selector string) *topicpb.Interest {
			return &topicpb.Interest{Id: id, Resource: resource(services), LabelSelector: selector}
		}
		e.connect(publish.New(c, c, c), by(1, "app=x"))
		want(t, "first", e.takeLog(), []string{"+services/a", "synced 1"})
		e.declare(by(1, "app=x"), by(2, "app in (x,y)"))
		want(t, "only what is new", e.takeLog(), []string{"+services/b", "synced 2"})
		e.declare(by(2, "app in (x,y)"))
		want(t, "another still wants it", e.takeLog(), []string(nil))
		e.declare(by(2, "app=z"))
		log := e.takeLog()
		slices.Sort(log)
		want(t, "the same number, another selector", log, []string{"+services/c", "-services/a", "-services/b", "synced 2"})
		c.put(t, services, labelled("c", "other"))
		synctest.Wait()
		want(t, "it stops matching", e.takeLog(), []string{"-services/c"})
		e.declare()
		want(t, "nothing any more", e.names(services), []string{})
		e.disconnect()
	})
}

func TestTheWindowHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, services)
		p := publish.New(c, c, c)
		e.connect(p, allServices(1))
		e.mu.Lock()
		e.mute, e.unacked, e.log = true, 0, nil
		e.mu.Unlock()
		big := strings.Repeat("x", 100<<10)
		for i := range 100 {
			s := service(fmt.Sprintf("s%02d", i))
			s.Annotations = map[string]string{"big": big}
			c.put(t, services, s)
			synctest.Wait()
		}
		e.mu.Lock()
		if sent := len(e.log); sent < 10 || sent > 16 {
			t.Errorf("%d objects of 100 KiB were sent into a window of 1 MiB", sent)
		}
		e.mute = false
		last := e.sequence
		e.mu.Unlock()
		// Meanwhile each changes many times: the newest state alone is sent.
		for range 10 {
			for i := range 100 {
				c.put(t, services, service(fmt.Sprintf("s%02d", i)))
			}
		}
		before := len(e.log)
		if err := e.dispatch(topic.StateAck.New(message.Resource{}, &topicpb.StateAck{Sequence: last})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := len(e.log) - before; got != 100 {
			t.Errorf("%d changes were sent for 100 objects", got)
		}
		want(t, "services", len(e.names(services)), 100)
		e.disconnect()
	})
}

func TestOneObjectIsEncodedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld()
		p := publish.New(c, c, c)
		c.synced(t, services, service("web"))
		var raws [][]byte
		for range 3 {
			e := newEdge(t)
			e.connect(p, allServices(1))
			raws = append(raws, e.objects[services][kube.Key{Namespace: "default", Name: "web"}].Object)
			defer e.disconnect()
		}
		if &raws[0][0] != &raws[1][0] || &raws[1][0] != &raws[2][0] {
			t.Error("sessions hold copies")
		}
	})
}

// One interest that Kubernetes is slow to refuse doesn't hold up the others, and deletes nothing before it is refused.
func TestAnUndecidedInterestHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("mine", "edge1"), pod("theirs", "edge2"))
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"), podsOf(2, "edge2"))
		want(t, "pods", e.names(kube.Pods), []string{"mine", "theirs"})
		e.disconnect()
		c.mu.Lock()
		c.denied = func(_ types.NodeName, at kube.Attributes) (string, error) {
			if at.Fields.String() == "spec.nodeName=edge2" {
				return "only its own", nil
			}
			return "", nil
		}
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("new", "edge1"))
		e.connect(p, podsOf(1, "edge1"), podsOf(2, "edge2"))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want(t, "meanwhile", e.names(kube.Pods), []string{"mine", "new", "theirs"})
		want(t, "synced", e.synced, map[uint64]bool{1: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "refused", e.refused, map[uint64]string{2: "Forbidden"})
		want(t, "in the end", e.names(kube.Pods), []string{"mine", "new"})
		e.disconnect()
	})
}
