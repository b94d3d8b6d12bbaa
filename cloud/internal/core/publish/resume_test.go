package publish_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

func TestResume(t *testing.T) {
	many := func(n int) (all []metav1.Object) {
		for i := range n {
			all = append(all, service(fmt.Sprintf("s%04d", i)))
		}
		return all
	}
	for name, test := range map[string]struct {
		objects int
		change  func(t *testing.T, c *world)
		same    bool // the same cloudcore, which has seen the changes; else another
		old     bool // the edge doesn't send its newest version
		asked   []string
		log     []string
	}{
		"changes that cloudcore has seen": {
			objects: 1000, same: true, change: func(t *testing.T, c *world) {
				c.put(t, services, service("s0500"))
				c.put(t, services, service("s0501"))
				c.put(t, services, service("s0500"))
				c.put(t, services, service("new"))
				c.put(t, services, service("brief"))
				c.store(services).Delete(kube.Key{Namespace: "default", Name: "s0007"})
				c.store(services).Delete(kube.Key{Namespace: "default", Name: "brief"})
				c.put(t, services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Spec: corev1.ServiceSpec{ClusterIP: "None"}})
				c.put(t, services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s0008"}, Spec: corev1.ServiceSpec{ClusterIP: "None"}})
			},
			log: []string{"+services/s0500", "+services/s0501", "+services/new", "-services/s0007", "-services/s0008", "-services/brief", "synced 1"},
		},
		"more changes than it remembers": {
			objects: 100, same: true, change: func(t *testing.T, c *world) {
				for range 2100 {
					c.put(t, services, service("s0050"))
				}
			},
			log: []string{"+services/s0050", "synced 1"},
		},
		"not followed meanwhile": {
			objects: 10, same: true, change: func(t *testing.T, c *world) {
				time.Sleep(time.Hour)
				c.put(t, services, service("s0003"))
			},
			log: []string{"+services/s0003", "synced 1"},
		},
		"nothing changed": {objects: 1000, change: func(*testing.T, *world) {}, log: []string{"synced 1"}},
		"what is newer than all that the edge holds": {
			objects: 1000, change: func(t *testing.T, c *world) {
				c.put(t, services, service("s0500"))
				c.put(t, services, service("new"))
			},
			log: []string{"+services/new", "+services/s0500", "synced 1"},
		},
		"what is newer is not all": {
			objects: 100, change: func(t *testing.T, c *world) {
				c.put(t, services, service("s0050"))
				c.put(t, services, service("new"))
				c.store(services).Delete(kube.Key{Namespace: "default", Name: "s0007"})
			},
			asked: []string{"services buckets=true only=0", "services buckets=false only=1"},
			log:   []string{"+services/new", "+services/s0050", "-services/s0007", "not synced 1", "synced 1"},
		},
		"more are gone than are newer": {
			objects: 10, change: func(t *testing.T, c *world) {
				c.put(t, services, service("s0005"))
				c.store(services).Delete(kube.Key{Namespace: "default", Name: "s0007"})
			},
			asked: []string{"services buckets=false only=0"}, log: []string{"+services/s0005", "-services/s0007", "synced 1"},
		},
		"few objects: entries at once": {
			old:     true,
			objects: 10, change: func(t *testing.T, c *world) { c.put(t, services, service("s0003")) },
			asked: []string{"services buckets=false only=0"}, log: []string{"+services/s0003", "synced 1"},
		},
		"many objects: buckets first": {
			old:     true,
			objects: 1000, change: func(t *testing.T, c *world) { c.put(t, services, service("s0500")) },
			asked: []string{"services buckets=true only=0", "services buckets=false only=1"}, log: []string{"+services/s0500", "synced 1"},
		},
		"a deletion is found": {
			objects: 100, change: func(_ *testing.T, c *world) {
				c.store(services).Delete(kube.Key{Namespace: "default", Name: "s0007"})
			},
			asked: []string{"services buckets=true only=0", "services buckets=false only=1"}, log: []string{"-services/s0007", "synced 1"},
		},
		"resource versions went back": {
			objects: 3, change: func(t *testing.T, c *world) {
				c.mu.Lock()
				c.version = 10
				c.mu.Unlock()
				c.synced(t, services, service("s0001"))
			},
			asked: []string{"services buckets=false only=0"}, log: []string{"+services/s0001", "-services/s0000", "-services/s0002", "synced 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newWorld(), newEdge(t)
				e.old = test.old
				c.synced(t, services, many(test.objects)...)
				p := publish.New(c, c, c, publish.DefaultQuotas())
				e.connect(p, allServices(1))
				if got := len(e.names(services)); got != test.objects {
					t.Fatalf("%d services, want %d", got, test.objects)
				}
				e.disconnect()
				test.change(t, c)
				if !test.same {
					p = publish.New(c, c, c, publish.DefaultQuotas())
				}
				e.connect(p, allServices(1))
				log := e.takeLog()
				slices.Sort(log)
				slices.Sort(test.log)
				want(t, "sent", log, test.log)
				want(t, "asked", e.asked, test.asked)
				e.disconnect()
			})
		})
	}
}

// Two sets whose buckets differ and have the same short sums: the digest shows it, and the edge is
// asked for everything.
func TestResume_ShortSumsThatDeceive(t *testing.T) {
	for name, second := range map[string]bool{"beside one that is found": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newWorld(), newEdge(t)
				e.old = true
				var all []metav1.Object
				for i := range 100 {
					all = append(all, service(fmt.Sprintf("s%04d", i)))
				}
				c.synced(t, services, all...)
				e.connect(publish.New(c, c, c, publish.DefaultQuotas()), allServices(1))
				e.disconnect()
				hidden := kube.Key{Namespace: "default", Name: "s0042"}
				c.put(t, services, service(hidden.Name))
				log := []string{"+services/s0042", "synced 1"}
				asked := []string{"services buckets=true only=0", "services buckets=false only=0"}
				if second {
					c.put(t, services, service("s0043"))
					log = []string{"+services/s0042", "+services/s0043", "synced 1"}
					asked = []string{"services buckets=true only=0", "services buckets=false only=1", "services buckets=false only=0"}
				}
				// The bucket's sum in the cloud.
				e.blur = &hidden
				c.store(services).Each(mustSelect(t), func(o *kube.Object) bool {
					if publish.BucketOf(o.Key) == publish.BucketOf(hidden) {
						e.blurred.Xor(o.Sum)
					}
					return true
				})
				e.connect(publish.New(c, c, c, publish.DefaultQuotas()), allServices(1))
				got := e.takeLog()
				slices.Sort(got)
				want(t, "sent", got, log)
				want(t, "asked", e.asked, asked)
				e.disconnect()
			})
		})
	}
}

func mustSelect(t *testing.T) *kube.Selection {
	t.Helper()
	sel, err := kube.Select(services, kube.Source{})
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

// The rights and collections of a session become known one by one; that an edge's sets are equal is
// sent once for all, and a slow collection delays none of them.
func TestSyncMarkersOfAResumeShareAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		p := publish.New(c, c, c, publish.DefaultQuotas())
		kinds := []schema.GroupVersionResource{kube.Pods, services, nodes, {Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}, {Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}}
		var all []*topicpb.Interest
		for i, gvr := range kinds {
			all = append(all, &topicpb.Interest{Id: uint64(i + 1), Resource: resource(gvr)})
		}
		e.connect(p, all...)
		for _, gvr := range kinds {
			c.synced(t, gvr)
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
		}
		want(t, "synced as soon as the last is known", e.syncedIDs(), map[uint64]bool{1: true, 2: true, 3: true, 4: true, 5: true})
		want(t, "States", e.states, 1)

		slow := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "slow"}
		e.disconnect()
		e.connect(p, append(all, &topicpb.Interest{Id: 6, Resource: resource(slow)})...)
		settle()
		want(t, "synced while one collection is not known", e.syncedIDs(), map[uint64]bool{1: true, 2: true, 3: true, 4: true, 5: true})
		want(t, "States", e.states, 1)
		time.Sleep(time.Minute)
		more := &topicpb.Interest{Id: 7, Resource: resource(schema.GroupVersionResource{Version: "v1", Resource: "endpoints"})}
		c.synced(t, gvrOf(more.Resource))
		e.declare(append(all, &topicpb.Interest{Id: 6, Resource: resource(slow)}, more)...)
		if !e.syncedIDs()[7] {
			t.Error("long after the start of the session a sync marker waits")
		}
		e.disconnect()
	})
}

// Collections become known one by one, and so do the ConfigMaps of a pod, whose watches are opened
// at the same time. The objects that a returning edge lacks of these, and the markers that all else
// is equal, are one State. An edge with an empty store is not kept waiting for that.
func TestResumeOfManyConfigMapsIsOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		var names []string
		for i := range 60 {
			names = append(names, fmt.Sprintf("cm%03d", i))
			c.configMap(t, names[i], "1")
		}
		kinds := []schema.GroupVersionResource{services, nodes, {Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}, {Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}}
		all := []*topicpb.Interest{podsOf(1, "edge1"), dependencies(2)}
		for i, gvr := range kinds {
			all = append(all, &topicpb.Interest{Id: uint64(i + 3), Resource: resource(gvr)})
		}
		c.synced(t, kube.Pods, pod("big", "edge1", names...))
		for _, gvr := range kinds[1:] {
			c.synced(t, gvr)
		}
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), all...)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		want(t, "synced while one collection is not known, of an edge that holds nothing", e.syncedIDs(), map[uint64]bool{1: true, 2: true, 4: true, 5: true, 6: true})
		c.synced(t, kinds[0])
		settle()
		e.disconnect()

		for _, i := range []int{50, 21, 7, 22} {
			c.configMap(t, names[i], "2")
		}
		c.mu.Lock()
		for _, name := range names {
			c.missing[cmRef(name)] = true
		}
		for _, gvr := range kinds {
			delete(c.stores, gvr)
		}
		c.mu.Unlock()
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), all...)
		for i, name := range names {
			if i%15 == 7 {
				c.synced(t, kinds[i/15])
			}
			c.mu.Lock()
			delete(c.missing, cmRef(name))
			c.mu.Unlock()
			c.tell(cmRef(name))
			time.Sleep(3 * time.Millisecond)
			synctest.Wait()
		}
		settle()
		want(t, "sent", e.takeLog(), []string{
			"+configmaps/cm007", "+configmaps/cm021", "+configmaps/cm022", "+configmaps/cm050",
			"synced 1", "synced 3", "synced 4", "synced 5", "synced 6", "synced 2",
		})
		want(t, "States", e.states, 1)
		want(t, "asked", e.asked, []string(nil))
		e.disconnect()
	})
}

// The digest to expect and the sync markers are one State also while another collection takes long:
// an edge with another set marks no interest as synced.
func TestSyncMarkersTravelWithTheExpectation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, services, service("s0"), service("s1"))
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), allServices(1))
		e.disconnect()
		c.put(t, services, service("new"))
		slow := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "slow"}
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), allServices(1), &topicpb.Interest{Id: 2, Resource: resource(slow)})
		want(t, "sent", e.takeLog(), []string{"+services/new", "synced 1"})
		want(t, "asked", e.asked, []string(nil))
		settle()
		want(t, "States", e.states, 1)
		e.disconnect()
	})
}
