package relay_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// ---- the tests ----

func TestEventsAreWrittenOnceInEffect(t *testing.T) {
	for encoding, encode := range encodings(t) {
		t.Run(encoding, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.addPod("a", "edge1", "u1")
				e := w.connect("edge1", 5)
				path := "/api/v1/namespaces/default/events/a.1"
				send := func(id uint64, verb topicpb.Verb, name string, count int) {
					e.send(topic.EventWrite.New(message.Resource{}, encode(event(id, verb, name, podRef("a", "u1"), count))))
				}

				send(1, topicpb.Verb_CREATE, "a.1", 1)
				want(t, "made", e.takeResults(), []string{"1 accepted"})
				made := w.api.get(path)["metadata"].(map[string]any)
				if made["uid"] == "local" || made["resourceVersion"] == "7" {
					t.Errorf("the edge's own uid and version went up: %v", made)
				}
				send(1, topicpb.Verb_CREATE, "a.1", 1)
				want(t, "sent again", e.takeResults(), []string{"1 accepted"})
				send(2, topicpb.Verb_PATCH, "a.1", 7)
				want(t, "patched", e.takeResults(), []string{"2 accepted"})
				want(t, "count", w.api.get(path)["count"], any(float64(7)))
				send(3, topicpb.Verb_PATCH, "a.2", 3)
				want(t, "a patch of none", e.takeResults(), []string{"3 accepted"})
				want(t, "count of the new", w.api.get("/api/v1/namespaces/default/events/a.2")["count"], any(float64(3)))
			})
		})
	}
}

func TestEvents_09_ForgedEventsAreRefused(t *testing.T) {
	node := func(name string) corev1.ObjectReference {
		return corev1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)}
	}
	other := event(1, topicpb.Verb_CREATE, "x", node("edge1"), 1)
	other.Body = []byte(strings.Replace(string(other.Body), `"host":"edge1"`, `"host":"edge2"`, 1))
	misnamed := event(1, topicpb.Verb_CREATE, "x", node("edge1"), 1)
	misnamed.Name = "y"
	pod, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	asPod := event(1, topicpb.Verb_CREATE, "x", node("edge1"), 1)
	asPod.Body = pod
	foreign := inProtobuf(t, event(1, topicpb.Verb_CREATE, "x", node("edge1"), 1))
	foreign.Resource.Group = "events.k8s.io"
	for name, test := range map[string]struct {
		write *topicpb.Write
		want  string
	}{
		"its own node":                {event(1, topicpb.Verb_CREATE, "x", node("edge1"), 1), "1 accepted"},
		"another node":                {event(1, topicpb.Verb_CREATE, "x", node("edge2"), 1), "1 Forbidden"},
		"its own pod":                 {event(1, topicpb.Verb_CREATE, "x", podRef("mine", "m"), 1), "1 accepted"},
		"its static pod, by name":     {event(1, topicpb.Verb_CREATE, "x", podRef("mine", "hash-of-a-file"), 1), "1 accepted"},
		"another node's pod":          {event(1, topicpb.Verb_CREATE, "x", podRef("theirs", "t"), 1), "1 Forbidden"},
		"another node's, patched":     {event(1, topicpb.Verb_PATCH, "x", podRef("theirs", "t"), 1), "1 Forbidden"},
		"its pod that moved":          {event(1, topicpb.Verb_CREATE, "x", podRef("moved", "before"), 1), "1 accepted"},
		"another's pod that moved":    {event(1, topicpb.Verb_CREATE, "x", podRef("moved", "after"), 1), "1 Forbidden"},
		"a gone pod of its own":       {event(1, topicpb.Verb_CREATE, "x", podRef("gone", "g1"), 1), "1 accepted"},
		"a gone pod of another":       {event(1, topicpb.Verb_CREATE, "x", podRef("gone", "g2"), 1), "1 Forbidden"},
		"a pod that is not known":     {event(1, topicpb.Verb_CREATE, "x", podRef("unheard", "of"), 1), "1 accepted"},
		"a thing that is no pod":      {event(1, topicpb.Verb_CREATE, "x", corev1.ObjectReference{Kind: "Deployment", APIVersion: "apps/v1", Namespace: "default", Name: "d"}, 1), "1 Forbidden"},
		"in the name of another host": {other, "1 Forbidden"},
		"the name isn't the write's":  {misnamed, "1 BadRequest"},
		"no JSON":                     {&topicpb.Write{Id: 1, Verb: topicpb.Verb_CREATE, Resource: &topicpb.Resource{Version: "v1", Resource: "events"}, Body: []byte("{")}, "1 BadRequest"},
		"another's protobuf":          {asPod, "1 BadRequest"},
		"protobuf of another group":   {foreign, "1 BadRequest"},
		"another resource":            {&topicpb.Write{Id: 1, Verb: topicpb.Verb_CREATE, Resource: &topicpb.Resource{Version: "v1", Resource: "secrets"}}, "1 BadRequest"},
		"a deletion":                  {event(1, topicpb.Verb_DELETE, "x", node("edge1"), 1), "1 BadRequest"},
	} {
		for encoding, encode := range encodings(t) {
			t.Run(name+", "+encoding, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newSystem(t)
					w.addPod("mine", "edge1", "m")
					w.addPod("theirs", "edge2", "t")
					w.addPod("moved", "edge1", "before")
					w.addPod("moved", "edge2", "after")
					w.addPod("gone", "edge1", "g1")
					w.addPod("gone", "edge2", "g2")
					w.pods.Delete(kube.Key{Namespace: "default", Name: "gone"})
					e := w.connect("edge1", 1)
					e.send(topic.EventWrite.New(message.Resource{}, encode(test.write)))
					want(t, "result", e.takeResults(), []string{test.want})
				})
			})
		}
	}
}

func TestPodWrites(t *testing.T) {
	remove := func(name, uid string) *topicpb.Write {
		return &topicpb.Write{Id: 1, Verb: topicpb.Verb_DELETE, Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, Namespace: "default", Name: name, Uid: uid,
			Body: []byte(`{"gracePeriodSeconds":0}`)}
	}
	elsewhere := podStatus(1, "a", "u1", "Running")
	elsewhere.Namespace = "../kube-system"
	for name, test := range map[string]struct {
		topic message.Topic[*topicpb.Write]
		write *topicpb.Write
		want  string
	}{
		"status":                       {topic.PodStatusWrite, podStatus(1, "a", "u1", "Running"), "1 accepted"},
		"status of another uid":        {topic.PodStatusWrite, podStatus(1, "a", "old", "Running"), "1 Conflict"},
		"status of a pod that is gone": {topic.PodStatusWrite, podStatus(1, "b", "u2", "Running"), "1 NotFound"},
		"a path in the namespace":      {topic.PodStatusWrite, elsewhere, "1 BadRequest"},
		"deletion":                     {topic.PodWrite, remove("a", "u1"), "1 accepted"},
		"deletion of another uid":      {topic.PodWrite, remove("a", "old"), "1 accepted"},
		"deletion of what is gone":     {topic.PodWrite, remove("b", "u2"), "1 accepted"},
		"deletion without a uid":       {topic.PodWrite, remove("a", ""), "1 BadRequest"},
		"a node that isn't ours": {topic.NodeStatusWrite, &topicpb.Write{Id: 1, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: "edge2",
			Subresource: "status", PatchType: string(types.StrategicMergePatchType), Body: []byte(`{}`)}, "1 Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.addPod("a", "edge1", "u1")
				e := w.connect("edge1", 1)
				e.send(test.topic.New(message.Resource{}, test.write))
				want(t, "result", e.takeResults(), []string{test.want})
				_, there := w.api.objects["/api/v1/namespaces/default/pods/a"]
				want(t, "the pod is there", there, name != "deletion")
			})
		})
	}
}

// A transient failure is retried and never reported; a final result is reported once.
func TestRetries(t *testing.T) {
	forbidden := func(text string) *kube.Response { return status(403, metav1.StatusReasonForbidden, text) }
	tooMany := status(429, metav1.StatusReasonTooManyRequests, "later")
	tooMany.Header.Set("Retry-After", "7")
	for name, test := range map[string]struct {
		fail   func(try int, since time.Duration) (*kube.Response, error)
		within time.Duration
		want   string
		least  time.Duration
	}{
		"429, and no sooner than it says": {func(try int, _ time.Duration) (*kube.Response, error) {
			if try == 0 {
				return tooMany, nil
			}
			return nil, nil
		}, 10 * time.Second, "1 accepted", 7 * time.Second},
		"500 for a while": {func(_ int, since time.Duration) (*kube.Response, error) {
			if since < 2*time.Minute {
				return status(500, metav1.StatusReasonInternalError, "no"), nil
			}
			return nil, nil
		}, 2*time.Minute + 15*time.Second, "1 accepted", 2 * time.Minute},
		"no answer for a while": {func(_ int, since time.Duration) (*kube.Response, error) {
			if since < 2*time.Minute {
				return nil, errors.New("connection refused")
			}
			return nil, nil
		}, 2*time.Minute + 15*time.Second, "1 accepted", 2 * time.Minute},
		"409 until it fits": {func(try int, _ time.Duration) (*kube.Response, error) {
			if try < 5 {
				return status(409, metav1.StatusReasonConflict, "the object has been modified"), nil
			}
			return nil, nil
		}, 30 * time.Second, "1 accepted", 0},
		"403 right after binding": {func(_ int, since time.Duration) (*kube.Response, error) {
			if since < 10*time.Second {
				return forbidden("no relationship found"), nil
			}
			return nil, nil
		}, 30 * time.Second, "1 accepted", 10 * time.Second},
		"403 for good": {func(int, time.Duration) (*kube.Response, error) {
			return forbidden("can only update pod status for pods of itself"), nil
		},
			time.Minute, "1 Forbidden", 30 * time.Second},
		"403 because cloudcore may not impersonate": {func(_ int, since time.Duration) (*kube.Response, error) {
			if since < time.Hour {
				return forbidden(`pods is forbidden: User "system:serviceaccount:skerry-system:cloudcore" cannot impersonate-on:arbitrary-node:patch resource "pods/status"`), nil
			}
			return nil, nil
		}, time.Hour + time.Minute, "1 accepted", time.Hour},
		"422 at once": {func(int, time.Duration) (*kube.Response, error) {
			return status(422, metav1.StatusReasonInvalid, "no"), nil
		}, 0, "1 Invalid", 0},
		"413 at once": {func(int, time.Duration) (*kube.Response, error) {
			return status(413, metav1.StatusReasonRequestEntityTooLarge, "no"), nil
		}, 0,
			"1 RequestEntityTooLarge", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.addPod("a", "edge1", "u1")
				e := w.connect("edge1", 1)
				start, try := time.Now(), 0
				w.api.mu.Lock()
				w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
					if !strings.HasSuffix(r.Path, "/pods/a/status") {
						return nil, nil
					}
					w.api.mu.Lock()
					defer w.api.mu.Unlock()
					resp, err := test.fail(try, time.Since(start))
					try++
					return resp, err
				}
				w.api.mu.Unlock()
				e.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "a", "u1", "Running")))
				synctest.Wait()
				var got []string
				for len(got) == 0 && time.Since(start) <= test.within {
					if got = e.takeResults(); len(got) == 0 {
						time.Sleep(100 * time.Millisecond)
					}
				}
				want(t, "result", got, []string{test.want})
				if took := time.Since(start); took < test.least {
					t.Errorf("after %v, and not before %v", took, test.least)
				}
				if most := int(time.Since(start)/(5*time.Second)) + 12; try > most {
					t.Errorf("%d attempts in %v", try, time.Since(start))
				}
			})
		})
	}
}

func TestOrderIsKeptForEachObjectAndOthersDontWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		for i := range 20 {
			w.addPod(fmt.Sprintf("p%d", i), "edge1", fmt.Sprintf("u%d", i))
		}
		e := w.connect("edge1", 1)
		start := time.Now()
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration { return 100 * time.Millisecond }
		w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
			if strings.HasSuffix(r.Path, "/pods/p0/status") && time.Since(start) < 20*time.Second {
				return status(500, metav1.StatusReasonInternalError, "a webhook fails for this one"), nil
			}
			return nil, nil
		}
		w.api.most = 0
		w.api.mu.Unlock()
		id := uint64(0)
		for _, phase := range []string{"Pending", "Running", "Succeeded"} {
			for i := range 20 {
				id++
				e.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(id, fmt.Sprintf("p%d", i), fmt.Sprintf("u%d", i), phase)))
			}
		}
		time.Sleep(2 * time.Second)
		if got := len(e.takeResults()); got != 57 {
			t.Errorf("%d results while one object fails, want 57", got)
		}
		w.api.mu.Lock()
		if w.api.most > 8 {
			t.Errorf("%d writes of a node at once", w.api.most)
		}
		w.api.mu.Unlock()
		time.Sleep(30 * time.Second)
		want(t, "the slow one, in order", e.takeResults(), []string{"1 accepted", "21 accepted", "41 accepted"})
		for i := range 20 {
			o := w.api.get(fmt.Sprintf("/api/v1/namespaces/default/pods/p%d", i))
			want(t, "last phase", o["status"], any(map[string]any{"phase": "Succeeded"}))
		}
	})
}

func TestOneNodesBackOffIsNotAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("a", "edge1", "u1")
		w.addPod("b", "edge2", "u2")
		one, two := w.connect("edge1", 1), w.connect("edge2", 1)
		w.api.mu.Lock()
		w.api.fail = func(as kube.Identity, _ kube.Request) (*kube.Response, error) {
			if as.Node == "edge1" {
				r := status(429, metav1.StatusReasonTooManyRequests, "later")
				r.Header.Set("Retry-After", "60")
				return r, nil
			}
			return nil, nil
		}
		w.api.mu.Unlock()
		one.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "a", "u1", "Running")))
		two.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "b", "u2", "Running")))
		want(t, "edge2", two.takeResults(), []string{"1 accepted"})
		want(t, "edge1", one.takeResults(), []string(nil))
	})
}

func TestWritesStopWithTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("a", "edge1", "u1")
		e := w.connect("edge1", 1)
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration { return time.Hour }
		w.api.mu.Unlock()
		e.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "a", "u1", "Running")))
		e.send(topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Method: "GET", Path: "/version"}))
		synctest.Wait()
		e.cancel()
		if err := <-e.ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge1"

func (w *system) renewed() string {
	o := w.api.get(leasePath)
	if o == nil {
		return "none"
	}
	spec, _ := o["spec"].(map[string]any)
	at, _ := spec["renewTime"].(string)
	return at
}

// Leases are encoded as a kubelet's are: kube-apiserver spends least on protobuf. A JSON answer is
// accepted too, and the fields of others in a Lease stay there.
func TestLeaseIsProtobuf(t *testing.T) {
	for name, json := range map[string]bool{"protobuf": false, "answered as JSON": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.api.objects[leasePath] = map[string]any{
					"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
					"metadata": map[string]any{"name": "edge1", "namespace": "kube-node-lease", "resourceVersion": "1", "annotations": map[string]any{"example.com/x": "y"}},
				}
				types := map[string]int{}
				w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
					w.api.mu.Lock()
					defer w.api.mu.Unlock()
					if r.Path != leasePath {
						return nil, nil
					}
					types[r.Method+" "+r.ContentType+", accepts "+r.Accept]++
					if json {
						return w.api.serve(r), nil
					}
					return nil, nil
				}
				e := w.connect("edge1", 5)
				e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
				synctest.Wait()
				const both = ", accepts " + kube.Protobuf + ",application/json"
				want(t, "requests", types, map[string]int{"GET " + both: 1, "PUT " + kube.Protobuf + both: 2})
				want(t, "annotations", w.api.get(leasePath)["metadata"].(map[string]any)["annotations"],
					any(map[string]any{"example.com/x": "y", "skerry.io/epoch": "5", "skerry.io/cloudcore": "cloudcore-1", "skerry.io/session": "{}"}))
			})
		})
	}
}

func TestLeaseIsRenewedWhileTheKubeletLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.api.objects["/api/v1/nodes/edge1"] = map[string]any{"metadata": map[string]any{"name": "edge1", "uid": "node-uid"}}
		e := w.connect("edge1", 5)
		// Never without a renewTime, which kube-controller-manager could not compare with: one that
		// has just run out.
		runOut := metav1.NewMicroTime(time.Now().Add(-40 * time.Second)).UTC().Format(metav1.RFC3339Micro)
		want(t, "acquired, and not renewed", w.renewed(), runOut)
		want(t, "epoch", w.api.get(leasePath)["metadata"].(map[string]any)["annotations"], any(map[string]any{"skerry.io/epoch": "5", "skerry.io/cloudcore": "cloudcore-1", "skerry.io/session": "{}"}))

		beat := func(alive bool) {
			e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: alive}))
			synctest.Wait()
		}
		beat(false)
		want(t, "the kubelet isn't alive yet", w.renewed(), runOut)
		beat(true)
		first := w.renewed()
		if first == "" {
			t.Error("not renewed at once")
		}
		want(t, "owner", w.api.get(leasePath)["metadata"].(map[string]any)["ownerReferences"],
			any([]any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": "edge1", "uid": "node-uid"}}))
		before := w.api.count("edge1 PUT " + leasePath)
		for range 360 { // an hour
			time.Sleep(10 * time.Second)
			beat(true)
		}
		if n := w.api.count("edge1 PUT "+leasePath) - before; n < 178 || n > 181 {
			t.Errorf("%d renewals an hour, want half of a kubelet's 360", n)
		}
		beat(false)
		last := w.renewed()
		time.Sleep(time.Minute)
		want(t, "the kubelet is dead", w.renewed(), last)
		beat(true)
		if w.renewed() == last {
			t.Error("the kubelet lives again, and the Lease was not renewed at once")
		}
		time.Sleep(time.Minute) // silence
		last = w.renewed()
		time.Sleep(time.Minute)
		want(t, "no heartbeat says that it lives", w.renewed(), last)
	})
}

func TestAnOlderSessionOnAnotherReplicaStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("a", "edge1", "u1")
		old := w.connect("edge1", 5)
		old.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
		synctest.Wait()
		newer := w.connect("edge1", 6)
		newer.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
		synctest.Wait()
		time.Sleep(10 * time.Second)
		old.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true}))
		time.Sleep(15 * time.Second)
		synctest.Wait()
		end, ok := errors.AsType[*link.CloseError](<-old.ended)
		if !ok || end.Code != link.CloseReplaced {
			t.Errorf("the older session ended with %v", end)
		}
		late := w.connect("edge1", 5)
		synctest.Wait()
		if end, ok := errors.AsType[*link.CloseError](<-late.ended); !ok || end.Code != link.CloseReplaced {
			t.Errorf("a late one ended with %v", end)
		}
		newer.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "a", "u1", "Running")))
		want(t, "the newer one writes", newer.takeResults(), []string{"1 accepted"})

		newer.cancel()
		time.Sleep(time.Hour)          // the Lease is not renewed: its epoch counts all the same
		again := w.connect("edge1", 1) // its store was lost: it counts from the start
		synctest.Wait()
		end, ok = errors.AsType[*link.CloseError](<-again.ended)
		if !ok || end.Code != link.CloseReplaced || !strings.Contains(end.Reason, "epoch=6,") {
			t.Errorf("an edge that lost its store got %v", end)
		}
		again = w.connect("edge1", 7)
		again.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(1, "a", "u1", "Running")))
		want(t, "an edge that lost its store and goes on from the epoch that it got", again.takeResults(), []string{"1 accepted"})
	})
}

func token(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func TestRequests(t *testing.T) {
	pod := `{"sub":"system:serviceaccount:default:app","kubernetes.io":{"node":{"name":"edge1"}}}`
	for name, test := range map[string]struct {
		request *topicpb.APIRequest
		code    int32
		call    string // the request at kube-apiserver
	}{
		"a read as the node":            {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/nodes/edge1"}, 404, "edge1 GET /api/v1/nodes/edge1"},
		"a create as the node":          {&topicpb.APIRequest{Method: "POST", Path: "/api/v1/nodes", Body: []byte(`{"metadata":{"name":"edge1"}}`)}, 201, "edge1 POST /api/v1/nodes"},
		"with a pod's token":            {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", BearerToken: token(pod)}, 404, "token GET /api/v1/pods"},
		"with a token of another node":  {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", BearerToken: token(strings.Replace(pod, "edge1", "edge2", 1))}, 401, ""},
		"with a user's token":           {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", BearerToken: token(`{"sub":"admin"}`)}, 401, ""},
		"with a token that is no JWT":   {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", BearerToken: "abcdef.0123456789abcdef"}, 401, ""},
		"discovery":                     {&topicpb.APIRequest{Method: "GET", Path: "/apis/apps/v1"}, 404, "edge1 GET /apis/apps/v1"},
		"openapi":                       {&topicpb.APIRequest{Method: "GET", Path: "/openapi/v3/apis/apps/v1"}, 404, "edge1 GET /openapi/v3/apis/apps/v1"},
		"a watch":                       {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=true"}, 400, ""},
		"a watch by 1":                  {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=1"}, 400, ""},
		"an empty watch":                {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch"}, 400, ""},
		"a watch by the old path":       {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/watch/pods"}, 400, ""},
		"exec":                          {&topicpb.APIRequest{Method: "POST", Path: "/api/v1/namespaces/default/pods/a/exec"}, 400, ""},
		"a proxy":                       {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/nodes/edge2/proxy/pods"}, 400, ""},
		"logs":                          {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/namespaces/default/pods/a/log"}, 400, ""},
		"metrics":                       {&topicpb.APIRequest{Method: "GET", Path: "/metrics"}, 400, ""},
		"dots in the path":              {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/nodes/../../../metrics"}, 400, ""},
		"escaped dots":                  {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/%2e%2e/%2e%2e/metrics"}, 400, ""},
		"another host":                  {&topicpb.APIRequest{Method: "GET", Path: "//example.com/api/v1/pods"}, 400, ""},
		"a query in the path":           {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods?watch=1"}, 400, ""},
		"a method":                      {&topicpb.APIRequest{Method: "CONNECT", Path: "/api/v1/pods"}, 400, ""},
		"a header with another":         {&topicpb.APIRequest{Method: "GET", Path: "/api/v1/pods", Accept: "*/*\r\nImpersonate-User: admin"}, 400, ""},
		"an event behind rule 9's back": {&topicpb.APIRequest{Method: "POST", Path: "/api/v1/namespaces/default/events", Body: []byte(`{}`)}, 400, ""},
		"a long body":                   {&topicpb.APIRequest{Method: "POST", Path: "/api/v1/nodes", Body: make([]byte, 4<<20)}, 413, ""},
		"a write to a path":             {&topicpb.APIRequest{Method: "POST", Path: "/version"}, 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				e := w.connect("edge1", 1)
				w.api.mu.Lock()
				w.api.calls = nil
				w.api.mu.Unlock()
				m := topic.APIRequest.New(message.Resource{}, test.request)
				e.send(m)
				synctest.Wait()
				got := e.answered()[m.Header.ID]
				if got.GetCode() != test.code {
					t.Errorf("code %d, want %d: %s", got.GetCode(), test.code, got.GetBody())
				}
				var calls []string
				if test.call != "" {
					calls = []string{test.call}
				}
				want(t, "calls", w.api.calls, calls)
			})
		})
	}
}

func TestRequestsOfANodeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		e := w.connect("edge1", 1)
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration { return time.Second }
		w.api.mu.Unlock()
		for range 20 {
			e.send(topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Method: "GET", Path: "/version"}))
		}
		synctest.Wait()
		want(t, "refused at once", len(e.answered()), 4)
		for _, a := range e.answered() {
			want(t, "code", a.GetCode(), int32(429))
			want(t, "retry", a.GetRetryAfter(), "1")
		}
		time.Sleep(2 * time.Second)
		want(t, "answered", len(e.answered()), 20)

		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration { return time.Hour }
		w.api.mu.Unlock()
		m := topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Method: "GET", Path: "/version", TimeoutMillis: 5000})
		e.send(m)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		want(t, "in time", e.answered()[m.Header.ID].GetCode(), int32(504))
	})
}

func TestAQueueHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("a", "edge1", "u1")
		e := w.connect("edge1", 1)
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration { return time.Hour }
		w.api.mu.Unlock()
		var err error
		n := 0
		for ; err == nil && n < 10_000; n++ {
			err = e.mux.Dispatch(t.Context(), topic.PodStatusWrite.New(message.Resource{}, podStatus(uint64(n), "a", "u1", "Running")))
		}
		end, ok := errors.AsType[*link.CloseError](err)
		if !ok || end.Code != link.CloseProtocol || n > 1000 {
			t.Errorf("after %d writes: %v", n, err)
		}
		e.cancel()
		<-e.ended
	})
}
