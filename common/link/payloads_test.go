package link

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The most frequent content of a link, as kube-apiserver, the kubelet and cloudcore make it.
// Kubernetes' own types are not used: their fields are written as their encoders write them, which
// leave out no scalar that is empty.

// field encodes one field of a Kubernetes message: a string, bytes, a number, or fields.
func field(number protowire.Number, values ...any) []byte {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case int:
			return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(v))
		case string:
			b = append(b, v...)
		case []byte:
			b = append(b, v...)
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), b)
}

// enveloped is an object of a built-in kind, as cloud/internal/core/kube encodes it.
func enveloped(kind string, raw []byte) []byte {
	return slices.Concat([]byte("k8s\x00"), field(1, field(1, "v1"), field(2, kind)), field(2, raw), field(3), field(4))
}

// randomly makes the parts that differ between objects.
type randomly struct{ *rand.Rand }

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func (r randomly) uid() string {
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", r.Uint32(), r.Uint32()>>16, r.Uint32()>>20, 0x8000|r.Uint32()>>18, r.Uint64()>>16)
}

func (r randomly) sum() []byte { return r.noise(16) }

func (r randomly) noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (r randomly) meta(name, version string, more ...any) []byte {
	return field(1, append([]any{field(1, name), field(2), field(3, "default"), field(4), field(5, r.uid()), field(6, version), field(7, 0), field(8, field(1, 1790000000), field(2, 0))}, more...)...)
}

func (r randomly) service(i int) []byte {
	ip := fmt.Sprintf("10.96.%d.%d", r.IntN(256), r.IntN(256))
	port := func(name string, port int) []byte {
		return field(1, field(1, name), field(2, "TCP"), field(3, port), field(4, field(1, 0), field(2, port), field(3)), field(5, 0))
	}
	return slices.Concat(
		r.meta(fmt.Sprintf("service-%04d", i*37), fmt.Sprint(5000+i), field(11, field(1, "bench"), field(2, "resync")), field(12, field(1, "round"), field(2, "0"))),
		field(2, port("http", 80), port("metrics", 9090), field(2, field(1, "app"), field(2, fmt.Sprintf("app-%04d", i*37))), field(3, ip), field(4, "ClusterIP"), field(7, "None"), field(8), field(10), field(11), field(12, 0),
			field(13, 0), field(17, "SingleStack"), field(18, ip), field(19, "IPv4"), field(22, "Cluster")),
		field(3, field(1)))
}

func (r randomly) configMap(i int) []byte {
	return slices.Concat(r.meta(fmt.Sprintf("many-%03d", i*37), fmt.Sprint(7000+i), field(11, field(1, "bench"), field(2, "many"))),
		field(2, field(1, "k"), field(2, strings.Repeat("v", 200))), field(2, field(1, "round"), field(2, "0")))
}

func (r randomly) state(resource, kind string, objects ...[]byte) *topicpb.State {
	of := &topicpb.Resource{Version: "v1", Resource: resource}
	c := &topicpb.Changes{Resource: of}
	for _, o := range objects {
		c.Items = append(c.Items, &topicpb.Change{Object: enveloped(kind, o)})
	}
	return &topicpb.State{Sequence: 3, Changes: []*topicpb.Changes{c}, Synced: []uint64{17}, Expected: []*topicpb.Digest{{Resource: of, Count: 1000, Sum: r.sum()}}}
}

// typical is a message that links carry often.
type typical struct {
	message message.Message
	core    []byte // the payload: the objects, the patch, the request
}

const readyPatch = `{"metadata":{"uid":"%s"},"status":{"$setElementOrder/conditions":[{"type":"PodReadyToStartContainers"},{"type":"Initialized"},{"type":"Ready"},{"type":"ContainersReady"},{"type":"PodScheduled"}],` +
	`"conditions":[{"lastTransitionTime":"2026-11-23T12:00:%02dZ","observedGeneration":1,"status":"True","type":"PodReadyToStartContainers"},{"lastTransitionTime":"2026-11-23T12:00:%02dZ","message":null,"observedGeneration":1,"reason":null,"status":"True","type":"Ready"},` +
	`{"lastTransitionTime":"2026-11-23T12:00:%02dZ","message":null,"observedGeneration":1,"reason":null,"status":"True","type":"ContainersReady"}],` +
	`"containerStatuses":[{"allocatedResources":{"cpu":"100m","memory":"64Mi"},"containerID":"containerd://%x%x","image":"registry.example/web:1.2","imageID":"registry.example/web@sha256:%x%x","lastState":{},"name":"web","ready":true,"resources":{"limits":{"memory":"64Mi"},"requests":{"cpu":"100m","memory":"64Mi"}},"restartCount":0,"started":true,` +
	`"state":{"running":{"startedAt":"2026-11-23T12:00:%02dZ"}},"volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"kube-api-access-x7k2p","readOnly":true,"recursiveReadOnly":"Disabled"}]}],` +
	`"phase":"Running","podIP":"10.244.1.17","podIPs":[{"ip":"10.244.1.17"}]}}`

const nodePatch = `{"status":{"$setElementOrder/conditions":[{"type":"MemoryPressure"},{"type":"DiskPressure"},{"type":"PIDPressure"},{"type":"Ready"}],` +
	`"conditions":[{"lastHeartbeatTime":"2026-11-23T12:05:07Z","type":"MemoryPressure"},{"lastHeartbeatTime":"2026-11-23T12:05:07Z","type":"DiskPressure"},` +
	`{"lastHeartbeatTime":"2026-11-23T12:05:07Z","type":"PIDPressure"},{"lastHeartbeatTime":"2026-11-23T12:05:07Z","type":"Ready"}]}}`

// typicalMessages are the same at each call.
func typicalMessages(t testing.TB) map[string]typical {
	t.Helper()
	r := randomly{newRand()}
	all := map[string]typical{}
	var services, maps [][]byte
	for i := range 10 {
		services, maps = append(services, r.service(i)), append(maps, r.configMap(i))
	}
	down := func(s *topicpb.State) message.Message { return topic.State.New(message.Resource{}, s) }
	all["ten services"] = typical{down(r.state("services", "Service", services...)), slices.Concat(services...)}
	all["ten maps"] = typical{down(r.state("configmaps", "ConfigMap", maps...)), slices.Concat(maps...)}
	all["a service"] = typical{down(r.state("services", "Service", services[0])), services[0]}
	all["a map"] = typical{down(r.state("configmaps", "ConfigMap", maps[0])), maps[0]}

	uid := r.uid()
	event := slices.Concat(r.meta("web-7d4b9c6f5-x7k2p.18a3f2c4d5e6f708", ""), field(2, field(1, "Pod"), field(2, "default"), field(3, "web-7d4b9c6f5-x7k2p"), field(4, uid), field(5, "v1"), field(6, "5123"), field(7, "spec.containers{web}")),
		field(3, "Pulled"), field(4, `Container image "registry.example/web:1.2" already present on machine and can be accessed by the pod`), field(5, field(1, "kubelet"), field(2, "edge-17")), field(6, field(1, 1790000000), field(2, 0)),
		field(7, field(1, 1790000000), field(2, 0)), field(8, 1), field(9, "Normal"), field(10), field(12), field(14, "kubelet"), field(15, "edge-17"))
	all["event"] = typical{topic.EventWrite.New(message.Resource{}, &topicpb.Write{
		Id: 4711, Verb: topicpb.Verb_CREATE, Resource: &topicpb.Resource{Version: "v1", Resource: "events"}, Namespace: "default", Name: "web-7d4b9c6f5-x7k2p.18a3f2c4d5e6f708", Body: enveloped("Event", event), Uid: uid, UnixMillis: 1790000000123,
	}), event}
	pod := fmt.Appendf(nil, readyPatch, uid, 1, 3, 3, r.sum(), r.sum(), r.sum(), r.sum(), 2)
	all["pod status"] = typical{topic.PodStatusWrite.New(message.Resource{}, &topicpb.Write{
		Id: 4712, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, Namespace: "default", Name: "web-7d4b9c6f5-x7k2p", Subresource: "status", PatchType: "application/strategic-merge-patch+json", Body: pod,
		Uid: uid, UnixMillis: 1790000000123, ResourceVersion: "5123",
	}), pod}
	all["node status"] = typical{topic.NodeStatusWrite.New(message.Resource{}, &topicpb.Write{
		Id: 4713, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: "edge-17", Subresource: "status", PatchType: "application/strategic-merge-patch+json", Body: []byte(nodePatch),
		Uid: r.uid(), UnixMillis: 1790000000123, ResourceVersion: "5123",
	}), []byte(nodePatch)}
	token := []byte(`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{},"spec":{"audiences":null,"expirationSeconds":3607,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"web-7d4b9c6f5-x7k2p","uid":"` + uid + `"}},"status":{"token":"","expirationTimestamp":null}}`)
	all["token request"] = typical{topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{
		Method: "POST", Path: "/api/v1/namespaces/default/serviceaccounts/default/token", Accept: "application/vnd.kubernetes.protobuf,application/json", ContentType: "application/json", Body: token, TimeoutMillis: 30000,
	}), token}
	in := &topicpb.Interests{Unnamed: true}
	for i, g := range []*topicpb.Resource{
		{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "nodes"}, {Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}, {Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, {Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"}, {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		{Group: "skerry.io", Version: "v1alpha1", Resource: "staticroutes"}, {Group: "skerry.io", Version: "v1alpha1", Resource: "virtualips"}, {Group: "skerry.io", Version: "v1alpha1", Resource: "nodepools"}, {Group: "skerry.io", Version: "v1alpha1", Resource: "edgeapps"},
		{Group: "skerry.io", Version: "v1alpha1", Resource: "nodeoperations"}, {Group: "skerry.io", Version: "v1alpha1", Resource: "servicecollections"},
	} {
		x := &topicpb.Interest{Id: uint64(i + 1), Resource: g}
		if g.Resource == "pods" {
			x.FieldSelector = "spec.nodeName=edge-17"
		} else if g.Resource == "nodes" {
			x.FieldSelector = "metadata.name=edge-17"
		}
		in.Interests = append(in.Interests, x)
		in.Digests = append(in.Digests, &topicpb.Digest{Resource: g, Count: uint64(i), Sum: r.sum(), Newest: 5000 + uint64(i)})
	}
	in.Interests = append(in.Interests, &topicpb.Interest{Id: 40, Dependencies: true})
	b, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	all["interests"] = typical{topic.Interests.New(message.Resource{}, in), b}
	for name, p := range all {
		p.message.Header = message.Header{ID: 4711} // as the hubs send it: without time, source or resource
		all[name] = p
	}
	return all
}
