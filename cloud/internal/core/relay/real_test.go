package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
)

func (e *edge) result(t *testing.T, id uint64) (r *topicpb.WriteResult, s metav1.Status) {
	t.Helper()
	cluster.Eventually(t, fmt.Sprintf("write %d is answered", id), func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, have := range e.results {
			if have.Id == id {
				r = have
				return nil
			}
		}
		return errors.New("not yet")
	})
	if len(r.Status) > 0 {
		if err := json.Unmarshal(r.Status, &s); err != nil {
			t.Fatal(err)
		}
	}
	return r, s
}

// TestReal writes at a real kube-apiserver, with the rights of cloudcore's manifests and no others.
func TestReal(t *testing.T) {
	plane := cluster.Run(t)
	plane.Apply(t, "manifests/cloudcore")
	client, err := kube.NewClient(plane.ServiceAccount(t, "skerry-system", "cloudcore"), kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	informers := kube.NewInformers(client)
	pods := relay.NewPods(informers)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return pods.Run(ctx) })
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	admin, ns := plane.Client(), plane.Namespace(t)
	for _, node := range []string{"edge1", "edge2"} {
		plane.AddNode(t, node)
	}
	made := map[string]*corev1.Pod{}
	for name, node := range map[string]string{"mine": "edge1", "theirs": "edge2"} {
		p, err := admin.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "example.test/none:1"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = p
	}
	w := &system{t: t, relay: relay.New(client, pods, "cloudcore-1")}
	e := w.open("edge1", 7)
	defer func() {
		e.cancel()
		if err := <-e.ended; err != nil {
			t.Error(err)
		}
	}()
	status := func(id uint64, name string, uid types.UID) *topicpb.Write {
		p := podStatus(id, name, string(uid), "Running")
		p.Namespace = ns
		return p
	}
	about := func(p *corev1.Pod) corev1.ObjectReference {
		return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: ns, Name: p.Name, UID: p.UID}
	}
	report := func(id uint64, verb topicpb.Verb, name string, of corev1.ObjectReference, count int) *topicpb.Write {
		w := event(id, verb, name, of, count)
		w.Body = []byte(strings.Replace(string(w.Body), `"namespace":"default"`, `"namespace":"`+ns+`"`, 1))
		w.Namespace = ns
		return w
	}
	send := func(topic message.Topic[*topicpb.Write], w *topicpb.Write) { e.send(topic.New(message.Resource{}, w)) }
	accepted := func(t *testing.T, id uint64) *topicpb.WriteResult {
		t.Helper()
		r, s := e.result(t, id)
		if !r.Accepted {
			t.Fatalf("write %d was refused: %s", id, s.Message)
		}
		return r
	}
	refused := func(t *testing.T, id uint64, reason metav1.StatusReason) {
		t.Helper()
		r, s := e.result(t, id)
		if r.Accepted || s.Reason != reason || s.Message == "" {
			t.Errorf("write %d: accepted %v, %s: %s; want %s", id, r.Accepted, s.Reason, s.Message, reason)
		}
		t.Logf("%s", s.Message)
	}

	t.Run("pod status", func(t *testing.T) {
		send(topic.PodStatusWrite, status(1, "mine", made["mine"].UID))
		version := accepted(t, 1).ResourceVersion
		p, err := admin.CoreV1().Pods(ns).Get(ctx, "mine", metav1.GetOptions{})
		if err != nil || p.Status.Phase != corev1.PodRunning || p.ResourceVersion != version {
			t.Errorf("phase %s, version %s reported as %s, %v", p.Status.Phase, p.ResourceVersion, version, err)
		}
	})
	t.Run("pod status of another node", func(t *testing.T) {
		send(topic.PodStatusWrite, status(2, "theirs", made["theirs"].UID))
		refused(t, 2, metav1.StatusReasonForbidden)
	})
	t.Run("pod status of a pod that was made again", func(t *testing.T) {
		send(topic.PodStatusWrite, status(3, "mine", "another"))
		r, s := e.result(t, 3)
		if r.Accepted {
			t.Error("accepted")
		}
		t.Logf("%s: %s", s.Reason, s.Message)
	})
	id := uint64(100)
	for encoding, encode := range encodings(t) {
		t.Run("events in "+encoding, func(t *testing.T) {
			first, second := "mine.1-"+strings.ToLower(encoding), "mine.2-"+strings.ToLower(encoding)
			write := func(verb topicpb.Verb, name string, count int) {
				t.Helper()
				id++
				send(topic.EventWrite, encode(report(id, verb, name, about(made["mine"]), count)))
				accepted(t, id)
			}
			write(topicpb.Verb_CREATE, first, 1)
			write(topicpb.Verb_CREATE, first, 1)
			write(topicpb.Verb_PATCH, first, 5)
			write(topicpb.Verb_PATCH, second, 2)
			for name, count := range map[string]int32{first: 5, second: 2} {
				if got, err := admin.CoreV1().Events(ns).Get(ctx, name, metav1.GetOptions{}); err != nil || got.Count != count || got.Source.Host != "edge1" {
					t.Errorf("%s: %+v, %v", name, got, err)
				}
			}
		})
	}
	t.Run("a forged event", func(t *testing.T) {
		send(topic.EventWrite, report(14, topicpb.Verb_CREATE, "theirs.1", about(made["theirs"]), 1))
		refused(t, 14, metav1.StatusReasonForbidden)
	})
	t.Run("node status", func(t *testing.T) {
		write := func(id uint64, node string) *topicpb.Write {
			return &topicpb.Write{Id: id, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: node, Subresource: "status",
				PatchType: string(types.StrategicMergePatchType), Body: []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)}
		}
		send(topic.NodeStatusWrite, write(20, "edge1"))
		accepted(t, 20)
		send(topic.NodeStatusWrite, write(21, "edge2"))
		refused(t, 21, metav1.StatusReasonForbidden)
	})
	t.Run("the Lease", func(t *testing.T) {
		e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
		cluster.Eventually(t, "the Lease is renewed", func(ctx context.Context) error {
			l, err := admin.CoordinationV1().Leases("kube-node-lease").Get(ctx, "edge1", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if l.Spec.RenewTime == nil || time.Since(l.Spec.RenewTime.Time) > 5*time.Second || len(l.OwnerReferences) != 1 || *l.Spec.HolderIdentity != "edge1" {
				return fmt.Errorf("%+v", l)
			}
			return nil
		})
	})
	t.Run("requests", func(t *testing.T) {
		for name, test := range map[string]struct {
			request *topicpb.APIRequest
			code    int32
		}{
			"its node":             {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/nodes/edge1", Accept: "application/vnd.kubernetes.protobuf"}, 200},
			"another node":         {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/nodes/edge2"}, 403},
			"another's pod":        {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/namespaces/" + ns + "/pods/theirs"}, 403},
			"a Secret":             {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/namespaces/kube-system/secrets/any"}, 403},
			"another's Lease":      {&topicpb.APIRequest{Method: "GET", Path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge2"}, 403},
			"writing that":         {&topicpb.APIRequest{Method: "PATCH", Path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge2", ContentType: "application/merge-patch+json", Body: []byte(`{}`)}, 403},
			"a token for its pod":  {&topicpb.APIRequest{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/serviceaccounts/default/token", ContentType: "application/json", Body: tokenRequest(made["mine"])}, 201},
			"for another's":        {&topicpb.APIRequest{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/serviceaccounts/default/token", ContentType: "application/json", Body: tokenRequest(made["theirs"])}, 403},
			"version":              {&topicpb.APIRequest{Method: "GET", Path: "/version"}, 200},
			"discovery":            {&topicpb.APIRequest{Method: "GET", Path: "/apis/apps/v1"}, 200},
			"aggregated discovery": {&topicpb.APIRequest{Method: "GET", Path: "/apis", Accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}, 200},
			"openapi":              {&topicpb.APIRequest{Method: "GET", Path: "/openapi/v3"}, 200},
			"the keys of tokens":   {&topicpb.APIRequest{Method: "GET", Path: "/openid/v1/jwks", Accept: "application/jwk-set+json"}, 200},
		} {
			t.Run(name, func(t *testing.T) {
				a := e.ask(t, test.request)
				if a.GetCode() != test.code {
					t.Errorf("%d, want %d: %s", a.GetCode(), test.code, a.GetBody())
				}
			})
		}
		t.Run("with the token of a pod", func(t *testing.T) {
			a := e.ask(t, &topicpb.APIRequest{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/serviceaccounts/default/token", ContentType: "application/json",
				Body: tokenRequest(made["mine"])})
			var answer struct{ Status struct{ Token string } }
			if err := json.Unmarshal(a.GetBody(), &answer); err != nil || answer.Status.Token == "" {
				t.Fatalf("no token: %s", a.GetBody())
			}
			review := &topicpb.APIRequest{Method: "POST", Path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", ContentType: "application/json",
				Body: []byte(`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`), BearerToken: answer.Status.Token}
			if a := e.ask(t, review); !strings.Contains(string(a.GetBody()), "system:serviceaccount:"+ns+":default") {
				t.Errorf("who am I: %d %s", a.GetCode(), a.GetBody())
			}
			review.BearerToken = answer.Status.Token[:len(answer.Status.Token)-8] + "AAAAAAAA"
			if a := e.ask(t, review); a.GetCode() != 401 {
				t.Errorf("a damaged token: %d", a.GetCode())
			}
		})
	})
	t.Run("the kubelet deletes its pod", func(t *testing.T) {
		remove := &topicpb.Write{Id: 30, Verb: topicpb.Verb_DELETE, Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, Namespace: ns, Name: "mine",
			Uid: "another", Body: []byte(`{"gracePeriodSeconds":0}`)}
		send(topic.PodWrite, remove)
		accepted(t, 30)
		if _, err := admin.CoreV1().Pods(ns).Get(ctx, "mine", metav1.GetOptions{}); err != nil {
			t.Fatalf("another pod was deleted: %v", err)
		}
		again := &topicpb.Write{Id: 31, Verb: remove.Verb, Resource: remove.Resource, Namespace: ns, Name: "mine", Uid: string(made["mine"].UID), Body: remove.Body}
		send(topic.PodWrite, again)
		accepted(t, 31)
		if _, err := admin.CoreV1().Pods(ns).Get(ctx, "mine", metav1.GetOptions{}); err == nil {
			t.Error("the pod is still there")
		}
		send(topic.EventWrite, report(32, topicpb.Verb_CREATE, "mine.late", about(made["mine"]), 1))
		accepted(t, 32)
	})
}

func tokenRequest(p *corev1.Pod) []byte {
	return fmt.Appendf(nil, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":[],"expirationSeconds":3600,
		"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":%q,"uid":%q}}}`, p.Name, p.UID)
}

func (e *edge) ask(t *testing.T, q *topicpb.APIRequest) (a *topicpb.APIResponse) {
	t.Helper()
	m := topic.APIRequest.New(message.Resource{}, q)
	e.send(m)
	cluster.Eventually(t, "the request is answered", func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if a = e.answers[m.Header.ID]; a == nil {
			return errors.New("not yet")
		}
		return nil
	})
	return a
}
