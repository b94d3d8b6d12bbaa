package publish_test

import (
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// An edge that takes names from the objects is sent them there alone; one of an older release has
// them in a field of the message. The fake edge checks that no other way is used, and that a
// deletion names its object.
func TestNamesOfObjects(t *testing.T) {
	for name, older := range map[string]bool{"an edge of an older release": true, "one that asks for no names": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newWorld(), newEdge(t)
				e.named = older
				routes := v1alpha1.Resource(v1alpha1.StaticRoutes)
				c.synced(t, kube.Pods, pod("a", "edge1", "m"))
				c.synced(t, kube.Claims)
				c.synced(t, kube.Volumes)
				c.synced(t, routes, staticRoute("r", "10.0.0.1", 0), staticRoute("s", "10.0.0.1", 0))
				c.synced(t, services, service("web"))
				c.configMap(t, "m", "1")
				all := []*topicpb.Interest{podsOf(1, "edge1"), dependencies(2), {Id: 3, Resource: resource(routes)}, allServices(4)}
				p := publish.New(c, c, c, publish.DefaultQuotas())
				e.connect(p, all...)
				check := func(when string, wantRoutes ...string) {
					t.Helper()
					want(t, "pods "+when, e.names(kube.Pods), []string{"a"})
					want(t, "ConfigMaps "+when, e.names(kube.ConfigMaps), []string{"m"})
					want(t, "routes "+when, e.names(routes), wantRoutes)
					want(t, "services "+when, e.names(services), []string{"web"})
				}
				check("at first", "r", "s")
				c.put(t, kube.Pods, pod("a", "edge1", "m"))
				c.put(t, routes, staticRoute("r", "10.0.0.2", 0))
				c.store(routes).Delete(kube.Key{Name: "s"})
				synctest.Wait()
				check("after changes", "r")
				e.disconnect()

				// An update of the device: objects that it holds are not sent again.
				e.named = !older
				e.connect(p, all...)
				want(t, "sent to the other release", countChanges(e.takeLog()), 0)
				check("of the other release", "r")
				c.put(t, services, service("web"))
				synctest.Wait()
				want(t, "changes", countChanges(e.takeLog()), 1)

				// The newest Interests count.
				e.named = older
				e.declare(all...)
				c.put(t, services, service("web"))
				synctest.Wait()
				want(t, "changes", countChanges(e.takeLog()), 1)
				e.disconnect()
			})
		})
	}
}

func countChanges(log []string) int {
	n := 0
	for _, line := range log {
		if line[0] == '+' || line[0] == '-' {
			n++
		}
	}
	return n
}
