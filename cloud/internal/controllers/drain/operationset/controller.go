package operationset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// settle is the time for further changes before a plan: reports of a fleet come in waves.
	settle = 500 * time.Millisecond
	// statusEvery is between two statuses of a set of which only the counts differ.
	statusEvery = 2 * time.Second
	// lookTimeout bounds the requests of one plan, atOnce how many of them are open, and maxWrites
	// how many changes of one sort it makes before it looks again.
	lookTimeout = time.Minute
	atOnce      = 16
	maxWrites   = 500
)

// Client makes requests at kube-apiserver, as cloudcore itself.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
	Kubernetes() kubernetes.Interface
}

// Stores are the collections that all of cloudcore shares.
type Stores struct{ Sets, Operations, Nodes, Pools *kube.Store }

// Controller carries the sets out.
type Controller struct {
	client     Client
	stores     Stores
	sets       *kube.Mirror[Set]
	operations *kube.Mirror[Operation]
	nodes      *kube.Mirror[Node]
	pools      *kube.Mirror[Pool]
	events     record.EventRecorder
	written    map[types.UID]time.Time // statuses; lost with the process
}

// New makes a Controller. It starts nothing.
func New(client Client, stores Stores) *Controller {
	return &Controller{
		client: client, stores: stores, written: map[types.UID]time.Time{},
		sets: kube.NewMirror(readSet, func(old, now *Set) bool {
			return old.UID == now.UID && old.Generation == now.Generation && maps.Equal(old.Annotations, now.Annotations)
		}),
		operations: kube.NewMirror(readOperation, nil),
		nodes: kube.NewMirror(readNode, func(old, now *Node) bool {
			return old.UID == now.UID && old.Ready == now.Ready && old.Since.Equal(now.Since) && old.Unread == now.Unread &&
				maps.Equal(old.Labels, now.Labels) && equality.Semantic.DeepEqual(old.Results, now.Results)
		}),
		pools: kube.NewMirror(readPool, nil),
	}
}

func readSet(o *kube.Object) (*Set, error) {
	s := &v1alpha1.NodeOperationSet{}
	if err := json.Unmarshal(o.Raw, s); err != nil {
		return nil, fmt.Errorf("NodeOperationSet %s: %w", o.Name, err)
	}
	return NewSet(s), nil
}

func readOperation(o *kube.Object) (*Operation, error) {
	op := &v1alpha1.NodeOperation{}
	if err := json.Unmarshal(o.Raw, op); err != nil {
		return nil, fmt.Errorf("NodeOperation %s: %w", o.Name, err)
	}
	return NewOperation(op), nil
}

// readNode reads an edge node; of others nil.
func readNode(o *kube.Object) (*Node, error) {
	n := &corev1.Node{}
	if err := kube.FromProtobuf(o.Raw, schema.GroupVersionKind{Version: "v1", Kind: "Node"}, n); err != nil {
		return nil, fmt.Errorf("node %s: %w", o.Name, err)
	}
	return NewNode(n), nil
}

func readPool(o *kube.Object) (*Pool, error) {
	p := &v1alpha1.NodePool{}
	if err := json.Unmarshal(o.Raw, p); err != nil {
		return nil, fmt.Errorf("NodePool %s: %w", o.Name, err)
	}
	matches, err := v1alpha1.PoolMembers{Pool: p.Name, NodeSelector: p.Spec.NodeSelector}.Selector()
	if err != nil {
		matches = func(labels.Set) bool { return false } // its own status reports that
	}
	return &Pool{p.Name, matches}, nil
}

// Run works until ctx ends. Only the leader runs it.
func (c *Controller) Run(ctx context.Context) error {
	for _, s := range []*kube.Store{c.stores.Sets, c.stores.Operations, c.stores.Nodes, c.stores.Pools} {
		select {
		case <-s.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	clear(c.written)
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.Kubernetes().CoreV1().Events(metav1.NamespaceAll)})
	defer events.Shutdown()
	c.events = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "cloudcore"})
	loop := rerun.New(c.look, rerun.Config{
		Settle: settle, RetryMin: time.Second, RetryMax: 30 * time.Second,
		Failed: func(ctx context.Context, err error, retry time.Duration) {
			klog.FromContext(ctx).V(1).Info("Failed to carry out NodeOperationSets, retrying", "err", err, "retryIn", retry)
		},
	})
	defer c.sets.Follow(c.stores.Sets, loop.Wake)()
	defer c.operations.Follow(c.stores.Operations, loop.Wake)()
	defer c.nodes.Follow(c.stores.Nodes, loop.Wake)()
	defer c.pools.Follow(c.stores.Pools, loop.Wake)()
	loop.Run(ctx)
	return nil
}

// state reads the mirrors.
func (c *Controller) state(now time.Time) (s State, err error) {
	s.Now = now
	if s.Sets, err = c.sets.List(); err != nil {
		return s, err
	}
	if s.Operations, err = c.operations.List(); err != nil {
		return s, err
	}
	nodes, err := c.nodes.List()
	if err != nil {
		return s, err
	}
	for _, n := range nodes {
		if v1alpha1.IsEdge(n.Labels) {
			s.Nodes = append(s.Nodes, n)
		}
	}
	pools, err := c.pools.List()
	for _, p := range pools {
		s.Pools = append(s.Pools, *p)
	}
	return s, err
}

// look plans once and makes the changes.
func (c *Controller) look(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	now := time.Now()
	s, err := c.state(now)
	if err != nil {
		return 0, err
	}
	changes := Plan(s)
	maps.DeleteFunc(c.written, func(uid types.UID, _ time.Time) bool {
		return !slices.ContainsFunc(s.Sets, func(set *Set) bool { return set.UID == uid })
	})
	more, err := c.apply(ctx, s, changes)
	for _, status := range changes.Status {
		wait, failed := c.report(ctx, status, now)
		err = errors.Join(err, failed)
		if wait > 0 {
			changes.again(now.Add(wait))
		}
	}
	switch {
	case err != nil:
		return 0, err
	case more:
		return time.Millisecond, nil
	case changes.Again.IsZero():
		return 0, nil
	}
	return max(time.Millisecond, time.Until(changes.Again)), nil
}

// apply makes all changes but those of statuses. more: it left some for the next call.
func (c *Controller) apply(ctx context.Context, s State, changes *Changes) (more bool, err error) {
	gone, err := c.gone(ctx, changes.Gone)
	if err != nil {
		return false, err
	}
	exists := map[string]bool{}
	for _, set := range s.Sets {
		exists[string(set.UID)] = true
	}
	for uid := range changes.Gone {
		exists[string(uid)] = !gone[uid]
	}
	changes.Delete = slices.DeleteFunc(changes.Delete, func(o *Operation) bool {
		uid := types.UID(o.Origin.UID)
		_, asked := changes.Gone[uid]
		return asked && !gone[uid]
	})
	for i := range changes.Record {
		changes.Record[i].Drop = slices.DeleteFunc(changes.Record[i].Drop, func(uid types.UID) bool { return !gone[uid] })
	}
	changes.Record = merged(changes.Record)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	do := func(n, most int, one func(ctx context.Context, i int) error) {
		more = more || n > most
		for i := range min(n, most) {
			g.Go(func() error {
				if err := one(ctx, i); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
					return err
				}
				return nil // the watch will bring the newer version, and with it another plan
			})
		}
	}
	do(len(changes.Record), maxWrites, func(ctx context.Context, i int) error {
		return c.record(ctx, changes.Record[i], s.Sets, func(uid string) bool { return exists[uid] })
	})
	do(len(changes.Delete), maxWrites, func(ctx context.Context, i int) error { return c.delete(ctx, changes.Delete[i]) })
	do(len(changes.Cancel), maxWrites, func(ctx context.Context, i int) error { return c.cancel(ctx, changes.Cancel[i]) })
	do(len(changes.Expire), maxWrites, func(ctx context.Context, i int) error { return c.expire(ctx, changes.Expire[i]) })
	do(len(changes.Create), maxWrites, func(ctx context.Context, i int) error { return c.create(ctx, changes.Create[i]) })
	return more, g.Wait()
}

// merged is one record a node.
func merged(records []Record) (out []Record) {
	at := map[string]int{}
	for _, r := range records {
		if len(r.Add) == 0 && len(r.Drop) == 0 {
			continue
		}
		if i, ok := at[r.Node]; ok {
			out[i].Add, out[i].Drop = append(out[i].Add, r.Add...), append(out[i].Drop, r.Drop...)
			continue
		}
		at[r.Node] = len(out)
		out = append(out, r)
	}
	return out
}

func path(plural, name, subresource string) string {
	p := "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version + "/" + plural
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	if subresource != "" {
		p += "/" + subresource
	}
	return p
}

func nodePath(name string) string { return "/api/v1/nodes/" + url.PathEscape(name) }

// request makes a request with a body, and reads the answer into out where that is not nil.
func (c *Controller) request(ctx context.Context, method, path, contentType string, body, out any) error {
	r := kube.Request{Method: method, Path: path, ContentType: contentType}
	if body != nil {
		var err error
		if r.Body, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encoding the body of %s %s: %w", method, path, err)
		}
	}
	resp, err := c.client.Do(ctx, kube.Identity{}, r)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if err := resp.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(resp.Body, out); err != nil {
		return fmt.Errorf("reading the answer to %s %s: %w", method, path, err)
	}
	return nil
}

const (
	jsonContent = "application/json"
	mergePatch  = string(types.MergePatchType)
)

// gone asks which sets are gone: the watch may be older than an object that names a set.
func (c *Controller) gone(ctx context.Context, sets map[types.UID]string) (map[types.UID]bool, error) {
	gone := map[types.UID]bool{}
	for uid, name := range sets {
		var o metav1.PartialObjectMetadata
		err := c.request(ctx, http.MethodGet, path(v1alpha1.NodeOperationSets, name, ""), "", nil, &o)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		gone[uid] = err != nil || o.UID != uid
	}
	return gone, nil
}

// node reads a Node, by a quorum: the watch may be older than a result that another replica wrote.
func (c *Controller) node(ctx context.Context, name string) (*corev1.Node, *Node, error) {
	var n corev1.Node
	if err := c.request(ctx, http.MethodGet, nodePath(name), "", nil, &n); err != nil {
		return nil, nil, err
	}
	return &n, NewNode(&n), nil
}

// create makes an operation, unless the node has a result by now.
func (c *Controller) create(ctx context.Context, change Create) error {
	_, n, err := c.node(ctx, change.Node.Name)
	if err != nil || n.Unread || n.ended(change.Set) != nil || !n.linked() {
		return err
	}
	origin, err := json.Marshal(change.Origin)
	if err != nil {
		return fmt.Errorf("encoding the origin of an operation: %w", err)
	}
	o := &v1alpha1.NodeOperation{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperation"},
		ObjectMeta: metav1.ObjectMeta{
			Name: OperationName(change.Origin, n.Name), Labels: map[string]string{v1alpha1.OperationSetLabel: change.Set.Name},
			Annotations: map[string]string{v1alpha1.OperationSetAnnotation: string(origin)},
		},
		Spec: change.Set.Spec.Template.Spec(n.Name),
	}
	if v1alpha1.RightOf(o.Spec.Operation) != "" { // the device may have rejected the digest
		o.Spec.Retry = change.Set.Spec.Retry
	}
	if by := change.Set.Annotations[v1alpha1.RequestedByAnnotation]; by != "" {
		o.Annotations[v1alpha1.RequestedByAnnotation] = by
	}
	err = c.request(ctx, http.MethodPost, path(v1alpha1.NodeOperations, "", ""), jsonContent, o, nil)
	if apierrors.IsAlreadyExists(err) {
		return c.taken(ctx, change, o.Name)
	}
	if err == nil {
		c.events.Event(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: types.UID(n.Name)}, corev1.EventTypeNormal, "OperationCreated",
			fmt.Sprintf("NodeOperationSet %s: %s (wave %d)", change.Set.Name, describe(change.Set), change.Origin.Wave+1))
	}
	return err
}

// taken looks at an operation that has the name of one to make. It is usually the one, and the
// watch will bring it. An object of another origin would hold the wave up for ever.
func (c *Controller) taken(ctx context.Context, change Create, name string) error {
	var o v1alpha1.NodeOperation
	if err := c.request(ctx, http.MethodGet, path(v1alpha1.NodeOperations, name, ""), "", nil, &o); err != nil {
		return err
	}
	if NewOperation(&o).current(change.Set) {
		return nil
	}
	return c.record(ctx, Record{Node: change.Node.Name, Add: []v1alpha1.OperationSetResult{{
		OperationSetOrigin: change.Origin, Result: v1alpha1.ResultFailed, Reason: "NameTaken", At: metav1.Now().Rfc3339Copy(),
		Message: cut("a NodeOperation of another origin is named "+name, maxText),
	}}}, []*Set{change.Set}, func(string) bool { return true })
}

// describe is the operation of a set and who requested it, for events.
func describe(s *Set) string {
	t := &s.Spec.Template
	text := string(t.Operation)
	if subject := subject(t); subject != "" {
		text += " " + subject
	}
	if by := s.Annotations[v1alpha1.RequestedByAnnotation]; by != "" {
		text += ", requested by " + by
	}
	return cut(text, 400)
}

// record changes the annotation of a node on the condition that the Node is as it was read.
func (c *Controller) record(ctx context.Context, r Record, sets []*Set, exists func(uid string) bool) error {
	o, n, err := c.node(ctx, r.Node)
	if err != nil {
		return err
	}
	results := With(n.Results, r, exists)
	if n.Unread || equality.Semantic.DeepEqual(results, n.Results) {
		return nil
	}
	var value any // nil removes the annotation
	if len(results) > 0 {
		text, err := json.Marshal(results)
		if err != nil {
			return fmt.Errorf("encoding the results of node %s: %w", r.Node, err)
		}
		value = string(text)
	}
	if err := c.request(ctx, http.MethodPatch, nodePath(r.Node), mergePatch, map[string]any{"metadata": map[string]any{
		"uid": o.UID, "resourceVersion": o.ResourceVersion, "annotations": map[string]any{v1alpha1.OperationSetsAnnotation: value},
	}}, nil); err != nil {
		return err
	}
	for _, add := range r.Add {
		i := slices.IndexFunc(sets, func(s *Set) bool { return string(s.UID) == add.UID })
		if i < 0 || add.Result == v1alpha1.ResultDone {
			continue
		}
		c.events.Event(sets[i].NodeOperationSet, corev1.EventTypeWarning, "Operation"+string(add.Result),
			fmt.Sprintf("%s: %s: %s: %s", r.Node, describe(sets[i]), add.Reason, add.Message))
	}
	return nil
}

// delete deletes an operation that is still as it was seen.
func (c *Controller) delete(ctx context.Context, o *Operation) error {
	return c.request(ctx, http.MethodDelete, path(v1alpha1.NodeOperations, o.Name, ""), jsonContent, &metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.Revision},
	}, nil)
}

// cancel cancels an operation for its set: its end is no result.
func (c *Controller) cancel(ctx context.Context, o *Operation) error {
	origin := *o.Origin
	origin.Withdrawn = true
	text, err := json.Marshal(origin)
	if err != nil {
		return fmt.Errorf("encoding the origin of an operation: %w", err)
	}
	return c.request(ctx, http.MethodPatch, path(v1alpha1.NodeOperations, o.Name, ""), mergePatch, map[string]any{
		"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.Revision, "annotations": map[string]any{v1alpha1.OperationSetAnnotation: string(text)}},
		"spec":     map[string]any{"cancel": true},
	}, nil)
}

func (c *Controller) expire(ctx context.Context, s *Set) error {
	return c.request(ctx, http.MethodDelete, path(v1alpha1.NodeOperationSets, s.Name, ""), jsonContent, &metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	}, nil)
}

// report writes the status of a set where it differs. wait: it waits for further changes.
func (c *Controller) report(ctx context.Context, change Status, now time.Time) (wait time.Duration, err error) {
	s := change.Set
	status := Timed(change.Status, s.Status, now)
	if equality.Semantic.DeepEqual(status, s.Status) {
		return 0, nil
	}
	sameConditions := len(status.Conditions) == len(s.Status.Conditions)
	for i := range status.Conditions {
		sameConditions = sameConditions && status.Conditions[i].Status == s.Status.Conditions[i].Status && status.Conditions[i].Reason == s.Status.Conditions[i].Reason
	}
	if next := c.written[s.UID].Add(statusEvery); sameConditions && now.Before(next) {
		return next.Sub(now), nil
	}
	c.written[s.UID] = now
	o := s.NodeOperationSet.DeepCopy()
	o.Status = status
	o.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("NodeOperationSet"))
	err = c.request(ctx, http.MethodPut, path(v1alpha1.NodeOperationSets, s.Name, "status"), jsonContent, o, nil)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return time.Second, nil // the watch is behind
	}
	if err == nil {
		c.tell(s, status)
	}
	return 0, err
}

// tell makes the events of a set whose conditions have changed.
func (c *Controller) tell(s *Set, status v1alpha1.NodeOperationSetStatus) {
	if status.Wave != s.Status.Wave {
		c.events.Event(s.NodeOperationSet, corev1.EventTypeNormal, "WaveBegun", fmt.Sprintf("wave %s: %s", status.Wave, describe(s)))
	}
	for _, now := range status.Conditions {
		if now.Status != metav1.ConditionTrue || now.Type == v1alpha1.SetReconciling || same(now, s.Status.Conditions) {
			continue
		}
		kind := corev1.EventTypeWarning
		if now.Type == v1alpha1.SetReady {
			kind = corev1.EventTypeNormal
		}
		c.events.Event(s.NodeOperationSet, kind, now.Reason, cut(now.Message, 900))
	}
}

// same reports whether a condition was there with the same status and reason.
func same(c metav1.Condition, former []metav1.Condition) bool {
	return slices.ContainsFunc(former, func(old metav1.Condition) bool {
		return old.Type == c.Type && old.Status == c.Status && old.Reason == c.Reason
	})
}
