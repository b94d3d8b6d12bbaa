package drain_test

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// site is two replicas at a real kube-apiserver, with the rights of cloudcore's manifests; the
// requests of the first can be held up and made to fail.
type site struct {
	t          *testing.T
	operations dynamic.ResourceInterface
	proxy      *faultproxy.Proxy
	parts      [2][]cloudhub.Part
	epoch      uint64
}

func newSite(t *testing.T) *site {
	plane := cluster.Run(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	plane.AddNode(t, "edge1")
	admin, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, operations: admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))}
	cluster.Eventually(t, "NodeOperations to be served", func(ctx context.Context) error {
		_, err := s.operations.List(ctx, metav1.ListOptions{})
		return err
	})
	proxy, host := plane.FaultProxy(t)
	s.proxy = proxy
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	for i := range s.parts {
		config := plane.ServiceAccount(t, "skerry-system", "cloudcore")
		if i == 0 {
			config.Host = host
		}
		client, err := kube.NewClient(config, kube.Constrained)
		if err != nil {
			t.Fatal(err)
		}
		reports := reports.New(client, drain.Kind())
		g.Go(func() error { return reports.Run(ctx) })
		s.parts[i] = []cloudhub.Part{relay.New(client, relay.NewPods(kube.NewInformers(client)), fmt.Sprintf("cloudcore-%d", i)), reports}
	}
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// session is the node's link to one replica.
type session struct {
	hubtest.Session
	t      *testing.T
	mux    *message.Mux
	cancel context.CancelFunc
	ended  chan error
	next   uint64
}

func (s *site) connect(replica int) *session {
	s.epoch++
	e := &session{Session: hubtest.Session{Name: "edge1", Number: s.epoch}, t: s.t, mux: message.NewMux(), ended: make(chan error, 4)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	e.cancel = cancel
	var wg sync.WaitGroup
	for _, part := range s.parts[replica] {
		if service := part.Attach(e, e.mux); service != nil {
			wg.Go(func() {
				err := cloudhub.Serve(ctx, service)
				cancel() // the session ends as a whole
				e.ended <- err
			})
		}
	}
	s.t.Cleanup(func() { cancel(); wg.Wait() })
	return e
}

// report sends a phase of an operation, and returns the number of the write.
func (e *session) report(o *unstructured.Unstructured, phase v1alpha1.DrainPhase) uint64 {
	e.t.Helper()
	e.next++
	body, err := json.Marshal(map[string]any{"phase": phase, "attempts": 1})
	if err != nil {
		e.t.Fatal(err)
	}
	err = e.mux.Dispatch(e.t.Context(), topic.ReportWrite.New(message.Resource{}, &topicpb.Write{
		Id: e.next, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.NodeOperations},
		Namespace: o.GetNamespace(), Name: o.GetName(), Subresource: "status", Uid: string(o.GetUID()), Body: body,
	}))
	if err != nil {
		e.t.Fatal(err)
	}
	return e.next
}

func (e *session) accepted(id uint64) {
	e.t.Helper()
	cluster.Eventually(e.t, fmt.Sprintf("the answer to report %d", id), func(context.Context) error {
		r := e.Result(id)
		if r == nil {
			return errors.New("not yet")
		}
		if !r.Accepted {
			e.t.Errorf("report %d was refused: %s", id, r.Status)
		}
		return nil
	})
}

// over waits until the session has ended, or has answered a report.
func (e *session) over(late uint64) {
	e.t.Helper()
	cluster.Eventually(e.t, "the older session to end", func(context.Context) error {
		select {
		case err := <-e.ended:
			if end, ok := errors.AsType[*link.CloseError](err); !ok || end.Code != link.CloseReplaced {
				e.t.Errorf("the older session ended with %v", err)
			}
			return nil
		default:
		}
		if r := e.Result(late); r != nil {
			e.t.Errorf("the older session's late report was answered: accepted %v", r.Accepted)
			return nil
		}
		return errors.New("it serves on")
	})
}

func (s *site) operation(name string) *unstructured.Unstructured {
	s.t.Helper()
	var o *unstructured.Unstructured
	cluster.Eventually(s.t, "the operation "+name+" to be taken", func(ctx context.Context) (err error) { // a list is served before its kind is known to admission
		o, err = s.operations.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "NodeOperation", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"nodeName": "edge1", "operation": "Reboot"},
		}}, metav1.CreateOptions{})
		return err
	})
	return o
}

func (s *site) phase(o *unstructured.Unstructured, want v1alpha1.DrainPhase) {
	s.t.Helper()
	now, err := s.operations.Get(s.t.Context(), o.GetName(), metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedString(now.Object, "status", "phase"); got != string(want) {
		s.t.Errorf("%s is %q, want %q", o.GetName(), got, want)
	}
}

// Scenario 2 of the order campaign: replica A is stopped while it writes a node's report of an
// operation, or gets 5xx all the while; the edge moves to replica B, through which the operation
// completes; A resumes. The operation stays complete.
func TestOrder_02_AStoppedReplicaReopensNoOperation(t *testing.T) {
	s := newSite(t)
	for name, at := range map[string]func(*http.Request) bool{
		"reading the operation": func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/nodeoperations/")
		},
		"reading the Lease": func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/leases/")
		},
		"writing": func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/nodeoperations/")
		},
	} {
		t.Run("stopped at "+name, func(t *testing.T) {
			s.t = t
			o := s.operation(strings.ReplaceAll(strings.ToLower(name), " ", "-"))
			s.proxy.Set(nil)
			other := s.operation("warm-" + o.GetName())
			a := s.connect(0)
			a.accepted(a.report(other, v1alpha1.DrainRequested)) // it has the Lease
			held, open := make(chan struct{}), make(chan struct{})
			var once sync.Once
			s.proxy.Set(func(r *http.Request) (f faultproxy.Fault) {
				if at(r) {
					once.Do(func() {
						close(held)
						f.Until = open
					})
				}
				return f
			})
			late := a.report(o, v1alpha1.DrainCordoned)
			<-held
			b := s.connect(1)
			b.accepted(b.report(o, v1alpha1.DrainComplete))
			close(open)
			a.over(late)
			s.phase(o, v1alpha1.DrainComplete)
		})
	}
	t.Run("5xx meanwhile", func(t *testing.T) {
		s.t = t
		o := s.operation("failing")
		s.proxy.Set(nil)
		a := s.connect(0)
		a.accepted(a.report(s.operation("warm-failing"), v1alpha1.DrainRequested))
		tried := make(chan struct{})
		var once sync.Once
		var mu sync.Mutex
		failing := true
		s.proxy.Set(func(r *http.Request) (f faultproxy.Fault) {
			mu.Lock()
			defer mu.Unlock()
			if failing && strings.Contains(r.URL.Path, "/nodeoperations/") {
				once.Do(func() { close(tried) })
				f.Code = http.StatusServiceUnavailable
			}
			return f
		})
		late := a.report(o, v1alpha1.DrainCordoned)
		<-tried
		b := s.connect(1)
		b.accepted(b.report(o, v1alpha1.DrainComplete))
		mu.Lock()
		failing = false
		mu.Unlock()
		a.over(late)
		s.phase(o, v1alpha1.DrainComplete)
	})
	t.Run("the session ended while its report waited", func(t *testing.T) {
		s.t = t
		o := s.operation("dropped")
		s.proxy.Set(nil)
		a := s.connect(0)
		a.accepted(a.report(s.operation("warm-dropped"), v1alpha1.DrainRequested))
		held, open := make(chan struct{}), make(chan struct{})
		var once sync.Once
		s.proxy.Set(func(r *http.Request) (f faultproxy.Fault) {
			if strings.Contains(r.URL.Path, "/nodeoperations/") {
				once.Do(func() { close(held) })
				f.Until = open
			}
			return f
		})
		a.report(o, v1alpha1.DrainCordoned)
		<-held
		a.cancel()
		b := s.connect(1)
		b.accepted(b.report(o, v1alpha1.DrainComplete))
		close(open)
		after := s.operation("after")
		s.proxy.Set(nil)
		again := s.connect(0) // the first replica's next write is seen by its own next report
		again.accepted(again.report(after, v1alpha1.DrainComplete))
		s.phase(o, v1alpha1.DrainComplete)
	})
}
