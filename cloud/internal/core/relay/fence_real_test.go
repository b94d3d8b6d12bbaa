package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// replicas is two relays at a real kube-apiserver, with the rights of cloudcore's manifests; the
// requests of the first can be held up.
type replicas struct {
	t     *testing.T
	admin kubernetes.Interface
	ns    string
	proxy *faultproxy.Proxy // the first one's way
	relay [2]*system
	epoch uint64
}

func newReplicas(t *testing.T) *replicas {
	plane := cluster.Run(t)
	plane.Apply(t, "manifests/cloudcore")
	r := &replicas{t: t, admin: plane.Client(), ns: plane.Namespace(t)}
	plane.AddNode(t, "edge1")
	proxy, host := plane.FaultProxy(t)
	r.proxy = proxy
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	for i := range r.relay {
		config := plane.ServiceAccount(t, "skerry-system", "cloudcore")
		if i == 0 {
			config.Host = host
		}
		client, err := kube.NewClient(config, kube.Constrained)
		if err != nil {
			t.Fatal(err)
		}
		informers := kube.NewInformers(client)
		pods := relay.NewPods(informers)
		g.Go(func() error { return informers.Run(ctx) })
		g.Go(func() error { return pods.Run(ctx) })
		r.relay[i] = &system{t: t, relay: relay.New(client, pods, fmt.Sprintf("cloudcore-%d", i))}
	}
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// connect opens the node's next session at a replica.
func (r *replicas) connect(replica int) *edge {
	r.epoch++
	return r.relay[replica].open("edge1", r.epoch)
}

// pod makes a pod that is bound to the node.
func (r *replicas) pod(name string) *corev1.Pod {
	r.t.Helper()
	p, err := r.admin.CoreV1().Pods(r.ns).Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: "edge1", Containers: []corev1.Container{{Name: "c", Image: "example.test/none:1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// status is a pod status with the message n.
func (r *replicas) status(id uint64, p *corev1.Pod, n int, held string) message.Message {
	w := podStatus(id, p.Name, string(p.UID), "Running")
	w.Namespace, w.Body, w.ResourceVersion = r.ns, fmt.Appendf(nil, `{"status":{"phase":"Running","message":"%d"}}`, n), held
	return topic.PodStatusWrite.New(message.Resource{}, w)
}

// event is an event about p that has happened n times.
func (r *replicas) event(id uint64, verb topicpb.Verb, name string, p *corev1.Pod, n int) message.Message {
	w := event(id, verb, name, corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: r.ns, Name: p.Name, UID: p.UID}, n)
	w.Body = []byte(strings.Replace(string(w.Body), `"namespace":"default"`, `"namespace":"`+r.ns+`"`, 1))
	w.Namespace, w.Uid = r.ns, string(p.UID)
	return topic.EventWrite.New(message.Resource{}, w)
}

func (e *edge) accepted(t *testing.T, id uint64) *topicpb.WriteResult {
	t.Helper()
	r, s := e.result(t, id)
	if !r.Accepted {
		t.Fatalf("write %d was refused: %s", id, s.Message)
	}
	return r
}

// replaced waits until the session ends because a newer one has taken over, or until a write's
// result arrives.
func (e *edge) replaced(t *testing.T, id uint64) {
	t.Helper()
	cluster.Eventually(t, "the older session to end", func(context.Context) error {
		select {
		case err := <-e.ended:
			e.ended <- err
			if end, ok := errors.AsType[*link.CloseError](err); !ok || end.Code != link.CloseReplaced {
				t.Errorf("the older session ended with %v", err)
			}
			return nil
		default:
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, r := range e.results {
			if r.Id == id {
				t.Errorf("the older session's late write was answered: accepted %v, %s", r.Accepted, r.Status)
				return nil
			}
		}
		return errors.New("it serves on")
	})
}

// gate holds the first request of a kind.
type gate struct {
	held, open chan struct{}
	once       sync.Once
}

func (r *replicas) hold(is func(*http.Request) bool) *gate {
	g := &gate{held: make(chan struct{}), open: make(chan struct{})}
	r.proxy.Set(func(req *http.Request) (f faultproxy.Fault) {
		if is(req) {
			g.once.Do(func() {
				close(g.held)
				f.Until = g.open
			})
		}
		return f
	})
	return g
}

func request(method, part string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == method && strings.Contains(r.URL.Path, part) }
}

// Scenario 1 of the order campaign: replica A is stopped in the middle of a write, at each of its
// requests; the edge moves to replica B, which makes a newer write; A resumes. No heartbeat comes,
// so B's Lease is that of a node whose kubelet is dead.
func TestOrder_01_AStoppedReplicaOverwritesNothing(t *testing.T) {
	r := newReplicas(t)
	const known, unknown = true, false
	for name, c := range map[string]struct {
		at   func(*http.Request) bool
		held bool // the edge sends its resourceVersion
	}{
		"at the patch":                         {request(http.MethodPatch, "/status"), known},
		"at the patch, of a version just read": {request(http.MethodPatch, "/status"), unknown},
		"at reading the pod":                   {request(http.MethodGet, "/pods/"), unknown},
		"at reading the Lease":                 {request(http.MethodGet, "/leases/"), unknown},
	} {
		t.Run("status "+name, func(t *testing.T) {
			r.t = t
			p := r.pod(strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")))
			a := r.connect(0)
			first := a.warm(t, r, p)
			held := ""
			if c.held {
				held = first
			} else { // a session without a version of the pod
				a.cancel()
				<-a.ended
				a = r.connect(0)
				a.request(t)
			}
			g := r.hold(c.at)
			a.send(r.status(2, p, 2, held))
			<-g.held
			b := r.connect(1)
			b.send(r.status(2, p, 3, held))
			b.accepted(t, 2)
			close(g.open)
			a.replaced(t, 2)
			r.checkMessage(t, p, "3")
		})
	}
	t.Run("status in back-off", func(t *testing.T) {
		r.t = t
		p := r.pod("back-off")
		a := r.connect(0)
		first := a.warm(t, r, p)
		tried := make(chan struct{})
		var once sync.Once
		var mu sync.Mutex
		broken := true
		r.proxy.Set(func(q *http.Request) (f faultproxy.Fault) {
			mu.Lock()
			defer mu.Unlock()
			if broken && q.Method == http.MethodPatch {
				once.Do(func() { close(tried) })
				f.Code = http.StatusInternalServerError
			}
			return f
		})
		a.send(r.status(2, p, 2, first))
		<-tried
		b := r.connect(1)
		b.send(r.status(2, p, 3, first))
		b.accepted(t, 2)
		mu.Lock()
		broken = false
		mu.Unlock()
		a.replaced(t, 2)
		r.checkMessage(t, p, "3")
	})
	for name, verb := range map[string]topicpb.Verb{"repeat": topicpb.Verb_PATCH, "first report": topicpb.Verb_CREATE} {
		t.Run("event's "+name, func(t *testing.T) {
			r.t = t
			p := r.pod("event-" + strings.ToLower(verb.String()))
			event := p.Name + ".1"
			a := r.connect(0)
			if verb == topicpb.Verb_PATCH {
				a.send(r.event(1, topicpb.Verb_CREATE, event, p, 1))
				a.accepted(t, 1)
			} else {
				a.warm(t, r, p)
			}
			g := r.hold(func(q *http.Request) bool {
				return q.Method != http.MethodGet && strings.Contains(q.URL.Path, "/events")
			})
			a.send(r.event(2, verb, event, p, 2))
			<-g.held
			b := r.connect(1)
			b.send(r.event(2, topicpb.Verb_PATCH, event, p, 5))
			b.accepted(t, 2)
			close(g.open)
			a.replaced(t, 2)
			r.happened(t, event, 5)
		})
	}
	t.Run("event whose create is repeated with more", func(t *testing.T) {
		r.t = t
		p := r.pod("event-again")
		a := r.connect(0)
		a.send(r.event(1, topicpb.Verb_CREATE, "again.1", p, 1))
		a.accepted(t, 1)
		b := r.connect(1)
		b.send(r.event(1, topicpb.Verb_CREATE, "again.1", p, 4))
		b.accepted(t, 1)
		r.happened(t, "again.1", 4)
	})
}

// warm writes 1 as the pod's status and returns its version.
func (e *edge) warm(t *testing.T, r *replicas, p *corev1.Pod) string {
	t.Helper()
	r.proxy.Set(nil)
	e.send(r.status(1, p, 1, p.ResourceVersion))
	return e.accepted(t, 1).ResourceVersion
}

// request waits until the session may write.
func (e *edge) request(t *testing.T) {
	t.Helper()
	m := topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{
		Method: http.MethodPost, Path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", ContentType: "application/json",
		Body: []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`),
	})
	e.send(m)
	cluster.Eventually(t, "the session to have the Lease", func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.answers[m.Header.ID].GetCode() != http.StatusCreated {
			return fmt.Errorf("answered %v", e.answers[m.Header.ID])
		}
		return nil
	})
}

func (r *replicas) checkMessage(t *testing.T, p *corev1.Pod, want string) {
	t.Helper()
	now, err := r.admin.CoreV1().Pods(r.ns).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil || now.Status.Message != want {
		t.Errorf("the pod's status says %q, want %q: %v", now.Status.Message, want, err)
	}
}

func (r *replicas) happened(t *testing.T, event string, want int32) {
	t.Helper()
	now, err := r.admin.CoreV1().Events(r.ns).Get(t.Context(), event, metav1.GetOptions{})
	if err != nil || now.Count != want {
		t.Errorf("the event has happened %d times, want %d: %v", now.Count, want, err)
	}
}

// Scenario 15: twenty times the replica that serves the edge is cut off from kube-apiserver alone,
// with writes in flight, the edge moves to the other one, and the first is freed. No value is ever
// followed by an older one. The cut lasts for some hundred milliseconds instead of 45 s: writes in
// flight are held for as long as the cut lasts, and no timeout of a relay is involved.
func TestOrder_15_AReplicaCutFromTheAPIServerWritesNothingOlder(t *testing.T) {
	r := newReplicas(t)
	const pods, rounds = 4, 20
	var all [pods]*corev1.Pod
	for i := range all {
		all[i] = r.pod(fmt.Sprintf("p%d", i))
	}
	history := r.watch(t)
	n := 0
	write := func(e *edge, id uint64) {
		n++
		for i, p := range all {
			e.send(r.status(id+uint64(2*i), p, n, ""))
			e.send(r.event(id+uint64(2*i)+1, topicpb.Verb_PATCH, p.Name+".1", p, n))
		}
	}
	for round := range rounds {
		r.proxy.Set(nil)
		a := r.connect(0)
		write(a, 1)
		for i := range 2 * pods {
			a.accepted(t, 1+uint64(i))
		}
		open, held := make(chan struct{}), make(chan struct{})
		var once sync.Once
		r.proxy.Set(func(*http.Request) faultproxy.Fault {
			once.Do(func() { close(held) })
			return faultproxy.Fault{Until: open}
		})
		write(a, 101)
		<-held
		write(a, 201)
		b := r.connect(1)
		write(b, 1)
		for i := range 2 * pods {
			b.accepted(t, 1+uint64(i))
		}
		if round%2 == 0 {
			a.cancel() // the hub has seen that the link ended; bytes in the kernel's buffers are still sent
		}
		close(open)
		write(b, 101)
		for i := range 2 * pods {
			b.accepted(t, 101+uint64(i))
		}
		if round%2 == 1 {
			a.replaced(t, 101)
		} else if err := <-a.ended; err != nil {
			t.Errorf("the cut replica's session ended with %v", err)
		}
		b.cancel()
		<-b.ended
	}
	for i, p := range all {
		history.ends(t, fmt.Sprintf("status of pod %d", i), p.Name, n)
		history.ends(t, fmt.Sprintf("event of pod %d", i), p.Name+".1", n)
	}
}

// recorded lists the values observed of the counters, in order.
type recorded struct {
	mu     sync.Mutex
	values map[string][]int
}

func (h *recorded) add(t *testing.T, name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if have := h.values[name]; len(have) > 0 && have[len(have)-1] > n {
		t.Errorf("%s: %d after %d", name, n, have[len(have)-1])
	}
	h.values[name] = append(h.values[name], n)
}

func (h *recorded) ends(t *testing.T, what, name string, want int) {
	t.Helper()
	cluster.Eventually(t, what+" to say the last value", func(context.Context) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if have := h.values[name]; len(have) == 0 || have[len(have)-1] != want {
			return fmt.Errorf("%v, want %d at the end", have, want)
		}
		return nil
	})
}

// watch records every version of the pods' statuses and of the events.
func (r *replicas) watch(t *testing.T) *recorded {
	h := &recorded{values: map[string][]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	pods, err := r.admin.CoreV1().Pods(r.ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := r.admin.CoreV1().Events(r.ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range pods.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Message != "" {
				var n int
				if err := json.Unmarshal([]byte(p.Status.Message), &n); err == nil {
					h.add(t, p.Name, n)
				}
			}
		}
	})
	wg.Go(func() {
		for e := range events.ResultChan() {
			if ev, ok := e.Object.(*corev1.Event); ok {
				h.add(t, ev.Name, int(ev.Count))
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return h
}
