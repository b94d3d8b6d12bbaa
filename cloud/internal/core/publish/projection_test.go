package publish_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// sites are pools by node; edge9's pool reaches that of the south.
type sites struct {
	mu    sync.Mutex
	pools map[string]string
	known bool
}

func (s *sites) SiteOf(node string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pool := s.pools[node]; pool != "" {
		return "pool/" + pool, s.known
	}
	return "node/" + node, s.known
}

func (s *sites) Concerns(site, node string) (own, reached bool) {
	theirs, _ := s.SiteOf(node)
	return theirs == site, site == "pool/far" && theirs == "pool/south"
}

func (s *sites) Title(site string) string { _, name, _ := strings.Cut(site, "/"); return name }

func (s *sites) set(node, pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[node], s.known = pool, true
}

var endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")

// slice has an endpoint on each node; "" is one without.
func slice(name string, generation int, nodes ...string) *discoveryv1.EndpointSlice {
	namespace, service, _ := strings.Cut(name, "/")
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-x", UID: "u", Generation: int64(generation), Labels: map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": fmt.Sprint(generation), "kept": "yes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, n := range nodes {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", generation, i)}}
		if n != "" {
			e.Addresses = []string{fmt.Sprintf("10.1.0.%d", i)}
			e.NodeName = &n
			if !strings.HasPrefix(n, "edge1") {
				e.Addresses = []string{fmt.Sprintf("10.0.%d.%d", generation, i)}
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func allSlices(id uint64) *topicpb.Interest {
	return &topicpb.Interest{Id: id, Resource: resource(endpointSlices)}
}

// slices lists the edge's endpoints of each slice: node, address, zone.
func (e *edge) slices(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for key, c := range e.objects[endpointSlices] {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(c.Object, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := o.(*discoveryv1.EndpointSlice)
		text := s.Annotations["skerry.io/site"] + ":"
		for _, x := range s.Endpoints {
			node, zone := "-", "-"
			if x.NodeName != nil {
				node = *x.NodeName
			}
			if x.Zone != nil {
				zone = *x.Zone
			}
			text += " " + node + "/" + zone
		}
		if len(s.Annotations) != 2 || s.ResourceVersion != "" || s.Generation != 0 {
			t.Errorf("%s has what changes with others' endpoints: %v, version %q", key, s.Annotations, s.ResourceVersion)
		}
		out[key.String()] = text
	}
	return out
}

// A site gets the endpoints on its nodes, on those that it reaches and without a node; a rollout
// elsewhere sends it no message, and a device that comes back is equal by the digest of its
// projection.
func TestProjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sites{pools: map[string]string{"edge1": "north", "edge2": "north", "edge3": "south", "edge9": "far"}, known: true}
		c, e := newWorld(), newEdge(t)
		c.synced(t, endpointSlices, slice("default/web", 1, "edge1", "edge2", "edge3", ""), slice("default/elsewhere", 1, "edge3"),
			slice("kube-system/kube-dns", 1, "cloud7"), slice("default/kubernetes", 1, ""))
		p := publish.New(c, c, c, publish.DefaultQuotas())
		p.Project(s)
		e.connect(p, allSlices(1))
		want(t, "what the site has", e.slices(t), map[string]string{
			"default/web-x": "north: edge1/north edge2/north -/-", "kube-system/kube-dns-x": "north:", "default/kubernetes-x": "north: -/-",
		})
		e.takeLog()
		before := e.states
		for generation := 2; generation < 50; generation++ {
			c.put(t, endpointSlices, slice("default/elsewhere", generation, "edge3", "edge3"))
			c.put(t, endpointSlices, slice("kube-system/kube-dns", generation, "cloud8"))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		want(t, "changes of a rollout elsewhere", len(e.takeLog()), 0)
		want(t, "messages of a rollout elsewhere", e.states-before, 0)

		e.disconnect()
		e.connect(p, allSlices(1))
		for _, line := range e.takeLog() {
			if strings.Contains(line, "-x") {
				t.Errorf("an edge that comes back is sent %s", line)
			}
		}

		// Endpoints on the site's own nodes come at once, and are removed when they leave them.
		c.put(t, endpointSlices, slice("default/elsewhere", 50, "edge2"))
		c.put(t, endpointSlices, slice("default/web", 50, "edge3"))
		synctest.Wait()
		want(t, "what the site has after it", e.slices(t), map[string]string{
			"default/elsewhere-x": "north: edge2/north", "kube-system/kube-dns-x": "north:", "default/kubernetes-x": "north: -/-",
		})
		e.disconnect()
	})
}

// A pool's nodes change: the site has another projection at once. A pool may reach others, whose
// endpoints keep their zones.
func TestProjection_SitesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sites{pools: map[string]string{"edge1": "far", "edge3": "south"}}
		c, e := newWorld(), newEdge(t)
		c.synced(t, endpointSlices, slice("default/web", 1, "edge1", "edge2", "edge3"))
		p := publish.New(c, c, c, publish.DefaultQuotas())
		p.Project(s)
		e.connect(p, allSlices(1))
		want(t, "before sites are known", len(e.slices(t)), 0)
		want(t, "synced before sites are known", e.syncedIDs(), map[uint64]bool{})
		e.disconnect()

		s.set("edge2", "")
		p.SitesChanged()
		e.connect(p, allSlices(1))
		want(t, "what the site has", e.slices(t), map[string]string{"default/web-x": "far: edge1/far edge3/south"})
		s.set("edge2", "far")
		p.SitesChanged()
		synctest.Wait()
		want(t, "with another device", e.slices(t), map[string]string{"default/web-x": "far: edge1/far edge2/far edge3/south"})
		e.disconnect()
	})
}
