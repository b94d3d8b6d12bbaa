package hostile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

// TestHostile_14_NodeMayDoNoMoreThanItsKubelet is one cloudcore, and attempts by one node's devices
// to get or do more there than that node's kubelet may at kube-apiserver itself. No object of
// another node is changed by any of it.
func TestHostile_14_NodeMayDoNoMoreThanItsKubelet(t *testing.T) {
	s := newSystem(t, withTunnel())
	ns := things(t)
	before := snapshot(t, ns)
	device := s.dial(t, link.QUIC, own)
	answers := outbox(t, device, ns)
	t.Run("requests", func(t *testing.T) { requests(t, device, ns) })
	t.Run("outbox", answers)
	t.Run("path and body", func(t *testing.T) { pathAndBody(t, s, ns) })
	t.Run("forged requester", func(t *testing.T) { forgedRequester(t, s, ns) })
	t.Run("streams", func(t *testing.T) { streams(t, s, ns) })
	t.Run("heartbeats", func(t *testing.T) { heartbeats(t, s, ns) })
	for what, version := range snapshot(t, ns) {
		if version != before[what] {
			t.Errorf("%s was changed from %q to %q", what, before[what], version)
		}
	}
}

// post is one write through the outbox's topics.
type post struct {
	topic    message.Topic[*topicpb.Write]
	resource string
	verb     topicpb.Verb
	sub      string
	whose    string
	body     []byte
}

func (p post) String() string {
	return fmt.Sprintf("%s: %s %s/%s of %s", p.topic.Kind, p.verb, p.resource, p.sub, p.whose)
}

// fits reports whether a topic is for such a write at all.
func (p post) fits() bool {
	switch p.topic.Kind {
	case topic.KindEvent:
		return p.resource == "events" && p.sub == "" && (p.verb == topicpb.Verb_CREATE || p.verb == topicpb.Verb_PATCH)
	case topic.KindPodStatus:
		return p.resource == "pods" && p.sub == "status" && p.verb == topicpb.Verb_PATCH
	case topic.KindNodeStatus:
		return p.resource == "nodes" && p.verb == topicpb.Verb_PATCH
	case topic.KindPod:
		return p.resource == "pods" && p.sub == "" && p.verb == topicpb.Verb_DELETE
	}
	return false
}

// outbox: every topic of the outbox x every verb x kinds that it is for and that it is not for x a
// thing of the device's own node, one of another's and one that is not there. A write is accepted
// only where kube-apiserver lets the node itself do it, as a dry run shows, and where it matches
// its topic. Of events, which kube-apiserver lets every node write about everything, no event about
// another's pods is accepted. The answers come once wait is called: a refusal by the Node
// authorizer is final after half a minute.
func outbox(t *testing.T, device *hostile.Device, ns string) (wait func(*testing.T)) {
	t.Helper()
	all := posts()
	mine, err := plane.Client().CoreV1().Pods(ns).Get(t.Context(), "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	results := make([]*topicpb.WriteResult, len(all))
	var g errgroup.Group
	g.Go(func() error {
		var writes errgroup.Group
		writes.SetLimit(64) // as many as edgecore has on the way
		for i, p := range all {
			writes.Go(func() (err error) {
				if results[i], err = device.Write(t.Context(), p.topic, writeOf(ns, p, mine.UID)); err != nil {
					return fmt.Errorf("%s: %w", p, err)
				}
				return nil
			})
		}
		return writes.Wait()
	})
	return func(t *testing.T) {
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		node := kubernetes.NewForConfigOrDie(plane.Node(t, own))
		accepted := map[message.Kind]int{}
		for i, p := range all {
			want := p.fits() && (p.topic.Kind == topic.KindEvent && p.whose != another || p.topic.Kind != topic.KindEvent && directly(t, node, ns, p))
			if r := results[i]; r.GetAccepted() != want {
				t.Errorf("%s: accepted %v, want %v: %s", p, r.GetAccepted(), want, r.GetStatus())
			} else if want {
				accepted[p.topic.Kind]++
			}
		}
		for _, kind := range []message.Kind{topic.KindEvent, topic.KindPodStatus, topic.KindNodeStatus, topic.KindPod} {
			if accepted[kind] == 0 {
				t.Errorf("no %s is accepted: that shows nothing", kind)
			}
		}
	}
}

// posts puts the writes that are answered last first.
func posts() (all []post) {
	topics := []message.Topic[*topicpb.Write]{topic.EventWrite, topic.PodStatusWrite, topic.NodeStatusWrite, topic.PodWrite, topic.ReportWrite}
	verbs := []topicpb.Verb{topicpb.Verb_CREATE, topicpb.Verb_PATCH, topicpb.Verb_DELETE, topicpb.Verb_VERB_UNSPECIFIED, 99}
	for _, whose := range []string{another, "none", own} {
		for _, t := range topics {
			for _, verb := range verbs {
				for _, resource := range []string{"pods", "nodes", "events", "secrets", "leases"} {
					for _, sub := range []string{"", "status", "eviction"} {
						all = append(all, post{topic: t, resource: resource, verb: verb, sub: sub, whose: whose})
					}
				}
			}
		}
	}
	late := func(p post) int {
		if p.topic.Kind == topic.KindPod && p.fits() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b post) int { return late(a) - late(b) })
	return all
}

// writeOf is the write of a post. mine is the uid of the node's own pod.
func writeOf(ns string, p post, mine types.UID) *topicpb.Write {
	name := nameOf(p.resource, ns, p.whose, true)
	if p.resource == "nodes" {
		name = nameOf("nodes", ns, p.whose, false)
	}
	w := &topicpb.Write{
		Verb: p.verb, Resource: &topicpb.Resource{Version: "v1", Resource: p.resource}, Namespace: ns, Name: name, Subresource: p.sub,
		PatchType: string(types.StrategicMergePatchType),
	}
	switch p.resource {
	case "nodes":
		w.Namespace = ""
	case "leases":
		w.Namespace, w.Resource.Group = "kube-node-lease", "coordination.k8s.io"
	}
	switch {
	case p.resource == "events":
		w.PatchType, w.Body = string(types.MergePatchType), eventAbout(ns, name, name)
	case p.resource == "pods" && p.verb == topicpb.Verb_DELETE:
		w.Uid, w.Body = string(mine), []byte(`{"gracePeriodSeconds":0}`) // as if the pod in the path were its own
		if p.whose == own {
			w.Uid = "of-another-pod" // it stays
		}
	case p.sub == "status":
		w.Body = []byte(`{"status":{}}`)
	default:
		w.Body = []byte(`{"metadata":{"annotations":{"example.com/x":"y"}}}`)
	}
	return w
}

func eventAbout(ns, name, pod string) []byte {
	raw, err := json.Marshal(&corev1.Event{
		TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: ns, Name: pod}, Reason: "Test", Type: "Normal", Message: "from the device",
	})
	if err != nil {
		return nil
	}
	return raw
}

// directly reports whether kube-apiserver lets the node do that.
func directly(t *testing.T, node kubernetes.Interface, ns string, p post) bool {
	t.Helper()
	w, dry := writeOf(ns, p, ""), []string{metav1.DryRunAll}
	if p.verb == topicpb.Verb_DELETE {
		return node.CoreV1().Pods(ns).Delete(t.Context(), w.GetName(), metav1.DeleteOptions{DryRun: dry, GracePeriodSeconds: new(int64(0))}) == nil
	}
	request := node.CoreV1().RESTClient().Patch(types.PatchType(w.GetPatchType())).Resource(p.resource)
	if w.GetNamespace() != "" {
		request = request.Namespace(w.GetNamespace())
	}
	return request.Name(w.GetName()).SubResource(w.GetSubresource()).VersionedParams(&metav1.PatchOptions{DryRun: dry}, metav1.ParameterCodec).
		Body(w.GetBody()).Do(t.Context()).Error() == nil
}

// snapshot is the versions of another node's objects.
func snapshot(t *testing.T, ns string) map[string]string {
	t.Helper()
	admin, get := plane.Client(), metav1.GetOptions{}
	versions := map[string]string{}
	note := func(what string, o metav1.Object, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		versions[what] = fmt.Sprint(o.GetUID(), o.GetAnnotations())
	}
	pod, err := admin.CoreV1().Pods(ns).Get(t.Context(), "theirs", get)
	note("another's pod", pod, err)
	event, err := admin.CoreV1().Events(ns).Get(t.Context(), "theirs", get)
	note("another's event", event, err)
	versions["what it says"] = fmt.Sprint(event.Message, event.Count, event.InvolvedObject)
	node, err := admin.CoreV1().Nodes().Get(t.Context(), another, get)
	note("another's Node", node, err)
	lease, err := admin.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), another, get)
	note("another's Lease", lease, err)
	versions["who holds it"] = fmt.Sprint(lease.Spec)
	secret, err := admin.CoreV1().Secrets(ns).Get(t.Context(), "theirs", get)
	note("another's Secret", secret, err)
	return versions
}

// pathAndBody: the path names a thing of another's, and the body one of the device's own. An
// event is patched under another's name; a node's status and a pod's status are sent with the
// body of its own.
func pathAndBody(t *testing.T, s *system, ns string) {
	mine, err := plane.Client().CoreV1().Pods(ns).Get(t.Context(), "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	strategic, merge := string(types.StrategicMergePatchType), string(types.MergePatchType)
	events, pods, nodes := &topicpb.Resource{Version: "v1", Resource: "events"}, &topicpb.Resource{Version: "v1", Resource: "pods"}, &topicpb.Resource{Version: "v1", Resource: "nodes"}
	for name, c := range map[string]struct {
		topic message.Topic[*topicpb.Write]
		write *topicpb.Write
	}{
		"PATCH of another's event, about a pod of its own": {topic: topic.EventWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: events, Namespace: ns, Name: "theirs", PatchType: merge, Body: eventAbout(ns, "theirs", "mine")}},
		"CREATE over another's event": {topic: topic.EventWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_CREATE, Resource: events, Namespace: ns, Name: "theirs", Body: eventAbout(ns, "theirs", "mine")}},
		"PATCH of another's event, with the name of its own in the body": {topic: topic.EventWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: events, Namespace: ns, Name: "theirs", PatchType: merge, Body: eventAbout(ns, "mine", "mine")}},
		"PATCH of another's event that says so": {topic: topic.EventWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: events, Namespace: ns, Name: "theirs", PatchType: merge, Body: eventAbout(ns, "theirs", "theirs")}},
		"PATCH of its own event so that it is about another's pod": {topic: topic.EventWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: events, Namespace: ns, Name: "mine", PatchType: merge, Body: eventAbout(ns, "mine", "theirs")}},
		"the status of another's pod, with its own uid": {topic: topic.PodStatusWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: pods, Namespace: ns, Name: "theirs", Subresource: "status", PatchType: strategic, Uid: string(mine.UID),
			Body: []byte(`{"metadata":{"name":"mine","annotations":{"x":"y"}},"status":{"phase":"Failed"}}`)}},
		"another's Node, with the body of its own": {topic: topic.NodeStatusWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: nodes, Name: another, Subresource: "status", PatchType: strategic, Body: []byte(`{"metadata":{"name":"` + own + `"},"status":{"phase":"x"}}`)}},
		"another's Node by a path in its name": {topic: topic.NodeStatusWrite, write: &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: nodes, Name: own + "/../" + another, PatchType: strategic, Body: []byte(`{"metadata":{"annotations":{"x":"y"}}}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			device := s.dial(t, link.QUIC, own) // a session without earlier writes
			r, err := device.Write(t.Context(), c.topic, c.write)
			if err != nil {
				t.Fatal(err)
			}
			if r.GetAccepted() {
				t.Error("accepted")
			}
		})
	}
}

// forgedRequester: a device makes an operation with an administrator as the forged requester, makes
// one for another node, and reports of operations with another requester. The requester is the one
// that admission wrote.
func forgedRequester(t *testing.T, s *system, ns string) {
	device := s.dial(t, link.WebSocket, own)
	create := func(name, node, requester string) *topicpb.APIResponse {
		t.Helper()
		body, err := json.Marshal(map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation",
			"metadata": map[string]any{"name": name, "annotations": map[string]any{"skerry.io/requested-by": requester}},
			"spec":     map[string]any{"nodeName": node, "operation": "Drain"}, "status": map[string]any{"requestedBy": requester},
		})
		if err != nil {
			t.Fatal(err)
		}
		a, err := device.Ask(t.Context(), &topicpb.APIRequest{Method: "POST", Path: "/apis/skerry.io/v1alpha1/nodeoperations", ContentType: "application/json", Body: body})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := create(ns+"-for-another", another, "device"); a.GetCode() != http.StatusForbidden {
		t.Errorf("an operation of another node: %d %s", a.GetCode(), a.GetBody())
	}
	if a := create(ns+"-forged", own, "kubernetes-admin"); a.GetCode() != http.StatusCreated {
		t.Errorf("an operation of its own: %d %s", a.GetCode(), a.GetBody())
	}
	report := func(name string) (*topicpb.WriteResult, error) {
		return device.Write(t.Context(), topic.ReportWrite, &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: "skerry.io", Version: "v1alpha1", Resource: v1alpha1.NodeOperations},
			Name: name, Subresource: "status", Body: []byte(`{"phase":"Complete","requestedBy":"kubernetes-admin"}`),
		})
	}
	for name, want := range map[string]bool{ns + "-forged": true, ns + "-mine": true, ns + "-theirs": false} {
		if r, err := report(name); err != nil || r.GetAccepted() != want {
			t.Errorf("a report of %s: accepted %v, %v, want %v: %s", name, r.GetAccepted(), err, want, r.GetStatus())
		}
	}
	operations := dynamic.NewForConfigOrDie(plane.Admin()).Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
	for name, want := range map[string][2]string{
		ns + "-forged": {"device", "device"}, ns + "-mine": {"kubernetes-admin", "kubernetes-admin"}, ns + "-theirs": {"kubernetes-admin", ""},
	} {
		o, err := operations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status, _, err := unstructured.NestedString(o.Object, "status", "requestedBy")
		if got := [2]string{o.GetAnnotations()["skerry.io/requested-by"], status}; err != nil || got != want {
			t.Errorf("%s was requested by %q, %v, want %q", name, got, err, want)
		}
	}
}

// streams: the tunnel has one verb for a device, the end of a stream that cloudcore opened. A
// device opens streams itself, and writes on streams that were never opened: no target is dialled,
// and each is closed or the link is.
func streams(t *testing.T, s *system, _ string) {
	victim := serve(t, "127.0.0.1:0", "victim", nil, "victim")
	for name, messages := range map[string][]message.Message{
		"opens to its kubelet":    {topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: 2, Window: 1 << 16, Target: "kubelet"})},
		"opens to another's":      {topic.StreamOpen.New(message.Resource{Name: another}, &topicpb.StreamOpen{Id: 2, Window: 1 << 16, Target: another})},
		"opens to kube-apiserver": {topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: 2, Window: 1 << 16, Target: plane.Server})},
		"opens to an address":     {topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: 2, Window: 1 << 16, Target: "127.0.0.1:" + victim.port})},
		"speaks on one of no one": {
			topic.StreamWindow.New(message.Resource{}, &topicpb.StreamWindow{Id: 1, Bytes: 1 << 30}),
			topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: 1, Data: []byte("GET / HTTP/1.1\r\n\r\n")}),
			topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: 2, Window: 1 << 16, Target: "kubelet"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			device := s.dial(t, link.QUIC, own)
			for _, m := range messages {
				if err := device.Send(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			cluster.Eventually(t, "the streams or the link are closed", func(context.Context) error {
				if _, closed := device.Streams(); len(closed) > 0 {
					return nil
				}
				select {
				case <-device.Done():
					return nil
				default:
					return errors.New("not yet")
				}
			})
		})
	}
	if n := victim.connections.Load(); n > 0 {
		t.Errorf("cloudcore dialled %d times", n)
	}
}

// heartbeats renew the Lease of the node in the certificate, whatever they are addressed to.
func heartbeats(t *testing.T, s *system, _ string) {
	device := s.dial(t, link.WebSocket, own)
	leases := plane.Client().CoordinationV1().Leases("kube-node-lease")
	cluster.Eventually(t, "its Lease is renewed", func(ctx context.Context) error {
		if err := device.Send(ctx, topic.Heartbeat.New(message.Resource{Namespace: "kube-node-lease", Name: another}, &topicpb.Heartbeat{KubeletAlive: true})); err != nil {
			return err
		}
		l, err := leases.Get(ctx, own, metav1.GetOptions{})
		if err == nil && l.Spec.RenewTime == nil {
			err = errors.New("not yet")
		}
		return err
	})
	l, err := leases.Get(t.Context(), another, metav1.GetOptions{})
	if err != nil || l.Spec.RenewTime != nil {
		t.Errorf("another's Lease: %+v, %v", l, err)
	}
}
