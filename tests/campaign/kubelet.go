package campaign

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// kubelet stands for the kubelet of an edge: it registers the node, renews its Lease, follows its
// pods and the objects that they refer to, writes their statuses and events, and confirms their
// deletion.
type kubelet struct {
	s    *system
	edge *edge
	all  sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*sandbox
	// reported is how many events there are about a pod, also of one that a damaged store
	// has lost and the cloud has brought back: an event of the same name once more would
	// begin to count again.
	reported map[types.UID]int
	refs     map[string]*sync.Mutex // by resource and name: held by its watcher
}

// sandbox is a pod that runs.
type sandbox struct {
	name string
	uid  types.UID
	stop context.CancelFunc

	mu     sync.Mutex // held over a write, so that a pod's writes come one after the other
	status int64      // the last that was written
	events int
}

func (s *system) newKubelet(e *edge) *kubelet {
	return &kubelet{s: s, edge: e, pods: map[types.UID]*sandbox{}, refs: map[string]*sync.Mutex{}, reported: map[types.UID]int{}}
}

// run works until ctx ends; from the end of work on it writes only the necessary.
func (k *kubelet) run(ctx, work context.Context) {
	defer k.all.Wait()
	k.all.Go(func() { k.heartbeat(ctx) })
	k.all.Go(func() { k.list(ctx) })
	k.all.Go(func() { (&view{recorder: k.s.recorder, who: k.edge.name}).follow(ctx, nodeOf(k.edge), nil) })
	view := &view{recorder: k.s.recorder, who: k.edge.name}
	view.follow(ctx, podsOf(k.edge), func(r history.Record, o metav1.Object) { k.onPod(ctx, work, r, o) })
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		p.stop()
	}
}

// heartbeat registers the node at each start of edgecore, as the kubelet within it does, and
// renews its Lease.
func (k *kubelet) heartbeat(ctx context.Context) {
	var registered *process.Started // the edgecore that has taken it in
	for ; ctx.Err() == nil; pause(ctx, 2*time.Second) {
		if now := k.edge.running(); now != registered && k.register(ctx) == nil {
			registered = now
		}
		k.renew(ctx)
	}
}

func (k *kubelet) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_, err := k.edge.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.edge.name, Labels: map[string]string{corev1.LabelHostname: k.edge.name, "skerry.io/edge": ""}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (k *kubelet) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	leases := k.edge.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, k.edge.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, _ = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: k.edge.name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.edge.name, LeaseDurationSeconds: new(int32(40)), RenewTime: &now},
		}, metav1.CreateOptions{}) // again in a moment
		return
	}
	if err == nil {
		lease.Spec.RenewTime = &now
		_, _ = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
}

// listPatience is longer than edgecore's wait for an answer of the cloud, during which it may
// answer many other requests before a list that it can answer by itself.
const (
	listPatience = 45 * time.Second
	meanwhile    = 5
)

// list asks for all pods, as a kubelet does that has just started, and records when an edgecore
// that has answered that does not any more, or answers others first.
func (k *kubelet) list(ctx context.Context) {
	var answered *process.Started
	for ; ctx.Err() == nil; pause(ctx, 300*time.Millisecond) {
		now := k.edge.running()
		r := history.Record{Kind: history.Unanswered, Who: k.edge.name, Resource: "pods", Name: namespace + "/", Node: k.edge.name, At: k.s.recorder.Now()}
		once, cancel := context.WithTimeout(ctx, listPatience)
		done := make(chan error, 1)
		go func() {
			_, err := podsOf(k.edge).list(once, metav1.ListOptions{})
			done <- err
		}()
		overtaken := k.overtaken(once, done)
		cancel()
		err := <-done
		switch {
		case now != k.edge.running() || ctx.Err() != nil:
		case err == nil:
			answered = now
		case answered == now && (overtaken || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)):
			k.s.recorder.Add(r)
		}
	}
}

// overtaken waits for a request's end, and reports whether others have ended before it that
// were made later.
func (k *kubelet) overtaken(ctx context.Context, done chan error) bool {
	others := 0
	for ctx.Err() == nil && others < meanwhile {
		select {
		case err := <-done:
			done <- err
			return false
		case <-time.After(300 * time.Millisecond):
		}
		if _, err := k.edge.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=none"}); err == nil {
			others++
		}
	}
	return ctx.Err() == nil
}

// onPod reacts as a kubelet does when a pod has changed.
func (k *kubelet) onPod(ctx, work context.Context, r history.Record, o metav1.Object) {
	k.mu.Lock()
	p := k.pods[o.GetUID()]
	if p == nil && r.Kind == history.Seen {
		own, stop := context.WithCancel(ctx)
		p = &sandbox{name: o.GetName(), uid: o.GetUID(), stop: stop, status: r.Value, events: k.reported[o.GetUID()]}
		k.pods[p.uid] = p
		k.all.Go(func() { k.work(own, work, p) })
		k.all.Go(func() { k.reconcile(own, p) })
		for _, source := range refsOf(k.edge, p.name) {
			k.follow(own, source, p.name)
		}
	}
	k.mu.Unlock()
	switch r.Kind {
	case history.Going:
		k.all.Go(func() { k.confirm(ctx, o.GetName(), o.GetUID()) })
	case history.Gone:
		k.mu.Lock()
		delete(k.pods, o.GetUID())
		k.mu.Unlock()
		if p != nil {
			p.stop()
		}
	}
}

// follow watches the objects that a pod refers to until ctx ends. A pod whose namesake is still
// there waits for the end of that one's watch: events of two concurrent watches have no order. k.mu
// is held.
func (k *kubelet) follow(ctx context.Context, s source, name string) {
	key := s.resource + "/" + name
	if k.refs[key] == nil {
		k.refs[key] = new(sync.Mutex)
	}
	alone := k.refs[key]
	k.all.Go(func() {
		alone.Lock()
		defer alone.Unlock()
		v := &view{recorder: k.s.recorder, who: k.edge.name}
		v.follow(ctx, s, nil)
	})
}

// confirm reports that a pod has ended: the deletion without a grace period, of this uid.
func (k *kubelet) confirm(ctx context.Context, name string, uid types.UID) {
	for ; ctx.Err() == nil; pause(ctx, time.Second) {
		k.mu.Lock()
		_, there := k.pods[uid]
		k.mu.Unlock()
		if !there {
			return
		}
		once, cancel := context.WithTimeout(ctx, requestPatience)
		err := k.edge.client.CoreV1().Pods(namespace).Delete(once, name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &uid},
		})
		cancel()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
	}
}

// reconcile writes a pod's status again where the API shows an older one than its own, as a kubelet
// does and as a restored cluster makes necessary.
func (k *kubelet) reconcile(ctx context.Context, p *sandbox) {
	for ; ctx.Err() == nil; pause(ctx, 2*time.Second) {
		p.mu.Lock()
		once, cancel := context.WithTimeout(ctx, requestPatience)
		pod, err := k.edge.client.CoreV1().Pods(namespace).Get(once, p.name, metav1.GetOptions{})
		cancel()
		if err == nil && pod.UID == p.uid && valueOf(pod) < p.status {
			k.putStatus(ctx, p)
		}
		p.mu.Unlock()
	}
}

// work writes statuses and events of a pod, and reads its status as the device shows it.
func (k *kubelet) work(ctx, work context.Context, p *sandbox) {
	draw := k.s.draw(string(p.name))
	for ctx.Err() == nil && work.Err() == nil {
		p.mu.Lock()
		switch n := draw.IntN(10); {
		case n < 5:
			k.putStatus(ctx, p)
		case n < 7:
			k.report(ctx, p, 1+draw.IntN(3))
		}
		p.mu.Unlock()
		k.getStatus(ctx, p)
		pause(ctx, time.Duration(200+draw.IntN(1200))*time.Millisecond)
	}
}

func (k *kubelet) record(p *sandbox, kind history.Kind) history.Record {
	return history.Record{
		Kind: kind, Who: k.edge.name, Resource: "pods", Name: namespace + "/" + p.name, UID: string(p.uid), Node: k.edge.name, At: k.s.recorder.Now(),
	}
}

func (k *kubelet) putStatus(ctx context.Context, p *sandbox) {
	p.status++
	body := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Running","message":"%d"}}`, p.uid, p.status)
	r := k.record(p, history.Put)
	r.Value = p.status
	k.s.put(ctx, r, func(ctx context.Context) error {
		_, err := k.edge.client.CoreV1().Pods(namespace).Patch(ctx, p.name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
		return err
	})
}

func (k *kubelet) getStatus(ctx context.Context, p *sandbox) {
	r := k.record(p, history.Get)
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	pod, err := k.edge.client.CoreV1().Pods(namespace).Get(ctx, p.name, metav1.GetOptions{})
	if apierrors.IsServiceUnavailable(err) { // edgecore runs, and has no copy
		r.Kind = history.Unanswered
		k.s.recorder.Add(r)
	}
	if err != nil || pod.UID != p.uid {
		return
	}
	r.Value, r.End = valueOf(pod), k.s.recorder.Now()
	k.s.recorder.Add(r)
}

// report makes an event and repeats it, as client-go's recorder does.
func (k *kubelet) report(ctx context.Context, p *sandbox, times int) {
	p.events++
	k.mu.Lock()
	k.reported[p.uid] = p.events
	k.mu.Unlock()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%.8s.%d", p.name, p.uid, p.events), Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: p.name, UID: p.uid},
		Reason:         "Campaign", Message: fmt.Sprint("event ", p.events), Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: "kubelet", Host: k.edge.name}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}
	events := k.edge.client.CoreV1().Events(namespace)
	for count := 1; count <= times && ctx.Err() == nil; count++ {
		r := k.record(p, history.Put)
		r.Resource, r.Name, r.UID, r.About, r.Value = "events", namespace+"/"+e.Name, "", string(p.uid), int64(count)
		done := k.s.put(ctx, r, func(ctx context.Context) (err error) {
			if count == 1 {
				_, err = events.Create(ctx, e, metav1.CreateOptions{})
			} else {
				_, err = events.Patch(ctx, e.Name, types.StrategicMergePatchType, fmt.Appendf(nil, `{"count":%d}`, count), metav1.PatchOptions{})
			}
			return err
		})
		if !done {
			return
		}
	}
}
