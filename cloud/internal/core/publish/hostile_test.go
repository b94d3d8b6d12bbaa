package publish_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// A device asks two replicas for resources that its node may get and cloudcore may not list, and
// for versions that do not exist. Each session is refused, with the reason; no reflector starts,
// and both stay ready.
func TestHostile_01_ForbiddenInterestIsRefused(t *testing.T) {
	first := newSystem(t)
	replicas := map[string]*system{"first": first, "second": first.replica(t)}
	first.plane.AddNode(t, "edge1")
	one := func(id uint64, group, version, resource string) *topicpb.Interest {
		return &topicpb.Interest{
			Id: id, Resource: &topicpb.Resource{Group: group, Version: version, Resource: resource}, Namespace: "kube-system", FieldSelector: "metadata.name=any",
		}
	}
	forbidden := []*topicpb.Interest{
		one(10, "", "v1", "endpoints"),
		one(11, "apps", "v1", "daemonsets"),
		one(12, "apps", "v1beta9", "daemonsets"),
		one(13, "", "v7", "pods"), // no pod of the node: that is reported first
		{Id: 14, Resource: &topicpb.Resource{Version: "v7", Resource: "pods"}, FieldSelector: "spec.nodeName=edge1"},
		{Id: 15, Resource: &topicpb.Resource{Group: "node.k8s.io", Version: "v1alpha1", Resource: "runtimeclasses"}},
		{Id: 16, Resource: &topicpb.Resource{Group: "apps", Version: "v1", Resource: "deployments"}},
	}
	for i := range 50 { // made-up versions, one reflector each
		forbidden = append(forbidden, one(uint64(100+i), "", fmt.Sprintf("v%d", i+2), "services"))
	}
	for name, r := range replicas {
		t.Run(name, func(t *testing.T) {
			release := r.own()
			defer release()
			e := r.edge(t, "edge1")
			e.connect(r.publisher, append([]*topicpb.Interest{podsOf(1, "edge1"), dependencies(2), allServices(3)}, forbidden...)...)
			poll.True(t, "its kubelet's interests are synced", func() bool { return e.isSynced(1, 2, 3) })
			poll.True(t, "all the others are refused", func() bool {
				if err := r.informers.Ready(); err != nil {
					t.Fatalf("a device made cloudcore unready: %v", err)
				}
				return len(e.refusals()) == len(forbidden)
			})
			for id, reason := range map[uint64]string{10: "Forbidden", 11: "Forbidden", 12: "NotFound", 13: "Forbidden", 14: "NotFound", 15: "NotFound", 16: "Forbidden"} {
				want(t, fmt.Sprint("why interest ", id, " is refused"), e.refusal(id), reason)
			}
			allowed := []string{"pods v1", "services v1", "nodes v1", "persistentvolumeclaims v1", "persistentvolumes v1"}
			for _, s := range r.informers.Status() {
				if what := s.Resource.Resource + " " + s.Resource.Version; !strings.Contains(strings.Join(allowed, ","), what) {
					t.Errorf("a reflector was started for %s", what)
				}
			}
			if err := r.informers.Ready(); err != nil {
				t.Errorf("not ready: %v", err)
			}
			e.disconnect()
		})
	}
}

// own opens the collections that cloudcore follows for itself.
func (r *system) own() (release func()) {
	_, pods := r.informers.Open(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	_, nodes := r.informers.Open(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	return func() { pods(); nodes() }
}

// The watches of upstream's kubelet, with exactly the rights of manifests/cloudcore: cloudcore may
// follow all of them. A right that is missing there shows as an interest that is refused for ever.
func TestReal_WatchesOfAKubelet(t *testing.T) {
	r := newSystem(t)
	r.plane.AddNode(t, "edge1")
	watches := map[string]*topicpb.Interest{
		"its Node":                   {Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, FieldSelector: "metadata.name=edge1"},
		"its pods":                   {Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, FieldSelector: "spec.nodeName=edge1"},
		"services":                   {Resource: &topicpb.Resource{Version: "v1", Resource: "services"}},
		"runtime classes":            {Resource: &topicpb.Resource{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}},
		"CSI drivers":                {Resource: &topicpb.Resource{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}},
		"its serving certificate":    {Resource: &topicpb.Resource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}, FieldSelector: "metadata.name=csr-1"},
		"pods' certificate requests": {Resource: &topicpb.Resource{Group: "certificates.k8s.io", Version: "v1", Resource: "podcertificaterequests"}, FieldSelector: "spec.nodeName=edge1"},
	}
	var all []*topicpb.Interest
	names := map[uint64]string{}
	for name, i := range watches {
		i.Id = uint64(len(all) + 1)
		names[i.Id] = name
		all = append(all, i)
	}
	e := r.edge(t, "edge1")
	e.connect(r.publisher, all...)
	for id, name := range names {
		poll.True(t, name+" to be synced", func() bool { return e.isSynced(id) })
	}
	e.disconnect()
}
