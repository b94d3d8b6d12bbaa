package hostile_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

func heartbeat() message.Message {
	return topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true})
}

// TestHostile_04_StalledReaderHoldsUpNoOther: devices on real links stop reading, with answers of
// megabytes on their way so that the windows are full, and report: of their operations, and of
// names that they make up. There are more of them than the aggregation of reports has workers.
// Another device's reports are written and answered, and its Lease is renewed, while no report of
// the others is.
func TestHostile_04_StalledReaderHoldsUpNoOther(t *testing.T) {
	for _, transport := range []link.Transport{link.WebSocket, link.QUIC} {
		t.Run(string(transport), func(t *testing.T) {
			s := newSystem(t, "tunnel: {listen: \"\"}\n")
			ns := plane.Namespace(t)
			big(t, ns)
			const stalled = 6
			operations := dynamic.NewForConfigOrDie(plane.Admin()).Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
			names := []string{"good-" + string(transport)}
			for i := range stalled {
				names = append(names, fmt.Sprintf("stalled-%s-%d", transport, i))
			}
			for _, name := range names {
				plane.AddNode(t, name)
				made(t)(plane.Client().CoreV1().Pods(ns).Create(t.Context(), podWith(ns, name), metav1.CreateOptions{}))
				operation := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": name},
					"spec": map[string]any{"nodeName": name, "operation": "Drain"},
				}}
				cluster.Eventually(t, "an operation of "+name, func(ctx context.Context) error {
					_, err := operations.Create(ctx, operation, metav1.CreateOptions{})
					if apierrors.IsAlreadyExists(err) { // an answer was lost, or the test is repeated
						err = nil
					}
					return err
				})
			}
			bad := make([]*hostile.Device, stalled)
			for i := range bad {
				bad[i] = s.dial(t, transport, names[i+1])
				fill(t, bad[i], ns)
			}
			const taken, replied = `skerry_hub_messages_total{direction="received",topic="report.update"}`, `skerry_hub_messages_total{direction="sent",topic="report.response"}`
			const asked, answered = `skerry_hub_messages_total{direction="received",topic="api.query"}`, `skerry_hub_messages_total{direction="sent",topic="api.response"}`
			const waiting, reports = 30, 20 // of each that never reads; of the one that does
			good := s.dial(t, transport, names[0])
			// Of answers as large as these a few may be on the way at once, and a transport takes
			// some of them off: it takes rounds until the links take no more.
			cluster.Eventually(t, "the devices report and take no answer, and another does", func(ctx context.Context) error {
				// No more of them than may be in flight: cloudcore stops reading from a device that
				// takes no answer and asks for more, and a test whose machine is slow would wait
				// for its own requests to go out.
				more := s.metric(t, asked)-s.metric(t, answered) < stalled*(filling-1)
				for i, d := range bad {
					if more {
						if err := d.Send(ctx, topic.APIRequest.New(message.Resource{}, bigRequest(ns))); err != nil {
							return err
						}
					}
					for range 2 {
						for _, of := range []string{names[i+1], fmt.Sprintf("made-up-%d", epochs.Add(1))} {
							if _, err := d.Post(ctx, topic.ReportWrite, reportOf(of, i)); err != nil {
								return err
							}
						}
					}
				}
				before := s.metric(t, replied)
				if n := s.metric(t, taken) - before; n < waiting*stalled {
					return fmt.Errorf("%d wait", n)
				}
				for i := range reports {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // no figure to reach: without an answer it would wait for ever
					r, err := good.Write(ctx, topic.ReportWrite, reportOf(names[0], i))
					cancel()
					if err != nil || !r.GetAccepted() {
						t.Fatalf("report %d beside stalled devices: %v %s", i, err, r.GetStatus())
					}
				}
				if n := s.metric(t, replied) - before; n != reports {
					return fmt.Errorf("%d reports were answered meanwhile, and not just the %d of the device that reads", n, reports)
				}
				return nil
			})
			leases := plane.Client().CoordinationV1().Leases("kube-node-lease")
			cluster.Eventually(t, "its Lease is renewed", func(ctx context.Context) error {
				if err := good.Send(ctx, heartbeat()); err != nil {
					return err
				}
				l, err := leases.Get(ctx, names[0], metav1.GetOptions{})
				if err == nil && l.Spec.RenewTime == nil {
					err = fmt.Errorf("not yet")
				}
				return err
			})
			if n := s.metric(t, taken) - s.metric(t, replied); n < waiting*stalled {
				t.Errorf("%d reports wait at the end: the devices have read", n)
			}
		})
	}
}

// big is a Secret of a megabyte that can't be compressed.
func big(t *testing.T, ns string) {
	t.Helper()
	data := make([]byte, 1<<20-4<<10)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	made(t)(plane.Client().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string][]byte{"x": data}}, metav1.CreateOptions{}))
}

// podWith is a pod of a node that needs it.
func podWith(ns, node string) *corev1.Pod {
	p := podOn(ns, node)
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "big"}}}}
	return p
}

func reportOf(name string, i int) *topicpb.Write {
	return &topicpb.Write{
		Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: "skerry.io", Version: "v1alpha1", Resource: v1alpha1.NodeOperations},
		Name: name, Subresource: "status", Body: fmt.Appendf(nil, `{"phase":"Requested","message":"%d"}`, i),
	}
}

// bigRequest asks for the object of big.
func bigRequest(ns string) *topicpb.APIRequest {
	return &topicpb.APIRequest{Method: "GET", Path: "/api/v1/namespaces/" + ns + "/secrets/big", Accept: "application/json"}
}

// filling is how many requests fill a link: of 16 that may be on the way.
const filling = 15

// fill has answers sent to a device that it does not read, more than its link takes.
func fill(t *testing.T, d *hostile.Device, ns string) {
	t.Helper()
	q := bigRequest(ns)
	cluster.Eventually(t, "the device gets its pod's Secret", func(ctx context.Context) error {
		a, err := d.Ask(ctx, q)
		if err == nil && a.GetCode() != http.StatusOK {
			err = fmt.Errorf("%d", a.GetCode())
		}
		return err
	})
	d.Pause()
	for range filling {
		if err := d.Send(t.Context(), topic.APIRequest.New(message.Resource{}, q)); err != nil {
			t.Fatal(err)
		}
	}
}
