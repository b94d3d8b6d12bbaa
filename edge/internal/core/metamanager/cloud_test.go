package metamanager_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func resource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: name}
}

func ref(name, namespace, object_ string) object.Ref {
	return object.Ref{Resource: resource(name), Namespace: namespace, Name: object_}
}

// cloud behaves as cloudcore and kube-apiserver do, seen from the edge's bus: it keeps objects with
// resource versions, sends the objects of the interests, resumes by digests, and takes writes. It
// is the port of the Manager under test.
type cloud struct {
	prefix string // of versions issued from now on
	guess  bool   // of a resource whose digest differs it sends the objects newer than all of the edge's, and the digests that it expects
	names  bool   // is of a release that names each object next to it, whatever an edge requests
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
	unnamed   bool // the edge takes names from the objects
	quiet     bool // sends only replies
	expect    map[schema.GroupVersionResource]bool
	surprised []string              // resources that the edge holds otherwise than expected
	known     map[object.Ref]string // objects of the edge, as uid/version; nil: not compared yet
	behind    map[object.Ref]*thing // objects as a lagging watch shows them; nil: it does not lag
	behindAt  uint64                // ... as of this revision
	digests   []*topicpb.Digest     // that are compared once the watch has caught up
	sequence  uint64
	stuck     bool // takes writes, never answers
	refuse    func(*topicpb.Write) *metav1.Status
	forbid    func(*topicpb.Interest) *metav1.Status
	answer    func(*topicpb.APIRequest) *topicpb.APIResponse
	held      []func() // results that are held back
	hold      bool

	// Recorded requests.
	writes      []*topicpb.Write
	effects     map[string][]string // by object: the result of each effective write
	compared    []string            // resources whose inventory was asked for
	sentObjects int
	acked       uint64 // states that the edge has acknowledged
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
	case *topicpb.StateAck:
		c.acked = content.GetSequence()
	case *topicpb.Interests:
		c.interests, c.unnamed = content.Interests, content.Unnamed && !c.names
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

func (c *cloud) set(r object.Ref, obj runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(r, obj)
	c.publish()
}

// lag freezes the delivered state: it no longer follows the objects.
func (c *cloud) lag() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind, c.behindAt = maps.Clone(c.objects), c.revision
}

// past returns the state that lag copies.
func (c *cloud) past() (objects map[object.Ref]*thing, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.objects), c.revision
}

// lagSince behaves as a replica that has not seen later changes.
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

// goBack resets the objects to their state when the lag began.
func (c *cloud) goBack() { c.restore(c.behind, c.behindAt) }

// restore resets the objects to an earlier state; deliveries follow when the lag ends.
func (c *cloud) restore(objects map[object.Ref]*thing, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.revision = maps.Clone(objects), at
}

// put keeps the uid of an existing object.
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

// travels returns the version on the wire.
func (th *thing) travels() string { return th.prefix + strconv.FormatUint(th.version, 10) }
