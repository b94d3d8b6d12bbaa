package hollow

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/version"
	edge "github.com/skerry-io/skerry/edge/hollow"
)

// self is the receiver of answers to a node's requests.
const self message.Name = "hollow"

// node stands for metamanager and the kubelet of one device. It is the Port of its hub.
type node struct {
	fleet     *Fleet
	name      string
	hub       *edge.Hub
	interests []*topicpb.Interest
	epoch     atomic.Uint64
	writes    atomic.Uint64
	reports   reports
	up        chan message.Message // to the hub, which takes it up; at the bound the hub's own read loop waits
	due       chan struct{}        // one slot: the kubelet has a message to send

	mu         sync.Mutex
	session    uint64 // 0: no link
	registered bool
	asking     bool
	reported   time.Time
	waiting    map[uint64]bool // interests that this session has not brought yet
	holdings   map[string]*holding
}

// holding is a node's holding of one resource.
type holding struct {
	resource *topicpb.Resource
	sum      [sumSize]byte
	entries  map[string]*topicpb.Entry // by namespace NUL name
}

const sumSize = 16

var _ edge.Port = (*node)(nil)

func (f *Fleet) newNode(ctx context.Context, name string) (*node, error) {
	cert, err := f.config.Identity(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("making the identity of %s: %w", name, err)
	}
	dialer, err := f.dialer(cert)
	if err != nil {
		return nil, err
	}
	n := &node{
		fleet: f, name: name, interests: interestsOf(name), up: make(chan message.Message, 64), due: make(chan struct{}, 1), holdings: map[string]*holding{},
	}
	if f.config.Operate != nil {
		n.interests = append(n.interests, operationsOf(name, uint64(len(n.interests)+1)))
	}
	// Above those of an earlier run with the same names, as a device's own are, which it keeps.
	n.epoch.Store(uint64(time.Now().UnixMilli()))
	n.hub, err = edge.New(edge.Config{
		Servers: []string{f.address()}, Dialer: dialer, Epochs: n, Alive: func() bool { return true }, AliveChanged: make(chan struct{}),
		Version: version.Skerry(), BootID: name, Module: self, Keepalive: f.config.Keepalive,
	})
	return n, err
}

// NextEpoch implements hub.Epochs.
func (n *node) NextEpoch(context.Context) (uint64, error) { return n.epoch.Add(1), nil }

func (n *node) run(ctx context.Context) error {
	var kubelet sync.WaitGroup
	defer kubelet.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kubelet.Go(func() { n.kubelet(ctx) })
	return n.hub.Serve(ctx, n)
}

// kubelet registers the node while it is not, and reports its status at the usual interval.
func (n *node) kubelet(ctx context.Context) {
	every := n.fleet.config.StatusEvery
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		if m, ok := n.nextReport(); ok {
			n.send(ctx, m)
		}
		// Spread as a kubelet spreads it, so that nodes which started together don't keep reporting
		// together.
		timer.Reset(every + rand.N(every/20+1) - every/40)
		select {
		case <-ctx.Done():
			return
		case <-n.due:
		case <-timer.C:
		}
	}
}

// nextReport returns the kubelet's next message.
func (n *node) nextReport() (message.Message, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.session == 0 || n.asking:
		return message.Message{}, false
	case !n.registered:
		m := topic.APIRequest.New(message.Resource{}, registration(n.name, time.Now()))
		m.Header.Sync, m.Route.Source = true, self
		n.asking = true
		return m, true
	case time.Since(n.reported) < n.fleet.config.StatusEvery*9/10:
		return message.Message{}, false
	}
	n.reported = time.Now()
	return topic.NodeStatusWrite.New(message.Resource{Name: n.name}, status(n.name, n.writes.Add(1), n.reported)), true
}

func (n *node) wake() {
	select {
	case n.due <- struct{}{}:
	default:
	}
}

func (n *node) send(ctx context.Context, m message.Message) {
	select {
	case n.up <- m:
	case <-ctx.Done():
	}
}

// ---- the Port ----

// Ready implements hub.Port.
func (n *node) Ready() {}

// Receive implements hub.Port: it returns the next message for the hub to send.
func (n *node) Receive(ctx context.Context) (message.Message, error) {
	select {
	case m := <-n.up:
		return m, nil
	case <-ctx.Done():
		return message.Message{}, ctx.Err()
	}
}

// Answer implements hub.Port: no goroutine waits for an answer.
func (n *node) Answer(message.Message) error { return nil }

// Reply implements hub.Port: the hub refuses a request as there is no link.
func (n *node) Reply(context.Context, message.Message, any) error {
	n.mu.Lock()
	n.asking = false
	n.mu.Unlock()
	return nil
}

// SendToGroup implements hub.Port: the hub reports the link's state.
func (n *node) SendToGroup(ctx context.Context, _ message.Group, m message.Message) error {
	if epoch, ok := edge.Up(m); ok {
		n.opened(ctx, epoch)
	} else if _, ok := edge.Down(m); ok {
		n.closed()
	}
	return nil
}

func (n *node) opened(ctx context.Context, epoch uint64) {
	n.mu.Lock()
	n.session, n.waiting, n.asking = epoch, map[uint64]bool{}, false
	m := topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: n.interests, Unnamed: true})
	for _, i := range n.interests {
		n.waiting[i.Id] = true
	}
	for _, h := range n.holdings {
		if len(h.entries) > 0 {
			m.Content.(*topicpb.Interests).Digests = append(m.Content.(*topicpb.Interests).Digests,
				&topicpb.Digest{Resource: h.resource, Count: uint64(len(h.entries)), Sum: h.sum[:]})
		}
	}
	n.mu.Unlock()
	m.Header.Session = epoch
	n.fleet.connects.Add(1)
	n.fleet.note(&n.fleet.linked, 1)
	n.send(ctx, m)
	for _, m := range n.reports.all() {
		n.send(ctx, m)
	}
	n.wake()
}

func (n *node) closed() {
	n.mu.Lock()
	whole := n.session != 0 && len(n.waiting) == 0
	n.session = 0
	n.mu.Unlock()
	if whole {
		n.fleet.synced.Add(-1)
	}
	n.fleet.note(&n.fleet.linked, -1)
}

// Send implements hub.Port: it takes a message that has come down.
func (n *node) Send(ctx context.Context, _ message.Name, m message.Message) error {
	switch c := m.Content.(type) {
	case *topicpb.State:
		n.apply(c)
		n.operate(ctx, c)
		n.send(ctx, m.Answer(&topicpb.StateAck{Sequence: c.Sequence}))
	case *topicpb.InventoryRequest:
		n.send(ctx, m.Answer(n.inventory(c)))
	case *topicpb.APIResponse:
		n.answered(c)
	case *topicpb.WriteResult:
		n.reports.answered(c.Id)
		if !c.Accepted {
			n.fleet.refused.Add(1)
		}
	}
	return nil
}

// answered takes the answer to the registration: the node is there now, or was already.
func (n *node) answered(r *topicpb.APIResponse) {
	const created, conflict = 201, 409
	n.mu.Lock()
	n.asking = false
	if n.registered || r.Code != created && r.Code != conflict {
		n.mu.Unlock()
		time.AfterFunc(time.Second, n.wake) // a kubelet tries again soon
		return
	}
	n.registered = true
	if r.Code == created {
		n.reported = time.Now() // it came with its status
	}
	n.mu.Unlock()
	n.fleet.note(&n.fleet.registered, 1)
	n.wake()
}

func (n *node) apply(s *topicpb.State) {
	n.mu.Lock()
	before := len(n.waiting)
	for _, r := range s.Refused {
		delete(n.waiting, r.Interest)
	}
	for _, changes := range s.Changes {
		h := n.holding(changes.Resource)
		for _, c := range changes.Items {
			h.apply(c)
		}
		n.fleet.changes.Add(int64(len(changes.Items)))
	}
	for _, id := range s.Synced {
		delete(n.waiting, id)
	}
	whole := before > 0 && len(n.waiting) == 0
	n.mu.Unlock()
	n.fleet.refused.Add(int64(len(s.Refused)))
	if whole {
		n.fleet.note(&n.fleet.synced, 1)
	}
}

// holding finds the holding of a resource. The lock is held.
func (n *node) holding(r *topicpb.Resource) *holding {
	key := r.GetGroup() + "/" + r.GetVersion() + "/" + r.GetResource()
	h := n.holdings[key]
	if h == nil {
		h = &holding{resource: r, entries: map[string]*topicpb.Entry{}}
		n.holdings[key] = h
	}
	return h
}

func (h *holding) apply(c *topicpb.Change) {
	var said metav1.PartialObjectMetadata
	if !c.Deleted {
		said = metadata(c.Object)
	}
	namespace, name := c.Namespace, c.Name
	if name == "" { // see Interests.unnamed
		namespace, name = said.Namespace, said.Name
	}
	key := namespace + "\x00" + name
	if old := h.entries[key]; old != nil {
		h.flip(old)
		delete(h.entries, key)
	}
	if !c.Deleted {
		e := &topicpb.Entry{
			Namespace: namespace, Name: name, Uid: cmp.Or(c.Uid, string(said.UID)), ResourceVersion: cmp.Or(c.ResourceVersion, said.ResourceVersion),
		}
		h.entries[key] = e
		h.flip(e)
	}
}

// metadata is an object's metadata; empty where it can't be read. In Kubernetes' protobuf the
// metadata is the first field of every kind.
func metadata(raw []byte) (o metav1.PartialObjectMetadata) {
	var unknown runtime.Unknown
	if proto, ok := bytes.CutPrefix(raw, []byte("k8s\x00")); ok {
		if unknown.Unmarshal(proto) == nil && o.Unmarshal(unknown.Raw) == nil {
			return o
		}
		return metav1.PartialObjectMetadata{}
	}
	_ = json.Unmarshal(raw, &o)
	return o
}

// flip puts an entry into the sum, or takes it out.
func (h *holding) flip(e *topicpb.Entry) { xor(&h.sum, e) }

// xor is the sum of a digest: see topicpb.Digest.
func xor(sum *[sumSize]byte, e *topicpb.Entry) {
	one := sha256.Sum256([]byte(e.Uid + "\x00" + e.ResourceVersion))
	for i := range sum {
		sum[i] ^= one[i]
	}
}

// inventory answers the cloud's request where a digest differs.
func (n *node) inventory(q *topicpb.InventoryRequest) *topicpb.Inventory {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.holding(q.Resource)
	answer := &topicpb.Inventory{Resource: q.Resource}
	only := map[byte]bool{}
	for _, b := range q.Only {
		only[byte(b)] = true
	}
	var sums [256][sumSize]byte
	for key, e := range h.entries {
		bucket := sha256.Sum256([]byte(key))[0]
		if q.Buckets {
			xor(&sums[bucket], e)
		} else if len(only) == 0 || only[bucket] {
			answer.Entries = append(answer.Entries, e)
		}
	}
	if q.Buckets {
		for i := range sums {
			answer.Sums = append(answer.Sums, sums[i][:4]...)
		}
	}
	return answer
}

// ---- operations ----

// operate passes the operations among changes to the node's Operate.
func (n *node) operate(ctx context.Context, s *topicpb.State) {
	if n.fleet.config.Operate == nil {
		return
	}
	for _, changes := range s.Changes {
		if changes.Resource.GetResource() != v1alpha1.NodeOperations {
			continue
		}
		for _, c := range changes.Items {
			o := &v1alpha1.NodeOperation{}
			if c.Deleted || json.Unmarshal(c.Object, o) != nil {
				continue
			}
			n.fleet.config.Operate(n.name, o, func(status v1alpha1.NodeOperationStatus) { n.report(ctx, o, status) })
		}
	}
}

func (n *node) report(ctx context.Context, o *v1alpha1.NodeOperation, status v1alpha1.NodeOperationStatus) {
	body, err := json.Marshal(status)
	if err != nil {
		panic(fmt.Sprintf("hollow: a status does not encode: %v", err)) // it has no field that could fail
	}
	id := n.writes.Add(1)
	m := topic.ReportWrite.New(message.Resource{Name: o.Name}, &topicpb.Write{
		Id: id, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.NodeOperations},
		Name: o.Name, Subresource: "status", Uid: string(o.UID), Body: body, UnixMillis: time.Now().UnixMilli(),
	})
	n.reports.put(id, m)
	go n.send(ctx, m) // the caller may be the hub's read loop, which must not wait for its own queue
}
