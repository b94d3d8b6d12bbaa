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
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/link"
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
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"), allServices(2))
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
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"))
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
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"))
		want(t, "before", e.takeLog(), []string(nil))
		c.synced(t, kube.Pods, pod("early", "edge1"), pod("late", "edge1"))
		synctest.Wait()
		want(t, "pods", e.names(kube.Pods), []string{"early", "late"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true})
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
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()),
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

func TestARefusalThatPassesIsNotReported(t *testing.T) {
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
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		want(t, "refused", e.refusals(), map[uint64]string{})
		want(t, "pods", e.names(kube.Pods), []string{"a"})
		e.disconnect()
	})
}

// An undecided interest must not cost the edge its objects.
func TestUndecidedInterestsDeleteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("a", "edge1"))
		p := publish.New(c, c, c, publish.DefaultQuotas())
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
		p := publish.New(c, c, c, publish.DefaultQuotas())
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
		want(t, "refused", e.refusals(), map[uint64]string{1: "Forbidden"})

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
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), by(1, "app=x"))
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

// Answers for an edge that acknowledges none wait in cloudcore: sync markers, refusals. An edge
// that continues to ask breaks the contract.
func TestAnEdgeThatAsksAndAcknowledgesNothing(t *testing.T) {
	long := strings.Repeat("x", 100<<10) // above a quota
	for name, ask := range map[string]func(n uint64) *topicpb.Interest{
		"for what it may have": dependencies,
		"for what it may not":  func(n uint64) *topicpb.Interest { return oneConfigMap(n, long) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newWorld(), newEdge(t)
				for _, gvr := range []schema.GroupVersionResource{kube.Pods, kube.Claims, kube.Volumes} {
					c.synced(t, gvr)
				}
				e.connect(publish.New(c, c, c, publish.DefaultQuotas()), ask(1))
				settle()
				n := uint64(1)
				for ; n < 20_000; n++ { // one that acknowledges may
					e.declare(ask(n))
				}
				e.mu.Lock()
				e.mute = true
				e.mu.Unlock()
				for range 20_000 {
					n++
					e.declare(ask(n))
				}
				select {
				case err := <-e.ended:
					if why, ok := errors.AsType[*link.CloseError](err); !ok || why.Code != link.CloseProtocol {
						t.Errorf("ended by %v", err)
					}
				default:
					t.Error("all that was asked for waits")
					e.disconnect()
				}
			})
		})
	}
}

func TestTheWindowHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, services)
		p := publish.New(c, c, c, publish.DefaultQuotas())
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
		// Each changes many times before that: the newest state alone is sent.
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
		p := publish.New(c, c, c, publish.DefaultQuotas())
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

// One interest that Kubernetes is slow to refuse doesn't hold up the others, and deletes no object
// before it is refused.
func TestAnUndecidedInterestHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods, pod("mine", "edge1"), pod("theirs", "edge2"))
		p := publish.New(c, c, c, publish.DefaultQuotas())
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

func TestACollectionThatCloudcoreMayNotFollowIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.store(services).Fail(apierrors.NewForbidden(services.GroupResource(), "", errors.New("cloudcore cannot list services")))
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), allServices(1))
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want(t, "refused", e.refusals(), map[uint64]string{1: "Forbidden"})
		c.synced(t, services, service("web"))
		synctest.Wait()
		want(t, "when it may", e.names(services), []string{"web"})
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true})
		e.disconnect()
	})
}
