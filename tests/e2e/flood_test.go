package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster/suite"
)

// eventFields are an event's fields, without those that each API server sets itself.
type eventFields struct {
	Count       int32
	First, Last time.Time
	Reason      string
	Message     string
	Host        string
	UID         types.UID // of the pod
}

// A flood writes events about one pod to its node's own API, as a module of the device would, and
// records the acknowledged ones with their fields. Without an answer it retries: the result of such
// a write is unknown.
type flood struct {
	s   *system
	pod *corev1.Pod

	mu   sync.Mutex
	want map[string]eventFields
	next int
}

func (s *system) flood(pod *corev1.Pod) *flood {
	return &flood{s: s, pod: pod, want: map[string]eventFields{}}
}

// acknowledged is how many events were taken by the device.
func (f *flood) acknowledged() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.want)
}

// write writes count events, eight at a time, every tenth three times: those are repeats, which
// raise the count and the last time.
func (f *flood) write(ctx context.Context, count int) error {
	f.mu.Lock()
	first := f.next
	f.next += count
	f.mu.Unlock()
	// Its own connection: one that a killed edgecore left half open must not hold the next up.
	cfg := f.s.deviceConfig(f.pod.Spec.NodeName)
	connection, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(connection.Transport) // the device's API bounds those of one address
	client, err := kubernetes.NewForConfigAndClient(cfg, connection)
	if err != nil {
		return err
	}
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := first; i < first+count; i++ {
		g.Go(func() error {
			// Made-up times, in the past and apart from one another, so that a time that a server
			// sets itself is noticed.
			e := f.event(i, metav1.Unix(1_700_000_000+int64(60*i), 0))
			if err := f.put(ctx, client, e); err != nil {
				return err
			}
			for n := int32(2); i%10 == 0 && n <= 3; n++ {
				e.Count, e.LastTimestamp = n, metav1.NewTime(e.LastTimestamp.Add(time.Second))
				if err := f.repeat(ctx, client, e); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	if count > 1 {
		f.s.T.Logf("%d events written in %v", count, time.Since(began).Round(time.Millisecond))
	}
	return err
}

func (f *flood) event(i int, at metav1.Time) *corev1.Event {
	node := f.pod.Spec.NodeName
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.flood-%05d", f.pod.Name, i), Namespace: f.pod.Namespace},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: f.pod.Namespace, Name: f.pod.Name, UID: f.pod.UID,
		},
		Reason: suite.FloodReason, Message: fmt.Sprintf("wave %d", i), Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: "e2e", Host: node}, ReportingController: "e2e", ReportingInstance: node,
	}
}

func (f *flood) put(ctx context.Context, client kubernetes.Interface, e *corev1.Event) error {
	return f.try(ctx, e, func() error {
		_, err := client.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the answer to an earlier try was lost
		}
		return err
	})
}

func (f *flood) repeat(ctx context.Context, client kubernetes.Interface, e *corev1.Event) error {
	patch := fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%q}`, e.Count, e.LastTimestamp.UTC().Format(time.RFC3339))
	return f.try(ctx, e, func() error {
		_, err := client.CoreV1().Events(e.Namespace).Patch(ctx, e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// try repeats a write until it is acknowledged, and records the event's fields then.
func (f *flood) try(ctx context.Context, e *corev1.Event, write func() error) error {
	ctx, cancel := context.WithTimeout(ctx, suite.Patience)
	defer cancel()
	for {
		err := write()
		if err == nil {
			f.mu.Lock()
			f.want[e.Name] = tell(e)
			f.mu.Unlock()
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("writing event %s: %w", e.Name, err)
		}
	}
}

func tell(e *corev1.Event) eventFields {
	return eventFields{
		Count: e.Count, First: e.FirstTimestamp.UTC(), Last: e.LastTimestamp.UTC(), Reason: e.Reason, Message: e.Message, Host: e.Source.Host, UID: e.InvolvedObject.UID,
	}
}

// events are the flood's events as an API has them, by name.
func (f *flood) events(ctx context.Context, client kubernetes.Interface) (map[string]eventFields, error) {
	list, err := client.CoreV1().Events(f.pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + f.pod.Name + ",reason=" + suite.FloodReason})
	if err != nil {
		return nil, err
	}
	got := map[string]eventFields{}
	for _, e := range list.Items {
		got[e.Name] = tell(&e)
	}
	return got, nil
}

// waitArrived waits until the cloud has every acknowledged event, with its own times and counts,
// and no other. Names are unique in Kubernetes; a duplicate would be a name or a count too many.
func (f *flood) waitArrived() {
	f.s.T.Helper()
	began := time.Now()
	f.s.waitDelivered(f.pod.Spec.NodeName)
	f.s.T.Logf("the rest arrived in %v", time.Since(began).Round(time.Millisecond))
	f.mu.Lock()
	defer f.mu.Unlock()
	got, err := f.events(f.s.T.Context(), f.s.Client)
	f.s.Check(err)
	if diff := cmp.Diff(f.want, got); diff != "" {
		f.s.T.Errorf("%d events were acknowledged, %d arrived (-acknowledged +arrived):\n%.4000s", len(f.want), len(got), diff)
	}
}

// in runs the flood concurrently with the test; the returned function waits for its end.
func (f *flood) in(count int) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- f.write(f.s.T.Context(), count) }()
	return func() {
		f.s.T.Helper()
		f.s.Check(<-done)
	}
}

// waitFor waits until the flood has written count events.
func (f *flood) waitFor(count int) {
	f.s.T.Helper()
	f.s.WaitFor(fmt.Sprintf("%d events to be acknowledged", count), func(context.Context) error {
		if n := f.acknowledged(); n < count {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}
