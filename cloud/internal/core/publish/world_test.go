package publish_test

import (
	"bytes"
	cmp2 "cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
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
	mu       sync.Mutex
	stores   map[schema.GroupVersionResource]*kube.Store
	opened   map[schema.GroupVersionResource]int
	objects  map[kube.Ref]*kube.Object
	unserved map[schema.GroupVersionResource]error // resources that cloudcore can't follow
	caughtUp []string                              // resources that had to be read
	missing  map[kube.Ref]bool                     // not known yet
	deny     map[kube.Ref]error
	watches  map[kube.Ref]map[int]func(kube.ObjectState)
	next     int
	version  int
	denied   func(node types.NodeName, at kube.Attributes) (string, error)
	asked    []string
}

func newWorld() *world {
	return &world{
		stores: map[schema.GroupVersionResource]*kube.Store{}, opened: map[schema.GroupVersionResource]int{}, objects: map[kube.Ref]*kube.Object{}, unserved: map[schema.GroupVersionResource]error{},
		missing: map[kube.Ref]bool{}, deny: map[kube.Ref]error{}, watches: map[kube.Ref]map[int]func(kube.ObjectState){}, version: 100,
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

func (c *world) Followable(_ context.Context, gvr schema.GroupVersionResource) (refused, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unserved[gvr], nil
}

func (c *world) CatchUp(gvr schema.GroupVersionResource, _ uint64, done func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caughtUp = append(c.caughtUp, gvr.Resource)
	go done()
	return func() {}
}

func (c *world) inUse() map[schema.GroupVersionResource]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.opened)
}

func (c *world) Serves(ref kube.Ref) bool {
	return ref.Resource == kube.Secrets || ref.Resource == kube.ConfigMaps
}

func (c *world) Watch(ref kube.Ref, _ types.NodeName, changed func(kube.ObjectState)) kube.ObjectWatch {
	c.mu.Lock()
	c.next++
	id := c.next
	if c.watches[ref] == nil {
		c.watches[ref] = map[int]func(kube.ObjectState){}
	}
	c.watches[ref][id] = changed
	state := c.state(ref)
	c.mu.Unlock()
	changed(state)
	return kube.ObjectWatch{
		Cancel: func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.watches[ref], id)
			if len(c.watches[ref]) == 0 {
				delete(c.watches, ref)
			}
		},
		CatchUp: func(uint64) {
			go func() {
				c.mu.Lock()
				state := c.state(ref)
				c.mu.Unlock()
				state.CaughtUp = true
				changed(state)
			}()
		},
	}
}

func (c *world) state(ref kube.Ref) kube.ObjectState {
	if err := c.deny[ref]; err != nil {
		return kube.ObjectState{Err: err}
	}
	return kube.ObjectState{Known: !c.missing[ref], Object: c.objects[ref]}
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
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "manager"}})
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
	c.objects[ref] = s.Get(ref.Key)
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

// edge is the other end of a session: it stores and acknowledges the objects that it gets, and
// answers inventories, as metamanager does.
type edge struct {
	hubtest.Session
	t      *testing.T
	mux    *message.Mux
	cancel context.CancelFunc
	ended  chan error

	mu      sync.Mutex
	objects map[schema.GroupVersionResource]map[kube.Key]*topicpb.Change
	synced  map[uint64]bool
	refused map[uint64]string
	log     []string // of changes, in order
	// backwards lists the objects that were deleted at it, or replaced by an older version.
	backwards []string
	sequence  uint64
	states    int
	asked     []string // inventories
	mute      bool     // never acknowledges
	settle    func()   // waits until all that follows from the last step has happened
	unacked   int
	blur      *kube.Key // a key whose bucket has this sum, whatever is in it
	blurred   kube.Sum
	old       bool                                   // doesn't send its newest version
	named     bool                                   // of a release that needs namespace and name in addition to an object
	written   map[schema.GroupVersionResource]uint64 // accepted writes that have not come down
	gone      map[schema.GroupVersionResource]uint64 // as of which version the newest deletion came down
	open      map[schema.GroupVersionResource]bool   // not as expected, until something is expected again
	reported  map[schema.GroupVersionResource]bool   // likewise, in this session
}

func (e *edge) Send(ctx context.Context, m message.Message) error {
	switch content := m.Content.(type) {
	case *topicpb.State:
		for _, gvr := range e.apply(content) {
			holds := e.digest(gvr)
			inventory := e.inventory(&topicpb.InventoryRequest{Resource: resource(gvr), Buckets: holds.Count > 64})
			inventory.Holds = holds
			if err := e.dispatch(topic.Inventory.New(message.Resource{}, inventory)); err != nil {
				return err
			}
		}
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

// apply returns the resources of which something else was expected.
func (e *edge) apply(s *topicpb.State) (surprises []schema.GroupVersionResource) {
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
				if c.Name == "" {
					e.t.Errorf("a deletion of %s names nothing", gvr.Resource)
				}
				if e.objects[gvr][key] != nil {
					e.backwards = append(e.backwards, "-"+gvr.Resource+"/"+c.Name)
				}
				delete(e.objects[gvr], key)
				if n := number(c.ResourceVersion); n > 0 {
					if e.gone == nil {
						e.gone = map[schema.GroupVersionResource]uint64{}
					}
					e.gone[gvr] = n
				}
				e.log = append(e.log, "-"+gvr.Resource+"/"+c.Name)
				continue
			}
			m := e.decode(c.Object)
			if said := c.Namespace + c.Name; e.named != (said != "") {
				e.t.Errorf("%s %s/%s came as %q; names are wanted: %v", gvr.Resource, m.GetNamespace(), m.GetName(), said, e.named)
			}
			if c.Name == "" {
				c.Namespace, c.Name = m.GetNamespace(), m.GetName()
				key = kube.Key{Namespace: c.Namespace, Name: c.Name}
			}
			c.Uid, c.ResourceVersion = cmp2.Or(c.Uid, string(m.GetUID())), cmp2.Or(c.ResourceVersion, m.GetResourceVersion())
			if have := e.objects[gvr][key]; have != nil && number(c.ResourceVersion) < number(have.ResourceVersion) {
				e.backwards = append(e.backwards, "older "+gvr.Resource+"/"+c.Name)
			}
			e.objects[gvr][key] = c
			e.log = append(e.log, "+"+gvr.Resource+"/"+c.Name)
		}
	}
	for _, d := range s.Expected {
		gvr := gvrOf(d.Resource)
		if have := e.sum(gvr); !e.reported[gvr] && (have.Count != d.Count || !bytes.Equal(have.Sum, d.Sum)) {
			e.reported[gvr], e.open[gvr] = true, true
			surprises = append(surprises, gvr)
			continue
		}
		delete(e.open, gvr)
	}
	for _, id := range s.Synced {
		if len(e.open) > 0 { // the real one looks which resource it is
			e.log = append(e.log, fmt.Sprintf("not synced %d", id))
			continue
		}
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
	return surprises
}

// number returns a resourceVersion as a number, 0 if it is not a number.
func number(version string) uint64 {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// takeBackwards returns the objects that have gone backwards at the edge since the last call.
func (e *edge) takeBackwards() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.backwards
	e.backwards = nil
	return out
}

func (e *edge) digest(gvr schema.GroupVersionResource) *topicpb.Digest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sum(gvr)
}

func (e *edge) decode(raw []byte) metav1.Object {
	if raw[0] == '{' {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			e.t.Error(err)
		}
		return u
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		e.t.Error(err)
		return &metav1.ObjectMeta{}
	}
	return o.(metav1.Object)
}

// sum is the digest of the held objects; e.mu is held.
func (e *edge) sum(gvr schema.GroupVersionResource) *topicpb.Digest {
	var sum kube.Sum
	var newest uint64
	for _, c := range e.objects[gvr] {
		sum.Xor(kube.SumOf(c.Uid, c.ResourceVersion))
		if v, err := strconv.ParseUint(c.ResourceVersion, 10, 64); err == nil && !e.old {
			newest = max(newest, v)
		}
	}
	d := &topicpb.Digest{Resource: resource(gvr), Count: uint64(len(e.objects[gvr])), Sum: sum[:], Newest: newest, Written: e.written[gvr]}
	if e.gone[gvr] > newest && !e.old {
		d.Written = max(d.Written, e.gone[gvr])
	}
	return d
}

func (e *edge) digests() []*topicpb.Digest {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*topicpb.Digest
	for gvr, objects := range e.objects {
		if len(objects) == 0 && e.gone[gvr] == 0 {
			continue
		}
		out = append(out, e.sum(gvr))
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
		for i, s := range sums {
			if e.blur != nil && i == int(publish.BucketOf(*e.blur)) {
				s = e.blurred // as if the short sums of two sets were the same
			}
			out.Sums = append(out.Sums, s[:4]...)
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
	return &edge{Session: hubtest.Session{Name: "edge1"}, t: t, settle: synctest.Wait, objects: map[schema.GroupVersionResource]map[kube.Key]*topicpb.Change{}}
}

// connect opens a session; the edge's objects stay.
func (e *edge) connect(p *publish.Publisher, interests ...*topicpb.Interest) {
	e.t.Helper()
	e.mux, e.sequence, e.synced, e.refused, e.log, e.asked, e.states = message.NewMux(), 0, map[uint64]bool{}, map[uint64]string{}, nil, nil, 0
	e.open, e.reported = map[schema.GroupVersionResource]bool{}, map[schema.GroupVersionResource]bool{}
	service := p.Attach(e, e.mux)
	ctx, cancel := context.WithCancel(e.t.Context())
	e.cancel, e.ended = cancel, make(chan error, 1)
	go func() { e.ended <- cloudhub.Serve(ctx, service) }()
	e.declare(interests...)
}

func (e *edge) declare(interests ...*topicpb.Interest) {
	e.t.Helper()
	if err := e.dispatch(topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: interests, Digests: e.digests(), Unnamed: !e.named})); err != nil {
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

func (e *edge) refusals() map[uint64]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.refused)
}

func (e *edge) syncedIDs() map[uint64]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.synced)
}
