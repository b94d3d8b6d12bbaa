package meta_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
)

func resource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: name}
}

func ref(name, namespace, object_ string) object.Ref {
	return object.Ref{Resource: resource(name), Namespace: namespace, Name: object_}
}

// cloud behaves as cloudcore and kube-apiserver do, seen from the edge's bus: it keeps objects with
// resource versions, sends down what the interests ask for, resumes by digests, and takes writes.
// It is the port of the Manager under test.
type cloud struct {
	prefix string // of versions of what is set from now on
	guess  bool   // of a resource whose digest differs it sends what is newer than all that the edge holds, and says what it expects
	t      testing.TB

	toEdge chan message.Message
	ready  chan struct{} // a slot; taken by the edge that has started

	mu       sync.Mutex
	up       bool
	epoch    uint64
	revision uint64
	objects  map[object.Ref]*thing
	// The session.
	interests []*topicpb.Interest
	quiet     bool // says nothing of its own accord
	expect    map[schema.GroupVersionResource]bool
	surprised []string              // resources that the edge holds otherwise than expected
	known     map[object.Ref]string // what the edge has, as uid/version; nil: not compared yet
	behind    map[object.Ref]*thing // what a watch that lags shows of objects; nil: it does not lag
	behindAt  uint64                // ... as of this revision
	digests   []*topicpb.Digest     // that are compared once the watch has caught up
	sequence  uint64
	stuck     bool // takes writes, answers none
	refuse    func(*topicpb.Write) *metav1.Status
	forbid    func(*topicpb.Interest) *metav1.Status
	answer    func(*topicpb.APIRequest) *topicpb.APIResponse
	held      []func() // results that are held back
	hold      bool

	// What was seen.
	writes      []*topicpb.Write
	effects     map[string][]string // by object: what each write that took effect says
	compared    []string            // resources whose inventory was asked for
	sentObjects int
	resets      int
}

type thing struct {
	obj     runtime.Object
	uid     types.UID
	version uint64
	prefix  string // "" for kube-apiserver's own version, else that of a digest
}

func newCloud(t testing.TB) *cloud {
	return &cloud{
		t: t, toEdge: make(chan message.Message, 4096), ready: make(chan struct{}, 1), revision: 100, objects: map[object.Ref]*thing{}, effects: map[string][]string{},
	}
}

func (c *cloud) Ready() { c.ready <- struct{}{} }

func (c *cloud) Receive(ctx context.Context) (message.Message, error) {
	select {
	case m := <-c.toEdge:
		return m, nil
	case <-ctx.Done():
		return message.Message{}, ctx.Err()
	}
}

func (c *cloud) Send(_ context.Context, _ message.Name, m message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Key() == linkstate.Renew.Key() {
		c.resets++
		return nil
	}
	if !c.up || (m.Header.Session != 0 && m.Header.Session != c.epoch) {
		return nil // as the hub does: dropped
	}
	switch content := m.Content.(type) {
	case *topicpb.Interests:
		c.interests = content.Interests
		if c.quiet {
			return nil
		}
		if c.known == nil {
			c.resume(content.Digests)
		}
		c.publish()
	case *topicpb.Inventory:
		r := schema.GroupVersionResource{Group: content.Resource.Group, Version: content.Resource.Version, Resource: content.Resource.Resource}
		if content.Holds != nil {
			c.surprised = append(c.surprised, r.Resource)
			maps.DeleteFunc(c.known, func(have object.Ref, _ string) bool { return have.Resource == r })
			c.expect = map[schema.GroupVersionResource]bool{r: true}
		}
		for _, e := range content.Entries {
			c.known[object.Ref{Resource: r, Namespace: e.Namespace, Name: e.Name}] = e.Uid + "/" + e.ResourceVersion
		}
		c.publish()
	case *topicpb.Write:
		c.write(m, content)
	}
	return nil
}

func (c *cloud) SendSync(_ context.Context, _ message.Name, m message.Message) (message.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.up {
		return message.Message{}, linkstate.ErrNoLink
	}
	return m.Answer(c.answer(m.Content.(*topicpb.APIRequest))), nil
}

func (c *cloud) down(m message.Message) {
	m.Header.Session = c.epoch
	c.toEdge <- m
}

// link opens a session.
func (c *cloud) link() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.up, c.known, c.sequence, c.interests, c.held, c.digests = true, nil, 0, nil, nil, nil
	c.toEdge <- linkstate.Up.New(message.Resource{}, linkstate.Link{Epoch: c.epoch})
}

func (c *cloud) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up {
		c.up = false
		c.toEdge <- linkstate.Down.New(message.Resource{}, linkstate.Loss{Epoch: c.epoch})
	}
}

func (c *cloud) set(r object.Ref, obj runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(r, obj)
	c.publish()
}

// lag stops what goes down from following the objects.
func (c *cloud) lag() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind, c.behindAt = maps.Clone(c.objects), c.revision
}

// past is what lag takes a copy of.
func (c *cloud) past() (objects map[object.Ref]*thing, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.objects), c.revision
}

// lagSince is a replica that has not seen what has happened since.
func (c *cloud) lagSince(objects map[object.Ref]*thing, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind, c.behindAt = objects, at
}

// catchUp ends a lag.
func (c *cloud) catchUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind = nil
	if c.up && c.known == nil && c.digests != nil {
		c.resume(c.digests)
	}
	c.publish()
}

// goBack makes the objects what they were when the lag began.
func (c *cloud) goBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.revision = maps.Clone(c.behind), c.behindAt
}

// put keeps the uid of an object that is there.
func (c *cloud) put(r object.Ref, obj runtime.Object) *thing {
	c.revision++
	th := &thing{obj: obj, uid: types.UID(fmt.Sprintf("uid-%d", c.revision)), version: c.revision, prefix: c.prefix}
	if have := c.objects[r]; have != nil {
		th.uid = have.uid
	}
	m := obj.(metav1.Object)
	m.SetUID(th.uid)
	m.SetNamespace(r.Namespace)
	m.SetName(r.Name)
	m.SetResourceVersion(strconv.FormatUint(th.version, 10))
	c.objects[r] = th
	return th
}

func (c *cloud) delete(r object.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	delete(c.objects, r)
	c.publish()
}

func (c *cloud) state(r object.Ref) runtime.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	if th := c.objects[r]; th != nil {
		return th.obj
	}
	return nil
}

func (th *thing) id() string { return string(th.uid) + "/" + th.travels() }

// travels is the version that goes down.
func (th *thing) travels() string { return th.prefix + strconv.FormatUint(th.version, 10) }

func resourceOf(i *topicpb.Interest) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.Resource.Group, Version: i.Resource.Version, Resource: i.Resource.Resource}
}

// wanted is what the interests select. Configmaps and secrets that the wanted pods name
// travel with them.
func (c *cloud) wanted() map[object.Ref]*thing {
	all := map[object.Ref]*thing{}
	deps := false
	for _, i := range c.interests {
		if i.Dependencies {
			deps = true
			continue
		}
		if c.forbid != nil && c.forbid(i) != nil {
			continue
		}
		objects := c.objects
		if c.behind != nil {
			objects = c.behind
		}
		for r, th := range objects {
			l, _ := labels.Parse(i.LabelSelector)
			f, _ := fields.ParseSelector(i.FieldSelector)
			if r.Resource == resourceOf(i) && (i.Namespace == "" || i.Namespace == r.Namespace) &&
				l.Matches(labels.Set(th.obj.(metav1.Object).GetLabels())) && f.Matches(object.Fields(th.obj)) {
				all[r] = th
			}
		}
	}
	if deps {
		for _, th := range maps.Clone(all) {
			pod, ok := th.obj.(*corev1.Pod)
			if !ok {
				continue
			}
			for _, v := range pod.Spec.Volumes {
				if v.ConfigMap == nil {
					continue
				}
				r := ref("configmaps", pod.Namespace, v.ConfigMap.Name)
				if cm := c.objects[r]; cm != nil {
					all[r] = cm
				}
			}
		}
	}
	return all
}

// resume compares the digests with what the edge should have and asks for inventories
// where they differ.
func (c *cloud) resume(digests []*topicpb.Digest) {
	c.digests = digests
	late := func(d *topicpb.Digest) bool { return c.behind != nil && d.Written > c.behindAt }
	if slices.ContainsFunc(digests, late) {
		return
	}
	c.known = map[object.Ref]string{}
	want := map[schema.GroupVersionResource][16]byte{}
	count := map[schema.GroupVersionResource]uint64{}
	all := c.wanted()
	for r, th := range all {
		sum := want[r.Resource]
		h := sha256.Sum256([]byte(string(th.uid) + "\x00" + th.travels()))
		for i := range sum {
			sum[i] ^= h[i]
		}
		want[r.Resource] = sum
		count[r.Resource]++
	}
	for _, d := range digests {
		if d.Count == 0 {
			continue // it gets all
		}
		g := schema.GroupVersionResource{Group: d.Resource.Group, Version: d.Resource.Version, Resource: d.Resource.Resource}
		sum := want[g]
		if d.Count == count[g] && slices.Equal(d.Sum, sum[:]) {
			for r, th := range all {
				if r.Resource == g {
					c.known[r] = th.id()
				}
			}
			continue
		}
		if c.guess && d.Newest > 0 {
			c.expect = map[schema.GroupVersionResource]bool{g: true}
			for r, th := range all {
				if r.Resource == g && th.version <= d.Newest {
					c.known[r] = th.id()
				}
			}
			continue
		}
		c.compared = append(c.compared, g.Resource)
		c.down(topic.InventoryRequest.New(message.Resource{}, &topicpb.InventoryRequest{Resource: d.Resource}))
		c.known[object.Ref{Resource: g}] = "asked" // nothing is sent before the inventory came
	}
}

// publish sends what differs from what the edge has.
func (c *cloud) publish() {
	if !c.up || c.known == nil || c.quiet {
		return
	}
	waiting := map[schema.GroupVersionResource]bool{}
	for r := range c.known {
		if r.Name == "" {
			waiting[r.Resource] = true
		}
	}
	for g := range waiting { // an inventory came when the marker is not alone, or was empty: the fake asks only where the edge has something
		for r := range c.known {
			if r.Resource == g && r.Name != "" {
				delete(c.known, object.Ref{Resource: g})
				delete(waiting, g)
				break
			}
		}
	}
	if len(waiting) > 0 {
		return
	}
	s := &topicpb.State{}
	add := func(r object.Ref, ch *topicpb.Change) {
		ch.Namespace, ch.Name = r.Namespace, r.Name
		s.Changes = append(s.Changes, &topicpb.Changes{
			Resource: &topicpb.Resource{Group: r.Resource.Group, Version: r.Resource.Version, Resource: r.Resource.Resource}, Items: []*topicpb.Change{ch},
		})
	}
	all := c.wanted()
	for r, th := range all {
		if c.known[r] == th.id() {
			continue
		}
		raw, err := object.Encode(th.obj)
		if err != nil {
			c.t.Error(err)
		}
		c.sentObjects++
		ch := &topicpb.Change{Object: raw}
		if th.prefix != "" { // else the object says it
			ch.ResourceVersion = th.travels()
		}
		add(r, ch)
		c.known[r] = th.id()
	}
	for r := range c.known {
		if all[r] == nil {
			version := c.revision
			if c.behind != nil {
				version = c.behindAt
			}
			add(r, &topicpb.Change{Deleted: true, ResourceVersion: strconv.FormatUint(version, 10)})
			delete(c.known, r)
		}
	}
	for _, i := range c.interests {
		if c.forbid != nil {
			if st := c.forbid(i); st != nil {
				b, _ := json.Marshal(st)
				s.Refused = append(s.Refused, &topicpb.Refusal{Interest: i.Id, Status: b})
				continue
			}
		}
		s.Synced = append(s.Synced, i.Id)
	}
	for g := range c.expect {
		d := &topicpb.Digest{Resource: &topicpb.Resource{Group: g.Group, Version: g.Version, Resource: g.Resource}, Sum: make([]byte, 16)}
		for r, th := range all {
			if r.Resource == g {
				d.Count++
				h := sha256.Sum256([]byte(string(th.uid) + "\x00" + th.travels()))
				for i := range d.Sum {
					d.Sum[i] ^= h[i]
				}
			}
		}
		s.Expected = append(s.Expected, d)
	}
	c.expect = nil
	c.sequence++
	s.Sequence = c.sequence
	c.down(topic.State.New(message.Resource{}, s))
}

// write does what relay does, as far as an edge can see it.
func (c *cloud) write(m message.Message, w *topicpb.Write) {
	c.writes = append(c.writes, w)
	if c.stuck {
		return
	}
	r := object.Ref{
		Resource:  schema.GroupVersionResource{Group: w.Resource.Group, Version: w.Resource.Version, Resource: w.Resource.Resource},
		Namespace: w.Namespace, Name: w.Name,
	}
	result := &topicpb.WriteResult{Id: w.Id, Accepted: true}
	refuse := func(st *metav1.Status) {
		b, _ := json.Marshal(st)
		result = &topicpb.WriteResult{Id: w.Id, Status: b}
	}
	have := c.objects[r]
	if c.refuse != nil {
		if st := c.refuse(w); st != nil {
			refuse(st)
			c.finish(m, result)
			return
		}
	}
	switch {
	case w.Resource.Resource == "events":
		e := eventIn(c.t, w.Body)
		if have != nil && w.Verb == topicpb.Verb_CREATE {
			break // made before
		}
		c.put(r, e)
		c.effects[r.String()] = append(c.effects[r.String()], fmt.Sprint(e.Count))
	case m.Route.Kind == topic.KindReport:
		c.effects["report "+r.String()] = append(c.effects["report "+r.String()], string(w.Body))
	case have == nil || (w.Uid != "" && types.UID(w.Uid) != have.uid):
		refuse(&metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "not found"})
	case w.Verb == topicpb.Verb_DELETE:
		c.revision++
		delete(c.objects, r)
		result.ResourceVersion = strconv.FormatUint(c.revision, 10)
	default:
		next, err := object.Patch(have.obj, types.PatchType(w.PatchType), w.Body)
		if err != nil {
			refuse(&metav1.Status{Code: 400, Message: err.Error()})
			break
		}
		th := c.put(r, next)
		if pod, ok := next.(*corev1.Pod); ok {
			c.effects[r.String()] = append(c.effects[r.String()], pod.Status.Message)
		}
		result.ResourceVersion = strconv.FormatUint(th.version, 10)
	}
	c.finish(m, result)
	c.publish()
}

func (c *cloud) finish(m message.Message, r *topicpb.WriteResult) {
	if c.hold {
		c.held = append(c.held, func() { c.down(m.Answer(r)) })
		return
	}
	c.down(m.Answer(r))
}

// release sends the results that were held back.
func (c *cloud) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = false
	if c.up {
		for _, send := range c.held {
			send()
		}
	}
	c.held = nil
}

// edge is a Manager that runs against a cloud.
type edge struct {
	*meta.Manager
	t      testing.TB
	cloud  *cloud
	path   string
	config meta.Config
	store  *store.Store
	stop   func()
}

// memoryDir is a directory where a sync costs nothing, if there is one: the tests here are of
// order, those of the store are of disks.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "skerry-meta-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newEdge(t testing.TB, c *cloud, config meta.Config) *edge {
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
	e.Manager = meta.New(e.config)
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

// restart is a reboot: what the process knew is gone. What the cloud still had to say to
// it is, too.
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
	if _, _, err := e.List(context.Background(), ownPods(), meta.ListOptions{FromReflector: true}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *edge) pod(name string) *corev1.Pod {
	e.t.Helper()
	o, err := e.Get(context.Background(), ref("pods", "default", name), meta.Caller{Kubelet: true})
	if err != nil {
		e.t.Fatal(err)
	}
	obj, err := object.Decode(o)
	if err != nil {
		e.t.Fatal(err)
	}
	return obj.(*corev1.Pod)
}

// patchStatus does what a kubelet does when a pod's state has changed.
func (e *edge) patchStatus(name, message string) error {
	uid := e.pod(name).UID
	body := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"message":%q,"conditions":[{"type":"Ready","status":"True","message":%q}]}}`,
		uid, message, message)
	_, err := e.Write(context.Background(), meta.Write{
		Verb: "patch", Ref: ref("pods", "default", name), Subresource: "status", PatchType: types.StrategicMergePatchType, Body: []byte(body),
		Caller: meta.Caller{Kubelet: true},
	})
	return err
}

// deletePod does what a kubelet does when all containers of a pod have ended.
func (e *edge) deletePod(name string) error {
	body := fmt.Appendf(nil, `{"gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, e.pod(name).UID)
	_, err := e.Write(context.Background(), meta.Write{
		Verb: "delete", Ref: ref("pods", "default", name), Body: body, Caller: meta.Caller{Kubelet: true},
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
	_, err = e.Write(context.Background(), meta.Write{Verb: "create", Ref: object.Ref{Resource: resource("events"), Namespace: "default"}, Body: body})
	return err
}

func (e *edge) repeatEvent(name string, count int) error {
	_, err := e.Write(context.Background(), meta.Write{
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

// eventIn decodes the body of an event's write. What the cloud is to set itself is not in it.
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
