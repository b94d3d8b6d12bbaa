package serviceview_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
)

// A Service's slices are found by it, and it by its cluster IPs, among more than an index has sets.
func TestView_finds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		const many = 600
		address := func(n int) string { return fmt.Sprintf("10.96.%d.%d", n/250, 1+n%250) }
		for n := range many {
			s := service(fmt.Sprint("web-", n))
			s.Spec.ClusterIP, s.Spec.ClusterIPs = address(n), []string{address(n), fmt.Sprint("fd00::", n+1)}
			if n < 3 {
				s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
			}
			api.Put(t, "services", s)
			for i := range 1 + n%2 {
				e := slice(fmt.Sprint("web-", n, "-", i))
				e.Labels[discoveryv1.LabelServiceName] = s.Name
				api.Put(t, "endpointslices", e)
			}
		}
		corrected := make(chan struct{})
		close(corrected)
		v := follow(t, api, corrected)
		for n := range many {
			name := fmt.Sprint("web-", n)
			of := v.SlicesOf("shop", name)
			if len(of) != 1+n%2 {
				t.Errorf("%s has %d slices", name, len(of))
			}
			for _, e := range of {
				if e.Labels[discoveryv1.LabelServiceName] != name {
					t.Errorf("%s is among the slices of %s", e.Name, name)
				}
			}
			if n < 3 {
				continue
			}
			for _, a := range []string{address(n), fmt.Sprint("fd00::", n+1)} {
				if at := v.ServicesAt(a); len(at) != 1 || at[0].Name != name {
					t.Errorf("at %s are %d Services", a, len(at))
				}
			}
		}
		if at := v.ServicesAt(corev1.ClusterIPNone); len(at) != 3 {
			t.Errorf("%d Services are headless", len(at))
		}
		if of, at := v.SlicesOf("other", "web-1"), v.ServicesAt("10.96.9.9"); len(of)+len(at) != 0 {
			t.Errorf("what is not there has %d slices and %d Services", len(of), len(at))
		}
	})
}
