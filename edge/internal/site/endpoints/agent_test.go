package endpoints_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/site/endpoints"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// recorrector records the slices that are to be shown again.
type recorrector struct {
	mu   sync.Mutex
	refs []string
}

func (s *recorrector) Recorrect(_ context.Context, refs ...object.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refs {
		s.refs = append(s.refs, r.Namespace+"/"+r.Name)
	}
	return nil
}

func (s *recorrector) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	refs := s.refs
	s.refs = nil
	slices.Sort(refs)
	return refs
}

// Slices are taken for corrected once all Services are known; after that a Service whose slices
// depend on it has them shown again, and others are free.
func TestAgent_services(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		put := func(name string, edit func(*corev1.ServiceSpec)) {
			s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
			if edit != nil {
				edit(&s.Spec)
			}
			api.Put(t, "services", s)
		}
		near := "PreferSameZone"
		prefer := func(s *corev1.ServiceSpec) { s.TrafficDistribution = &near }
		put("plain", nil)
		put("near", prefer)
		api.Unsync("services")

		view, err := serviceview.New(api.Config(), nil)
		if err != nil {
			t.Fatal(err)
		}
		again, corrected := &recorrector{}, 0
		c := endpoints.NewCorrection(endpoints.CorrectionConfig{NodeName: "edge1"})
		for _, name := range []string{"plain", "near"} {
			c.Correct(mustSlice(t, name), nil)
		}
		m := endpoints.New(endpoints.Config{
			NodeName: "edge1", API: api.Config(), Services: view.Services(), Correction: c, View: again, Memory: &inMemory{}, BootID: "b", Corrected: func() { corrected++ },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { view.Follow(ctx) })
		defer func() { cancel(); running.Wait() }()
		beehivetest.Run(t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{
			Module: m, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{}),
		})
		time.Sleep(time.Minute)
		if got := again.take(); corrected != 0 || len(got) > 0 || m.State().Note == "" {
			t.Errorf("before Services are known: corrected %d times, %v, it says %q", corrected, got, m.State().Note)
		}
		api.Sync("services")
		time.Sleep(5 * time.Minute) // the reflector's own back-off
		if got, want := again.take(), []string{"shop/near-1", "shop/plain-1"}; corrected != 1 || !slices.Equal(got, want) || m.State().Note != "" {
			t.Errorf("once they are known: corrected %d times, %v, want %v; it says %q", corrected, got, want, m.State().Note)
		}
		c.Correct(mustSlice(t, "plain"), nil) // shown again, as the Recorrector has it done
		if due := time.Until(m.State().LastSync.Add(time.Minute)); due < 2*time.Second {
			time.Sleep(due + time.Second) // past the next resync
		}
		again.take()
		before := m.State().Syncs
		for n := range 100 {
			put(fmt.Sprint("more-", n), nil)
		}
		time.Sleep(time.Second)
		if got, syncs := again.take(), m.State().Syncs; len(got) > 0 || syncs != before {
			t.Errorf("100 plain Services: %d more syncs, %v", syncs-before, got)
		}
		put("plain", prefer)
		time.Sleep(time.Second)
		if got, want := again.take(), []string{"shop/plain-1"}; !slices.Equal(got, want) {
			t.Errorf("a Service with a preference: %v, want %v", got, want)
		}
		c.Correct(mustSlice(t, "plain"), nil)
		api.Remove(t, "services", "shop", "plain")
		time.Sleep(time.Second)
		if got, want := again.take(), []string{"shop/plain-1"}; !slices.Equal(got, want) {
			t.Errorf("a Service that has gone: %v, want %v", got, want)
		}
	})
}

func mustSlice(t *testing.T, name string) object.Object {
	t.Helper()
	o, err := object.FromObject(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}
