package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Scenario 8 of the order campaign: kube-apiserver is away for 60 s, and when it is back its
// authorizer is empty for a while. No write is refused. A refusal that lasts is final.
func TestALateAuthorizerRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("a", "edge1", "u1")
		e := w.connect("edge1", 1)
		start := time.Now()
		const away, late = time.Minute, 85 * time.Second
		w.api.mu.Lock()
		w.api.fail = func(kube.Identity, kube.Request) (*kube.Response, error) {
			switch since := time.Since(start); {
			case since < away:
				return nil, errors.New("connection refused")
			case since < late:
				return status(403, metav1.StatusReasonForbidden, "no relationship found between node and this object"), nil
			}
			return nil, nil
		}
		w.api.mu.Unlock()
		e.send(topic.EventWrite.New(message.Resource{}, event(1, topicpb.Verb_CREATE, "a.1", podRef("a", "u1"), 1)))
		e.send(topic.EventWrite.New(message.Resource{}, event(2, topicpb.Verb_PATCH, "a.2", podRef("a", "u1"), 7)))
		e.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(3, "a", "u1", "Running")))
		time.Sleep(2 * time.Minute)
		got := e.takeResults()
		slices.Sort(got)
		want(t, "results", got, []string{"1 accepted", "2 accepted", "3 accepted"})
	})
}

// listener hands over links in memory.
type listener chan link.Conn

func (l listener) Accept(ctx context.Context) (link.Conn, error) {
	select {
	case c := <-l:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
func (l listener) Addr() net.Addr { return &net.TCPAddr{} }
func (l listener) Close() error   { return nil }

// Scenario 10 of the order campaign: a device whose kubelet is alive is Ready throughout, whatever
// its keepalive. That is, through the cloud's hub and a link whose other end tolerates its usual 30
// s of silence: the session lasts, and the Lease is never older than kube-controller-manager's
// grace (50 s, less the 10 s that it may be late).
func TestAnyKeepaliveKeepsTheLease(t *testing.T) {
	for _, keepalive := range []time.Duration{5 * time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute} {
		t.Run(keepalive.String(), func(t *testing.T) {
			authority := linktest.NewAuthority(t)
			cert := authority.Node(t, "edge1").Leaf
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				links := make(listener)
				h := cloudhub.New(cloudhub.Config{}, []link.Listener{links}, []cloudhub.Part{w.relay})
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- h.Run(ctx) }()
				config := link.Default()
				config.Keepalive, config.IdleTimeout = keepalive, 2*keepalive
				edge, cloud := linktest.Pipe(t, linktest.PipeOptions{Config: config, Other: link.Default(), Edge: cert})
				links <- cloud
				say := func(m message.Message) {
					if err := edge.Send(t.Context(), m); err != nil {
						t.Fatal(err)
					}
				}
				say(topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Epoch: 1, KeepaliveMillis: keepalive.Milliseconds()}))
				go func() {
					for { // as edgehub does: a busy device is late by a tenth
						if edge.Send(ctx, topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true, Silent: true})) != nil {
							return
						}
						select {
						case <-time.After(keepalive + rand.N(keepalive/10)):
						case <-ctx.Done():
							return
						}
					}
				}()
				go func() {
					for {
						if _, err := edge.Receive(ctx); err != nil {
							return
						}
					}
				}()
				time.Sleep(time.Second)
				for start := time.Now(); time.Since(start) < 2*time.Hour; time.Sleep(time.Second) {
					at, err := time.Parse(metav1.RFC3339Micro, w.renewed())
					if err != nil {
						t.Fatal(err)
					}
					if age := time.Since(at); age > 40*time.Second {
						t.Fatalf("after %v the Lease is %v old", time.Since(start), age)
					}
				}
				if err := edge.Err(); err != nil {
					t.Errorf("the link ended: %v", err)
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Scenario 11 of the order campaign: kube-apiserver answers no read for a hundred nodes, ever. The
// other node's Lease is renewed and its writes are made.
func TestHungReadsHoldUpNoOtherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("a", "edge1", "u1")
		w.relay.HideAddresses()
		w.api.mu.Lock()
		w.api.delay = func(r kube.Request) time.Duration {
			if r.Method == http.MethodGet && strings.Contains(r.Path, "hung") {
				return 1000 * time.Hour
			}
			return time.Millisecond
		}
		w.api.mu.Unlock()
		hung := make([]*edge, 0, 100)
		for i := range 100 {
			e := w.open(types.NodeName(fmt.Sprintf("hung%d", i)), 1)
			e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
			hung = append(hung, e)
		}
		synctest.Wait()
		e := w.open("edge1", 2)
		for start := time.Now(); time.Since(start) < 20*time.Minute; time.Sleep(time.Second) {
			e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
			at, err := time.Parse(metav1.RFC3339Micro, w.renewed())
			if err != nil && time.Since(start) > 40*time.Second {
				t.Fatalf("no Lease after %v", time.Since(start))
			}
			if age := time.Since(at); err == nil && time.Since(start) > 40*time.Second && age > 40*time.Second {
				t.Fatalf("after %v the Lease is %v old", time.Since(start), age)
			}
		}
		e.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "a", "u1", "Running")))
		time.Sleep(time.Second)
		want(t, "a write", e.takeResults(), []string{"1 accepted"})
		for _, h := range hung {
			h.cancel()
			<-h.ended
		}
	})
}

// Scenario 16 of the order campaign: events about one object are created in the order in which they
// happened, though eight are written at a time; of different objects they need not be.
func TestEventsAboutOneObjectKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods, events = 4, 60
		w := newSystem(t)
		for i := range pods {
			w.addPod(fmt.Sprintf("p%d", i), "edge1", fmt.Sprintf("u%d", i))
		}
		e := w.connect("edge1", 1)
		var created []string
		w.api.mu.Lock()
		w.api.most = 0
		w.api.delay = func(kube.Request) time.Duration { return rand.N(200 * time.Millisecond) }
		w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
			if r.Method == http.MethodPost && rand.N(10) == 0 {
				return status(500, metav1.StatusReasonInternalError, "once"), nil
			}
			return nil, nil
		}
		w.api.made = func(path string) { created = append(created, path[strings.LastIndex(path, "/")+1:]) }
		w.api.mu.Unlock()
		for i := range pods * events {
			pod := i % pods
			name := fmt.Sprintf("p%d.%03d", pod, i/pods)
			wr := event(uint64(i+1), topicpb.Verb_CREATE, name, podRef(fmt.Sprintf("p%d", pod), fmt.Sprintf("u%d", pod)), 1)
			wr.Uid = fmt.Sprintf("u%d", pod) // as metamanager does
			e.send(topic.EventWrite.New(message.Resource{}, wr))
		}
		time.Sleep(10 * time.Minute)
		want(t, "answered", len(e.takeResults()), pods*events)
		for pod := range pods {
			var of []string
			for _, name := range created {
				if strings.HasPrefix(name, fmt.Sprintf("p%d.", pod)) {
					of = append(of, name)
				}
			}
			if len(of) != events || !slices.IsSorted(of) {
				t.Errorf("events of pod %d were created in the order %v", pod, of)
			}
		}
		if w.api.most < 2 {
			t.Error("never two at once: the test shows nothing")
		}
	})
}

// Scenario 14 of the hostile devices: the object in the path and the subject of the body agree, for
// each verb of the relay. A device can't change another's event by claiming that it is about a pod
// of its own.
func TestPathAndBodyAgree(t *testing.T) {
	other := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "theirs", UID: "t"}
	elsewhere := event(1, topicpb.Verb_PATCH, "theirs.1", podRef("mine", "m"), 1)
	elsewhere.Namespace = "kube-system"
	renamed := podStatus(1, "theirs", "t", "Running")
	removed := &topicpb.Write{Id: 1, Verb: topicpb.Verb_DELETE, Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, Namespace: "default", Name: "theirs", Uid: "m"}
	node := &topicpb.Write{Id: 1, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: "edge2", Subresource: "status",
		PatchType: "application/strategic-merge-patch+json", Body: []byte(`{"metadata":{"name":"edge1"},"status":{}}`)}
	for name, c := range map[string]struct {
		topic message.Topic[*topicpb.Write]
		write *topicpb.Write
		want  string
		free  bool // kube-apiserver would let the node do it
	}{
		"PATCH of another's event":               {topic.EventWrite, event(1, topicpb.Verb_PATCH, "theirs.1", podRef("mine", "m"), 9), "1 Forbidden", true},
		"CREATE over another's event":            {topic.EventWrite, event(1, topicpb.Verb_CREATE, "theirs.1", podRef("mine", "m"), 9), "1 Forbidden", true},
		"PATCH of an event in another namespace": {topic.EventWrite, elsewhere, "1 BadRequest", true},
		"PATCH that says whose it is":            {topic.EventWrite, event(1, topicpb.Verb_PATCH, "theirs.1", other, 9), "1 Forbidden", true},
		"PATCH of an own event":                  {topic.EventWrite, event(1, topicpb.Verb_PATCH, "mine.1", podRef("mine", "m"), 9), "1 accepted", true},
		"status of another's pod":                {topic.PodStatusWrite, renamed, "1 Forbidden", false},
		"DELETE of another's pod by an own uid":  {topic.PodWrite, removed, "1 accepted", false}, // kube-apiserver reports it as gone: that name is another's
		"status of another node":                 {topic.NodeStatusWrite, node, "1 Forbidden", true},
		"a report of another's pod as an event":  {topic.EventWrite, podStatus(1, "theirs", "t", "Running"), "1 BadRequest", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.addPod("mine", "edge1", "m")
				w.addPod("theirs", "edge2", "t")
				a, b := w.connect("edge1", 1), w.connect("edge2", 1)
				of := event(1, topicpb.Verb_CREATE, "theirs.1", other, 1)
				of.Body = []byte(strings.ReplaceAll(string(of.Body), "edge1", "edge2"))
				b.send(topic.EventWrite.New(message.Resource{}, of))
				a.send(topic.EventWrite.New(message.Resource{}, event(1, topicpb.Verb_CREATE, "mine.1", podRef("mine", "m"), 1)))
				want(t, "edge2's event", b.takeResults(), []string{"1 accepted"})
				want(t, "edge1's event", a.takeResults(), []string{"1 accepted"})
				if !c.free { // as NodeRestriction judges
					w.api.mu.Lock()
					w.api.fail = func(as kube.Identity, r kube.Request) (*kube.Response, error) {
						if as.Node == "edge1" && r.Method == http.MethodPatch && strings.Contains(r.Path, "/pods/theirs") {
							return status(403, metav1.StatusReasonForbidden, "node edge1 can only update pod status for pods with spec.nodeName set to itself"), nil
						}
						return nil, nil
					}
					w.api.mu.Unlock()
				}
				before := fmt.Sprint(w.api.get("/api/v1/namespaces/default/events/theirs.1"), w.api.get("/api/v1/namespaces/default/pods/theirs"))
				a.cancel() // a session without the state of the one before
				<-a.ended
				a = w.connect("edge1", 2)
				a.send(c.topic.New(message.Resource{}, c.write))
				time.Sleep(time.Minute)
				want(t, "result", a.takeResults(), []string{c.want})
				after := fmt.Sprint(w.api.get("/api/v1/namespaces/default/events/theirs.1"), w.api.get("/api/v1/namespaces/default/pods/theirs"))
				want(t, "what is edge2's", after, before)
			})
		})
	}
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) logger(verbosity int) klog.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, args)
	}, funcr.Options{Verbosity: verbosity})
}

// counted is the value of the only series of a metric that has the label.
func (w *system) counted(t *testing.T, name, label, value string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(w.relay.Metrics()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

// Trap 28: a refusal about an object that is gone is everyday, and worth no line; one about an
// object that lives is. Both are counted, by reason.
func TestTraps_28_RefusalsAboutGoneObjectsAreQuiet(t *testing.T) {
	for name, c := range map[string]struct {
		write *topicpb.Write
		lines int
		ends  string
	}{
		"gone":            {podStatus(1, "gone", "u2", "Running"), 0, "NotFound"},
		"another by name": {podStatus(1, "a", "old", "Running"), 0, "Conflict"},
		"it lives":        {event(1, topicpb.Verb_CREATE, "x", corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: "edge2"}, 1), 1, "Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.addPod("a", "edge1", "u1")
				logged := &lines{}
				e := w.openWith(klog.NewContext(t.Context(), logged.logger(2)), "edge1", 1)
				synctest.Wait()
				out := topic.PodStatusWrite
				if c.write.Resource.Resource == "events" {
					out = topic.EventWrite
				}
				e.send(out.New(message.Resource{}, c.write))
				want(t, "result", e.takeResults(), []string{"1 " + c.ends})
				e.cancel()
				<-e.ended
				var about []string
				for _, line := range logged.all {
					if strings.Contains(line, "rejected write") {
						about = append(about, line)
					}
				}
				if len(about) != c.lines {
					t.Errorf("%d lines: %q", len(about), about)
				}
				want(t, "counted", w.counted(t, "skerry_relay_writes_total", "reason", c.ends), 1.0)
			})
		})
	}
}
