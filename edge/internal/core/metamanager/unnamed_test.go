package metamanager_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// An edge takes an object's name from the object, and from the Change if a cloudcore of an older
// release names it there. A change of the release does not deliver objects again.
func TestNamesOfObjects(t *testing.T) {
	for name, before := range map[string]bool{"an older cloudcore first": true, "a newer one first": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newCloud(t)
				e := newEdge(t, c, metamanager.Config{})
				c.set(ref("pods", "default", "a"), pod(uses("m")))
				c.set(ref("configmaps", "default", "m"), configMap("1"))
				c.set(ref("pods", "other", "a"), pod())
				c.names = before
				c.link()
				e.holdPods()
				for range 2 {
					if got := held(t, e, "pods"); !slices.Equal(got, []string{"default/a", "other/a"}) {
						t.Errorf("pods %v are held", got)
					}
					if got := held(t, e, "configmaps"); !slices.Equal(got, []string{"default/m"}) {
						t.Errorf("ConfigMaps %v are held", got)
					}
					c.cut()
					e.restart()
					c.mu.Lock()
					c.names = !c.names
					sent := c.sentObjects
					c.mu.Unlock()
					c.link()
					synctest.Wait()
					c.mu.Lock()
					if c.sentObjects != sent || len(c.compared) > 0 {
						t.Errorf("%d objects sent again, compared %v", c.sentObjects-sent, c.compared)
					}
					c.mu.Unlock()
				}
				c.delete(ref("pods", "other", "a"))
				c.set(ref("pods", "default", "a"), pod(uses("m"), func(p *corev1.Pod) { p.Status.Message = "later" }))
				synctest.Wait()
				if got := held(t, e, "pods"); !slices.Equal(got, []string{"default/a"}) || e.pod("a").Status.Message != "later" {
					t.Errorf("pods %v are held, the first with %q", got, e.pod("a").Status.Message)
				}
				if n := e.Status().Malformed; n != 0 {
					t.Errorf("%d objects were malformed", n)
				}
			})
		})
	}
}

// held returns an edge's objects of a resource, by the names under which they are found.
func held(t *testing.T, e *edge, name string) []string {
	t.Helper()
	var out []string
	for _, namespace := range []string{"default", "kube-system", "other"} {
		for _, n := range []string{"a", "b", "first", "last", "m"} {
			if o, err := e.Get(t.Context(), ref(name, namespace, n), metamanager.Caller{Kubelet: true}); err == nil {
				if o.Ref != ref(name, namespace, n) {
					t.Errorf("%s/%s is %v", namespace, n, o.Ref)
				}
				out = append(out, namespace+"/"+n)
			}
		}
	}
	return out
}

// speaker sends an edge the messages of a test.
type speaker struct {
	t *testing.T
	*cloud
	*edge
}

// newSpeaker links an edge that holds its pods and all Services, a Service default/a among them.
func newSpeaker(t *testing.T) speaker {
	c := newCloud(t)
	s := speaker{t, c, newEdge(t, c, metamanager.Config{})}
	c.set(ref("services", "default", "a"), service("1"))
	c.link()
	s.holdPods()
	if _, _, err := s.List(t.Context(), selection("services"), metamanager.ListOptions{FromReflector: true}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = true
	return s
}

// say sends changes of Services in one State.
func (s speaker) say(changes ...*topicpb.Change) {
	s.cloud.mu.Lock()
	s.sequence++
	s.down(topic.State.New(message.Resource{}, &topicpb.State{
		Sequence: s.sequence, Changes: []*topicpb.Changes{{Resource: &topicpb.Resource{Version: "v1", Resource: "services"}, Items: changes}},
	}))
	s.cloud.mu.Unlock()
	synctest.Wait()
}

// services returns the visible Services with a distinguishing field.
func (s speaker) services() map[string]string {
	items, _, err := s.List(s.t.Context(), selection("services"), metamanager.ListOptions{})
	if err != nil {
		s.t.Error(err)
	}
	out := map[string]string{}
	for _, o := range items {
		obj, err := object.Decode(o)
		if err != nil {
			s.t.Error(err)
			continue
		}
		out[o.Namespace+"/"+o.Name] = obj.(*corev1.Service).Spec.ExternalName
	}
	return out
}

func service(says string) *corev1.Service {
	return &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, Spec: corev1.ServiceSpec{ExternalName: says}}
}

// saying returns a delivered Service in Kubernetes protobuf.
func saying(t *testing.T, namespace, name, says string) []byte {
	t.Helper()
	s := service(says)
	s.Namespace, s.Name, s.UID, s.ResourceVersion = namespace, name, "u", strconv.Itoa(5000+len(says))
	raw, err := object.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Objects that can't be read or have no name are skipped: the objects delivered with and after them
// count, and so do those cached before.
func TestWhatCantBeReadIsLeftOut(t *testing.T) {
	for name, bad := range map[string]*topicpb.Change{
		"nothing":                   {},
		"no object":                 {Object: []byte("skerry")},
		"half an envelope":          {Object: []byte("k8s\x00\n\x0d\n\x02v1\x12\x07Ser")},
		"half an object":            {Object: saying(t, "default", "a", "2")[:60]},
		"half of JSON":              {Object: []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"`)},
		"no metadata":               {Object: []byte(`{"apiVersion":"example.com/v1","kind":"Service"}`)},
		"a list":                    {Object: []byte(`{"apiVersion":"v1","kind":"ServiceList","metadata":{},"items":[]}`)},
		"a list of an unknown kind": {Object: []byte(`{"apiVersion":"example.com/v1","kind":"XList","metadata":{},"items":[]}`)},
		"no name":                   {Object: saying(t, "default", "", "2")},
		"no name, JSON":             {Object: []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default"}}`)},
		"a name that is a number":   {Object: []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":7}}`)},
		"... of an unknown kind":    {Object: []byte(`{"apiVersion":"example.com/v1","kind":"X","metadata":{"name":7}}`)},
		"a name that is no text":    {Object: saying(t, "default", "a\xff", "2")},
		"a namespace that is none":  {Object: saying(t, "\xff", "a", "2")},
		"a name with a NUL":         {Object: saying(t, "default", "a\x00b", "2")},
		"a name of 40,000 bytes":    {Object: saying(t, "default", strings.Repeat("a", 40_000), "2")},
		"no name in a named one":    {Namespace: "default", Name: "a", Object: saying(t, "", "", "2")},
		"another name beside it":    {Namespace: "default", Name: "b", Object: saying(t, "default", "a", "2")},
		"another namespace":         {Namespace: "other", Name: "a", Object: saying(t, "default", "a", "2")},
		"a namespace alone":         {Namespace: "default", Object: saying(t, "default", "a", "2")},
		"a long name beside it too": {Namespace: "default", Name: strings.Repeat("a", 40_000), Object: saying(t, "default", strings.Repeat("a", 40_000), "2")},
		"a deletion of nothing":     {Deleted: true, ResourceVersion: "90000"},
		"a deletion of a namespace": {Namespace: "default", Deleted: true},
		"a deletion with an object": {Deleted: true, Object: saying(t, "default", "a", "2")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newSpeaker(t)
				resets := s.resets
				s.say(&topicpb.Change{Object: saying(t, "default", "first", "2")}, bad, &topicpb.Change{Object: saying(t, "default", "last", "2")})
				want := map[string]string{"default/a": "1", "default/first": "2", "default/last": "2"}
				if diff := cmp.Diff(want, s.services()); diff != "" {
					t.Errorf("services (-want +got):\n%s", diff)
				}
				if st := s.Status(); st.Malformed != 1 || st.Failed != 0 || !st.Linked || s.resets != resets {
					t.Errorf("%d malformed, %d failed, linked: %v, %d links were ended", st.Malformed, st.Failed, st.Linked, s.resets-resets)
				}
				s.say(&topicpb.Change{Object: saying(t, "default", "a", "22")}, &topicpb.Change{Namespace: "default", Name: "last", Deleted: true})
				want = map[string]string{"default/a": "22", "default/first": "2"}
				if diff := cmp.Diff(want, s.services()); diff != "" {
					t.Errorf("services, later (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The position of the name makes no difference: repeated objects, unrequested objects, and another
// object of a cached name are treated as with the name in the Change.
func TestANameCountsWhereverItStands(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		named, unnamed := newSpeaker(t), newSpeaker(t)
		for _, step := range []struct{ namespace, name, says string }{
			{"default", "b", "2"}, {"default", "b", "2"}, {"kube-system", "a", "333"}, {"", "a", "4444"}, {"default", "a", "55555"}, {"default", "..", "666666"}, {"a/b", "c/d", "7777777"},
		} {
			raw := saying(t, step.namespace, step.name, step.says)
			named.say(&topicpb.Change{Namespace: step.namespace, Name: step.name, Object: raw})
			unnamed.say(&topicpb.Change{Object: raw})
			if diff := cmp.Diff(named.services(), unnamed.services()); diff != "" {
				t.Errorf("%v: services (-named +unnamed):\n%s", step, diff)
			}
			if diff := cmp.Diff(named.Status().Resources, unnamed.Status().Resources); diff != "" {
				t.Errorf("%v: status (-named +unnamed):\n%s", step, diff)
			}
		}
		if n, want := len(unnamed.services()), 6; n != want || unnamed.Status().Malformed != 0 {
			t.Errorf("%d services, want %d; %d malformed", n, want, unnamed.Status().Malformed)
		}
	})
}
