package relay_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// typesOf are the types of the addresses that kube-apiserver has of edge1.
func (w *system) typesOf() (out []string) {
	status, _ := w.api.get("/api/v1/nodes/edge1")["status"].(map[string]any)
	list, _ := status["addresses"].([]any)
	for _, a := range list {
		if t, ok := a.(map[string]any)["type"].(string); ok {
			out = append(out, t)
		}
	}
	return out
}

func TestHideAddresses(t *testing.T) {
	const addresses = `[{"type":"InternalIP","address":"10.0.0.1"},{"type":"Hostname","address":"edge1"},{"type":"ExternalIP","address":"192.0.2.1"}]`
	hidden := []string{"skerry.io/InternalIP", "Hostname", "skerry.io/ExternalIP"}
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.relay.HideAddresses()
		var before map[string]any
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"edge1","uid":"u","resourceVersion":"1"},"status":{"addresses":`+addresses+`}}`), &before); err != nil {
			t.Fatal(err)
		}
		w.api.objects["/api/v1/nodes/edge1"] = before
		e := w.connect("edge1", 1)
		want(t, "of a node from before", w.typesOf(), hidden)

		// Of a session that begins while controllers write the Node, and kube-apiserver fails once.
		e.cancel()
		<-e.ended
		w.api.objects["/api/v1/nodes/edge1"] = before
		times := 0
		w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
			if r.Method != http.MethodPatch || r.Path != "/api/v1/nodes/edge1/status" {
				return nil, nil
			}
			if times++; times == 3 {
				return nil, errors.New("connection reset")
			}
			if times < 3 {
				w.api.mu.Lock()
				defer w.api.mu.Unlock()
				w.api.store("/api/v1/nodes/edge1", w.api.objects["/api/v1/nodes/edge1"], 200)
			}
			return nil, nil
		}
		e = w.connect("edge1", 2)
		time.Sleep(time.Second)
		w.api.fail = nil
		want(t, "beside writes of others", w.typesOf(), hidden)

		// As a kubelet patches them: nodeutil.PatchNodeStatus.
		patch := `{"status":{"$setElementOrder/addresses":[{"type":"InternalIP"},{"type":"Hostname"},{"type":"ExternalIP"}],` +
			`"addresses":` + addresses[:len(addresses)-1] + `,{"$patch":"replace"}]}}`
		e.send(topic.NodeStatusWrite.New(message.Resource{}, &topicpb.Write{
			Id: 1, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: "edge1", Subresource: "status",
			PatchType: string(types.StrategicMergePatchType), Body: []byte(patch),
		}))
		want(t, "result", e.takeResults(), []string{"1 accepted"})
		want(t, "in a patch", w.typesOf(), hidden)
		status := w.api.get("/api/v1/nodes/edge1")["status"].(map[string]any)
		order, err := json.Marshal(status["$setElementOrder/addresses"])
		if err != nil {
			t.Fatal(err)
		}
		want(t, "order", string(order), `[{"type":"skerry.io/InternalIP"},{"type":"Hostname"},{"type":"skerry.io/ExternalIP"}]`)

		// One that registers under the eyes of the session.
		delete(w.api.objects, "/api/v1/nodes/edge1")
		e.send(topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Method: "POST", Path: "/api/v1/nodes", ContentType: "application/json",
			Body: []byte(`{"metadata":{"name":"edge1"},"status":{"addresses":` + addresses + `}}`)}))
		synctest.Wait()
		want(t, "of a new node", w.typesOf(), hidden)
	})
}

func TestRevealAddresses(t *testing.T) {
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: "skerry.io/InternalIP", Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "edge1"}, {Type: "skerry.io/other", Address: "x"},
	}}}
	relay.RevealAddresses(n)
	want(t, "addresses", n.Status.Addresses, []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "edge1"}, {Type: "skerry.io/other", Address: "x"},
	})
	relay.RevealAddresses(&corev1.Pod{}) // no addresses: no-op
}
