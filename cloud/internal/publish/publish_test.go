package publish_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/cloud/internal/publish"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// ---- the tests ----

func TestFirstConnectDeliversWhatIsSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		headless := service("headless")
		headless.Spec.ClusterIP = "None"
		c.synced(t, kube.Pods, pod("mine", "edge1"), pod("other", "edge2"), pod("unbound", ""))
		c.synced(t, services, service("web"), headless)
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), allServices(2))
		want(t, "pods", e.names(kube.Pods), []string{"mine"})
		want(t, "services", e.names(services), []string{"web"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true, 2: true})

		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.objects[kube.Pods][kube.Key{Namespace: "default", Name: "mine"}].Object, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := o.(*corev1.Pod); !ok || p.Name != "mine" || len(p.ManagedFields) != 0 || p.ResourceVersion == "" {
			t.Errorf("not a pod in Kubernetes protobuf without managedFields: %#v", o)
		}
		e.disconnect()
		time.Sleep(time.Hour) // an edge that comes back soon would find them open
		synctest.Wait()
		want(t, "collections in use", c.inUse(), map[schema.GroupVersionResource]int{kube.Pods: 0, services: 0})
	})
}

func TestChangesFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("a", "edge1"))
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"))
		e.takeLog()
		start := time.Now()
		steps := []struct {
			name string
			do   func()
			want []string
		}{
			{"a pod is bound to us", func() { c.put(t, kube.Pods, pod("b", "edge1")) }, []string{"+pods/b"}},
			{"a pod of another node changes", func() { c.put(t, kube.Pods, pod("x", "edge2")) }, nil},
			{"ours is deleted", func() { c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "a"}) }, []string{"-pods/a"}},
			{"ours becomes another node's", func() { c.put(t, kube.Pods, pod("b", "edge2")) }, []string{"-pods/b"}},
		}
		for _, s := range steps {
			s.do()
			synctest.Wait()
			want(t, s.name, e.takeLog(), s.want)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("changes waited for %v", d)
		}
		e.disconnect()
	})
}

func TestNothingIsSentBeforeTheCollectionIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.put(t, kube.Pods, pod("early", "edge1"))
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"))
		want(t, "before", e.takeLog(), []string(nil))
		c.synced(t, kube.Pods, pod("early", "edge1"), pod("late", "edge1"))
		synctest.Wait()
		want(t, "pods", e.names(kube.Pods), []string{"early", "late"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true})
		e.disconnect()
	})
}

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
		old     bool // the edge doesn't say how new its newest is
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
		"nobody followed meanwhile": {
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
				p := publish.New(c, c, c)
				e.connect(p, allServices(1))
				if got := len(e.names(services)); got != test.objects {
					t.Fatalf("%d services, want %d", got, test.objects)
				}
				e.disconnect()
				test.change(t, c)
				if !test.same {
					p = publish.New(c, c, c)
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

// Two sets whose buckets differ and have the same short sums: the digest shows it, and the edge is asked for everything.
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
				e.connect(publish.New(c, c, c), allServices(1))
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
				// What the bucket's sum is in the cloud.
				e.blur = &hidden
				c.store(services).Each(mustSelect(t), func(o *kube.Object) bool {
					if publish.BucketOf(o.Key) == publish.BucketOf(hidden) {
						e.blurred.Xor(o.Sum)
					}
					return true
				})
				e.connect(publish.New(c, c, c), allServices(1))
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

func TestDependenciesTravelBeforeThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		c.configMap(t, "shared", "1")
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), dependencies(2))
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true, 2: true})
		e.takeLog()

		c.put(t, kube.Pods, pod("a", "edge1", "shared"))
		synctest.Wait()
		want(t, "with its ConfigMap", e.takeLog(), []string{"+configmaps/shared", "+pods/a"})

		c.put(t, kube.Pods, pod("b", "edge1", "shared"))
		synctest.Wait()
		want(t, "a second one, and the ConfigMap is there", e.takeLog(), []string{"+pods/b"})

		late := cmRef("late")
		c.mu.Lock()
		c.missing[late] = true
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("c", "edge1", "shared", "late"))
		synctest.Wait()
		want(t, "nobody knows yet whether it exists", e.takeLog(), []string(nil))
		c.put(t, kube.Pods, pod("d", "edge1"))
		synctest.Wait()
		want(t, "others don't wait", e.takeLog(), []string{"+pods/d"})
		c.configMap(t, "late", "1")
		settle()
		want(t, "now it is known", e.takeLog(), []string{"+configmaps/late", "+pods/c"})

		c.put(t, kube.Pods, pod("optional", "edge1", "absent"))
		synctest.Wait()
		want(t, "what doesn't exist holds nobody up", e.takeLog(), []string{"-configmaps/absent", "+pods/optional"})

		c.configMap(t, "shared", "2")
		synctest.Wait()
		want(t, "an update", e.takeLog(), []string{"+configmaps/shared"})

		for _, name := range []string{"a", "b", "c"} {
			c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: name})
		}
		synctest.Wait()
		log := e.takeLog()
		if !slices.Contains(log, "-configmaps/shared") || !slices.Contains(log, "-configmaps/late") {
			t.Errorf("nobody needs them any more, and they stay: %q", log)
		}
		e.disconnect()
		want(t, "watches left", len(c.watches), 0)
	})
}

// settle lets what is gathered for a moment go on, and waits for what comes of it.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// The answers of many watches come one by one, and don't travel so.
func TestAnswersOfWatchesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maps = 300
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		synctest.Wait()
		e.takeLog()
		var names []string
		c.mu.Lock()
		for i := range maps {
			names = append(names, fmt.Sprintf("m%03d", i))
			c.missing[cmRef(names[i])] = true
		}
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("a", "edge1", names...))
		synctest.Wait()
		before := e.states
		for _, name := range names {
			c.configMap(t, name, "1")
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		settle()
		log := e.takeLog()
		if len(log) != maps+1 || log[maps] != "+pods/a" {
			t.Fatalf("%d changes came, the last is %s: want the pod after all %d ConfigMaps", len(log), log[len(log)-1], maps)
		}
		// One comes each millisecond, and five are waited for.
		if n := e.states - before; n > maps/4 {
			t.Errorf("they came in %d States", n)
		}
		c.configMap(t, names[0], "2")
		synctest.Wait()
		want(t, "an update, which waits for nobody", e.takeLog(), []string{"+configmaps/m000"})
		e.disconnect()
	})
}

func TestResumeOfDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		var names []string
		for i := range 500 {
			names = append(names, fmt.Sprintf("cm%03d", i))
			c.configMap(t, names[i], "1")
		}
		c.synced(t, kube.Pods, pod("big", "edge1", names...))
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		want(t, "config maps", len(e.names(kube.ConfigMaps)), 500)
		if i, j := slices.Index(e.log, "+pods/big"), slices.Index(e.log, "+configmaps/cm499"); i < j {
			t.Error("the pod came before what it needs")
		}
		e.disconnect()

		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		log := e.takeLog()
		slices.Sort(log)
		want(t, "nothing changed", log, []string{"synced 1", "synced 2"})
		e.disconnect()

		c.configMap(t, "cm123", "2")
		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "nobody"})
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		log = e.takeLog()
		slices.Sort(log)
		want(t, "one changed", log, []string{"+configmaps/cm123", "synced 1", "synced 2"})
		e.disconnect()

		c.configMap(t, "cm124", "2")
		running := pod("big", "edge1", names...)
		running.Status.StartTime = &metav1.Time{Time: time.Now()}
		c.put(t, kube.Pods, running)
		c.configMap(t, "late", "1")
		late := pod("new", "edge1", "late")
		c.put(t, kube.Pods, late)
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), dependencies(2))
		log = e.takeLog()
		slices.Sort(log)
		want(t, "one changed, and the pod that runs, and a new one", slices.Compact(log),
			[]string{"+configmaps/cm124", "+configmaps/late", "+pods/big", "+pods/new", "synced 1", "synced 2"})
		want(t, "asked", e.asked, []string(nil))
		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "new"})
		synctest.Wait()
		e.disconnect()

		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "big"})
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		want(t, "config maps when the pod is gone", e.names(kube.ConfigMaps), []string{})
		want(t, "pods", e.names(kube.Pods), []string{})
		e.disconnect()
	})
}

func TestClaimsBringTheirVolumesAndSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"}}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", NodeStageSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "key"},
			}},
		}}
		c.synced(t, kube.Claims, claim, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}})
		c.synced(t, kube.Volumes, volume)
		p := pod("db", "edge1")
		p.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		c.synced(t, kube.Pods)
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"), dependencies(2))
		e.takeLog()
		c.put(t, kube.Pods, p)
		synctest.Wait()
		want(t, "sent", e.takeLog(), []string{"+persistentvolumeclaims/data", "+persistentvolumes/pv1", "-secrets/key", "+pods/db"})
		e.disconnect()
	})
}

func TestRefusals(t *testing.T) {
	forbidden := func(node types.NodeName, at kube.Attributes) (string, error) {
		if at.Resource == nodes && at.Name != "edge1" {
			return "only its own Node object", nil
		}
		return "", nil
	}
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.denied = forbidden
		c.synced(t, nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge2"}})
		e.connect(publish.New(c, c, c),
			&topicpb.Interest{Id: 1, Resource: resource(nodes), FieldSelector: "metadata.name=edge2"},
			&topicpb.Interest{Id: 2, Resource: resource(kube.Secrets), Namespace: "default"},
			&topicpb.Interest{Id: 3, Resource: resource(kube.Pods), FieldSelector: "spec.colour=red"},
			&topicpb.Interest{Id: 4},
		)
		want(t, "at once", e.refusals(), map[uint64]string{2: "Forbidden", 3: "BadRequest", 4: "BadRequest"})
		time.Sleep(45 * time.Second)
		synctest.Wait()
		want(t, "when it is believed", e.refusals(), map[uint64]string{1: "Forbidden", 2: "Forbidden", 3: "BadRequest", 4: "BadRequest"})
		want(t, "nodes", e.names(nodes), []string{})

		c.mu.Lock()
		c.denied = nil
		c.mu.Unlock()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want(t, "allowed later", e.names(nodes), []string{"edge2"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true})

		c.mu.Lock()
		c.denied = forbidden
		c.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		want(t, "revoked", e.names(nodes), []string{})
		e.disconnect()
	})
}

func TestARefusalThatPassesIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		tries := 0
		c.denied = func(types.NodeName, kube.Attributes) (string, error) {
			switch tries++; {
			case tries < 3:
				return "no relationship found", nil
			case tries < 6:
				return "", errors.New("connection refused")
			}
			return "", nil
		}
		c.synced(t, kube.Pods, pod("a", "edge1"))
		e.connect(publish.New(c, c, c), podsOf(1, "edge1"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		want(t, "refused", e.refusals(), map[uint64]string{})
		want(t, "pods", e.names(kube.Pods), []string{"a"})
		e.disconnect()
	})
}

// An interest that nobody has decided about must not cost the edge what it holds.
func TestUndecidedInterestsDeleteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("a", "edge1"))
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"))
		e.disconnect()
		c.denied = func(types.NodeName, kube.Attributes) (string, error) { return "", errors.New("connection refused") }
		e.connect(p, podsOf(1, "edge1"))
		time.Sleep(time.Hour)
		synctest.Wait()
		want(t, "pods", e.names(kube.Pods), []string{"a"})
		want(t, "refused", e.refusals(), map[uint64]string{})
		e.disconnect()
	})
}

func TestSingleObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		ref := c.configMap(t, "one", "1")
		p := publish.New(c, c, c)
		e.connect(p, oneConfigMap(1, "one"), oneConfigMap(2, "absent"))
		want(t, "config maps", e.names(kube.ConfigMaps), []string{"one"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true, 2: true})
		e.takeLog()

		e.declare(oneConfigMap(1, "one"), oneConfigMap(2, "absent"), oneConfigMap(3, "another"))
		want(t, "one more interest", e.syncedIDs(), map[uint64]bool{1: true, 2: true, 3: true})

		c.mu.Lock()
		c.deny[ref] = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "one", errors.New("no relationship found"))
		c.mu.Unlock()
		c.tell(ref)
		synctest.Wait()
		want(t, "revoked", e.names(kube.ConfigMaps), []string{})
		want(t, "told", e.refusals(), map[uint64]string{1: "Forbidden"})

		c.mu.Lock()
		delete(c.deny, ref)
		c.mu.Unlock()
		c.tell(ref)
		settle()
		want(t, "allowed again", e.names(kube.ConfigMaps), []string{"one"})

		e.declare(oneConfigMap(2, "absent"))
		want(t, "dropped", e.names(kube.ConfigMaps), []string{})
		e.disconnect()
		want(t, "watches left", len(c.watches), 0)
	})
}

func TestInterestsThatComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		labelled := func(name, app string) *corev1.Service {
			s := service(name)
			s.Labels = map[string]string{"app": app}
			return s
		}
		c.synced(t, services, labelled("a", "x"), labelled("b", "y"), labelled("c", "z"))
		by := func(id uint64, selector string) *topicpb.Interest {
			return &topicpb.Interest{Id: id, Resource: resource(services), LabelSelector: selector}
		}
		e.connect(publish.New(c, c, c), by(1, "app=x"))
		want(t, "first", e.takeLog(), []string{"+services/a", "synced 1"})
		e.declare(by(1, "app=x"), by(2, "app in (x,y)"))
		want(t, "only what is new", e.takeLog(), []string{"+services/b", "synced 2"})
		e.declare(by(2, "app in (x,y)"))
		want(t, "another still wants it", e.takeLog(), []string(nil))
		e.declare(by(2, "app=z"))
		log := e.takeLog()
		slices.Sort(log)
		want(t, "the same number, another selector", log, []string{"+services/c", "-services/a", "-services/b", "synced 2"})
		c.put(t, services, labelled("c", "other"))
		synctest.Wait()
		want(t, "it stops matching", e.takeLog(), []string{"-services/c"})
		e.declare()
		want(t, "nothing any more", e.names(services), []string{})
		e.disconnect()
	})
}

func TestTheWindowHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, services)
		p := publish.New(c, c, c)
		e.connect(p, allServices(1))
		e.mu.Lock()
		e.mute, e.unacked, e.log = true, 0, nil
		e.mu.Unlock()
		big := strings.Repeat("x", 100<<10)
		for i := range 100 {
			s := service(fmt.Sprintf("s%02d", i))
			s.Annotations = map[string]string{"big": big}
			c.put(t, services, s)
			synctest.Wait()
		}
		e.mu.Lock()
		if sent := len(e.log); sent < 10 || sent > 16 {
			t.Errorf("%d objects of 100 KiB were sent into a window of 1 MiB", sent)
		}
		e.mute = false
		last := e.sequence
		e.mu.Unlock()
		// Meanwhile each changes many times: the newest state alone is sent.
		for range 10 {
			for i := range 100 {
				c.put(t, services, service(fmt.Sprintf("s%02d", i)))
			}
		}
		before := len(e.log)
		if err := e.dispatch(topic.StateAck.New(message.Resource{}, &topicpb.StateAck{Sequence: last})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := len(e.log) - before; got != 100 {
			t.Errorf("%d changes were sent for 100 objects", got)
		}
		want(t, "services", len(e.names(services)), 100)
		e.disconnect()
	})
}

func TestOneObjectIsEncodedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld()
		p := publish.New(c, c, c)
		c.synced(t, services, service("web"))
		var raws [][]byte
		for range 3 {
			e := newEdge(t)
			e.connect(p, allServices(1))
			raws = append(raws, e.objects[services][kube.Key{Namespace: "default", Name: "web"}].Object)
			defer e.disconnect()
		}
		if &raws[0][0] != &raws[1][0] || &raws[1][0] != &raws[2][0] {
			t.Error("sessions hold copies")
		}
	})
}

// One interest that Kubernetes is slow to refuse doesn't hold up the others, and deletes nothing before it is refused.
func TestAnUndecidedInterestHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("mine", "edge1"), pod("theirs", "edge2"))
		p := publish.New(c, c, c)
		e.connect(p, podsOf(1, "edge1"), podsOf(2, "edge2"))
		want(t, "pods", e.names(kube.Pods), []string{"mine", "theirs"})
		e.disconnect()
		c.mu.Lock()
		c.denied = func(_ types.NodeName, at kube.Attributes) (string, error) {
			if at.Fields.String() == "spec.nodeName=edge2" {
				return "only its own", nil
			}
			return "", nil
		}
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("new", "edge1"))
		e.connect(p, podsOf(1, "edge1"), podsOf(2, "edge2"))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want(t, "meanwhile", e.names(kube.Pods), []string{"mine", "new", "theirs"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "refused", e.refusals(), map[uint64]string{2: "Forbidden"})
		want(t, "in the end", e.names(kube.Pods), []string{"mine", "new"})
		e.disconnect()
	})
}

func TestACollectionThatCloudcoreMayNotFollowIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.store(services).Fail(apierrors.NewForbidden(services.GroupResource(), "", errors.New("cloudcore cannot list services")))
		e.connect(publish.New(c, c, c), allServices(1))
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want(t, "told", e.refusals(), map[uint64]string{1: "Forbidden"})
		c.synced(t, services, service("web"))
		synctest.Wait()
		want(t, "when it may", e.names(services), []string{"web"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true})
		e.disconnect()
	})
}
