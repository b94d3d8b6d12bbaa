package metamanager_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

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

func resourceOf(i *topicpb.Interest) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.Resource.Group, Version: i.Resource.Version, Resource: i.Resource.Resource}
}

// wanted returns the objects that the interests select. ConfigMaps and Secrets of the wanted pods
// are included.
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

// resume compares the digests with the expected objects and asks for inventories where they differ.
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
		c.known[object.Ref{Resource: g}] = "asked" // send no objects before the inventory
	}
}

// publish sends the objects that differ from the edge's.
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
	for g := range waiting { // an inventory arrived if there are other objects than the marker, or if it was empty: the fake asks only if the edge has some
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
		if ch.Deleted || !c.unnamed {
			ch.Namespace, ch.Name = r.Namespace, r.Name
		}
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
		if th.prefix != "" { // else the object has it
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

// write acts as relay does, as far as an edge can observe.
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
