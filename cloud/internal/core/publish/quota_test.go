package publish_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// A device declares 4,096 new interests each second, and selectors of a megabyte. It gets 429; its
// kubelet's own interests are served, another device is not affected, and the reviews stay within
// the quota.
func TestQuotasOfInterestsAndSelectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld()
		reviews := map[types.NodeName]int{}
		c.denied = func(node types.NodeName, _ kube.Attributes) (string, error) { reviews[node]++; return "", nil }
		c.synced(t, kube.Pods, pod("a", "hostile"), pod("b", "edge2"))
		c.synced(t, services, service("web"))
		p := publish.New(c, c, c, publish.DefaultQuotas())
		own := []*topicpb.Interest{podsOf(1, "hostile"), dependencies(2), allServices(3)}
		e := newEdge(t)
		e.Name = "hostile"
		e.connect(p, own...)
		want(t, "its kubelet's", e.syncedIDs(), map[uint64]bool{1: true, 2: true, 3: true})

		const seconds, each = 10, 4000
		before := reviews["hostile"]
		for second := range seconds {
			all := own
			for i := range each {
				all = append(all, &topicpb.Interest{
					Id: uint64(1000 + second*each + i), Resource: resource(services), Namespace: fmt.Sprintf("n%d-%d", second, i),
				})
			}
			e.declare(all...)
			if n := len(e.refusals()); n < each-1024 {
				t.Fatalf("in second %d only %d interests have heard a refusal", second, n)
			}
			time.Sleep(time.Second)
		}
		for id, reason := range e.refusals() {
			if reason != "TooManyRequests" {
				t.Fatalf("interest %d was refused as %s", id, reason)
			}
		}
		// Two reviews for an interest: 1,024 at once and 16 each second.
		if asked := reviews["hostile"] - before; asked > 2*(1024+16*(seconds+1)) {
			t.Errorf("%d reviews for %d interests", asked, seconds*each)
		}

		other := newEdge(t)
		other.Name = "edge2"
		other.connect(p, podsOf(1, "edge2"), dependencies(2), allServices(3))
		want(t, "another device's", other.syncedIDs(), map[uint64]bool{1: true, 2: true, 3: true})
		other.disconnect()

		e.mu.Lock()
		clear(e.refused)
		e.mu.Unlock()
		long := "app in (" + strings.Repeat("x,", 500_000) + "x)"
		e.declare(append(own, &topicpb.Interest{Id: 1 << 20, Resource: resource(services), LabelSelector: long})...)
		want(t, "a selector of a megabyte", e.refusals(), map[uint64]string{1 << 20: "TooManyRequests"})
		c.put(t, services, service("api"))
		synctest.Wait()
		want(t, "its kubelet's go on", e.names(services), []string{"api", "web"})
		e.disconnect()
	})
}

// Interests over a quota are served once there is room; dropped ones are not reviewed.
func TestQuotasGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld()
		c.synced(t, services, service("web"))
		quotas := publish.DefaultQuotas()
		quotas.Interests = 2
		p := publish.New(c, c, c, quotas)
		e := newEdge(t)
		by := func(id uint64) *topicpb.Interest {
			return &topicpb.Interest{Id: id, Resource: resource(services), Namespace: fmt.Sprint("n", id)}
		}
		e.connect(p, by(1), by(2), by(3))
		want(t, "over the quota", e.refusals(), map[uint64]string{3: "TooManyRequests"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true, 2: true})
		e.declare(by(2), by(3))
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want(t, "with room", e.syncedIDs(), map[uint64]bool{1: true, 2: true, 3: true})
		e.disconnect()
	})
}

// Work of interests that were dropped leaves the line.
func TestDroppedInterestsAreNotAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld()
		c.synced(t, services)
		access := &slow{world: c}
		e := newEdge(t)
		e.connect(publish.New(c, c, access, publish.DefaultQuotas()))
		var many []*topicpb.Interest
		for i := range 1000 {
			many = append(many, &topicpb.Interest{Id: uint64(i + 1), Resource: resource(services), Namespace: fmt.Sprint("n", i)})
		}
		e.declare(many...)
		e.declare()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.asked); n > 100 {
			t.Errorf("%d reviews for interests that were dropped", n)
		}
		if d := cmp.Diff(map[schema.GroupVersionResource]int{}, c.inUse()); d != "" {
			t.Errorf("collections in use (-want +got)\n%s", d)
		}
		e.disconnect()
	})
}
