package metamanager_test

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// note shows services with an annotation.
type note struct{ text atomic.Value }

func (n *note) Corrects(r schema.GroupVersionResource) bool { return r.Resource == "services" }

func (n *note) Correct(o object.Object, decoded runtime.Object) []byte {
	obj, err := object.DecodeRaw(o.Raw)
	if err != nil || decoded != nil && !apiequality.Semantic.DeepEqual(obj, decoded) {
		return nil // decoded is another object
	}
	s := obj.(*corev1.Service)
	s.Annotations = map[string]string{"note": n.text.Load().(string)}
	raw, err := object.Encode(s)
	if err != nil {
		return o.Raw
	}
	return raw
}

// A correction is visible at the edge only: the store and the digests have the delivered object,
// and a changed correction is a change of the object.
func TestACorrectionIsShownAndNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := &note{}
		n.text.Store("one")
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{Corrector: n})
		svc := ref("services", "default", "web")
		c.set(svc, &corev1.Service{})
		c.link()
		all := selection("services")
		w, err := e.Watch(t.Context(), all, metamanager.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		next := func(kind watch.EventType, want string) uint64 {
			t.Helper()
			select {
			case got := <-w.Events():
				if text := noted(t, got.Object); got.Type != kind || text != want {
					t.Errorf("%s %q, want %s %q", got.Type, text, kind, want)
				}
				return got.Version
			default:
				t.Fatalf("no event, want %s %q", kind, want)
			}
			return 0
		}
		first := next(watch.Added, "one")
		n.text.Store("two")
		if err := e.Recorrect(context.Background(), svc, ref("services", "default", "unheld")); err != nil {
			t.Fatal(err)
		}
		settle()
		if second := next(watch.Modified, "two"); second <= first {
			t.Errorf("version %d after %d", second, first)
		}
		if err := e.Recorrect(context.Background(), svc); err != nil {
			t.Fatal(err)
		}
		settle()
		if len(w.Events()) > 0 {
			t.Errorf("a correction that changed nothing was shown again")
		}
		w.Stop()

		// A restart without a link shows the delivered object with its current correction.
		n.text.Store("three")
		c.cut()
		e.restart()
		o, err := e.Get(context.Background(), svc, metamanager.Caller{})
		if err != nil || noted(t, o) != "three" {
			t.Errorf("after a restart: %q, %v", noted(t, o), err)
		}
		// The next session finds the sets equal: the digest does not include the correction.
		before := c.sentObjects
		c.link()
		settle()
		if c.sentObjects != before {
			t.Errorf("%d objects came again with a link, want none", c.sentObjects-before)
		}
	})
}

func noted(t *testing.T, o object.Object) string {
	t.Helper()
	obj, err := object.DecodeRaw(o.Raw)
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*corev1.Service).Annotations["note"]
}
