package lan_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	elsewhere      = 1000 // endpoints of one Service, in slices of 100 as kube-controller-manager makes them
	perSlice       = 100
	atOnce         = 10 // that a rollout replaces in one write
	realPods       = 40
	elsewhereNodes = 10
	writers        = 8
)

// A rollout of 1,000 pods elsewhere sends no changes to the devices of a site: their uplinks carry
// only keepalives. The pods of 40 of them are real, and kube-controller-manager makes the
// EndpointSlices; those of the others are written as it writes them. A change of one endpoint of
// the site's own comes at once.
func TestSite_30_RolloutElsewhereSendsNothing(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.service("crowd", func(v *corev1.Service) { v.Spec.Selector = map[string]string{"app": "crowd"} })
	s.service("rollout", func(v *corev1.Service) { v.Spec.Selector = nil })
	nodes := s.Client.CoreV1().Nodes()
	for i := range elsewhereNodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("elsewhere-%d", i)}}
		if i%2 == 0 { // devices of other sites, and ordinary nodes
			n.Labels = map[string]string{"skerry.io/edge": ""}
		}
		_, err := nodes.Create(t.Context(), n, metav1.CreateOptions{})
		s.Check(err)
		t.Cleanup(func() {
			if err := nodes.Delete(context.Background(), n.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		for _, round := range []string{"first", "second"} {
			if err := s.disperse(context.Background(), round); err != nil {
				t.Error(err)
			}
		}
	})
	s.crowd("first")
	s.endpoints("crowd", realPods)
	shares := s.slices()
	s.endpoints("rollout", elsewhere)
	edges := []string{"edge1", "edge2", "edge3"}
	for _, n := range edges {
		s.served(n, address, "on-edge1", "on-edge2", "on-edge3")
		s.count(n)
	}
	s.waitQuiet(edges)
	before := map[string]traffic{}
	for _, n := range edges {
		before[n] = s.traffic(n)
	}
	s.crowd("second")
	s.endpoints("crowd", 2*realPods)
	s.Check(s.disperse(t.Context(), "first"))
	s.endpoints("crowd", realPods)
	s.rollOut(shares)
	for _, n := range edges {
		now := s.traffic(n)
		t.Logf("%s: %d packets of %d bytes in all came by its uplink, %d packets of more than %d bytes", n, now.packets-before[n].packets, now.bytes-before[n].bytes, now.large-before[n].large, signOfLife)
		if now.large != before[n].large {
			t.Errorf("%s was sent %d packets that are no signs of life while 1,000 pods were replaced elsewhere", n, now.large-before[n].large)
		}
	}
	// The same count sees a change that does concern the site.
	s.Check(s.Client.CoreV1().Pods(namespace).Delete(t.Context(), "on-edge3", metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	s.served("edge1", address, "on-edge1", "on-edge2")
	s.WaitFor("a change of the site's own endpoints to be counted", func(context.Context) error { // its devices noticed sooner, by themselves
		if now := s.traffic("edge1"); now.large == before["edge1"].large {
			return errors.New("nothing came")
		}
		return nil
	})
}

// slices makes the EndpointSlices of the Service rollout.
func (s *system) slices() (all []*discoveryv1.EndpointSlice) {
	s.T.Helper()
	for i := range elsewhere / perSlice {
		x := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("rollout-%d", i), Namespace: namespace,
				Labels: map[string]string{discoveryv1.LabelServiceName: "rollout", discoveryv1.LabelManagedBy: "test"},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
		}
		for j := range perSlice {
			x.Endpoints = append(x.Endpoints, away(i, j, "old"))
		}
		made, err := s.Client.DiscoveryV1().EndpointSlices(namespace).Create(s.T.Context(), x, metav1.CreateOptions{})
		s.Check(err)
		all = append(all, made)
	}
	s.T.Cleanup(func() {
		for _, x := range all {
			if err := s.Client.DiscoveryV1().EndpointSlices(namespace).Delete(context.Background(), x.Name, metav1.DeleteOptions{}); err != nil {
				s.T.Error(err)
			}
		}
	})
	return all
}

// away is an endpoint on a node elsewhere.
func away(slice, n int, round string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 120+len(round), slice, 1+n)}, NodeName: ptr(fmt.Sprintf("elsewhere-%d", n%elsewhereNodes)),
		Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d-%d", round, slice, n), UID: types.UID(fmt.Sprintf("%s-%d-%d", round, slice, n))},
	}
}

// rollOut replaces all endpoints, some with each write.
func (s *system) rollOut(all []*discoveryv1.EndpointSlice) {
	s.T.Helper()
	g, ctx := errgroup.WithContext(s.T.Context())
	g.SetLimit(writers)
	for i, x := range all {
		g.Go(func() error {
			for j := 0; j < perSlice; j += atOnce {
				for k := range atOnce {
					x.Endpoints[j+k] = away(i, j+k, "newer")
				}
				var err error
				if x, err = s.Client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, x, metav1.UpdateOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	s.Check(g.Wait())
}

// crowd makes pods elsewhere, with a Ready status: no kubelet is there.
func (s *system) crowd(round string) {
	s.T.Helper()
	pods := s.Client.CoreV1().Pods(namespace)
	g, ctx := errgroup.WithContext(s.T.Context())
	g.SetLimit(writers)
	for i := range realPods {
		g.Go(func() error {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", round, i), Namespace: namespace, Labels: map[string]string{"app": "crowd", "round": round}},
				Spec: corev1.PodSpec{
					NodeName: fmt.Sprintf("elsewhere-%d", i%elsewhereNodes), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{Name: "none", Image: "skerry.local/none:1"}}, AutomountServiceAccountToken: ptr(false),
				},
			}
			if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
				return err
			}
			ip := fmt.Sprintf("10.%d.0.%d", 100+len(round), 1+i)
			status, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			}})
			if err != nil {
				return err
			}
			_, err = pods.Patch(ctx, p.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
			return err
		})
	}
	s.Check(g.Wait())
}

// disperse deletes the pods of a round.
func (s *system) disperse(ctx context.Context, round string) error {
	pods := s.Client.CoreV1().Pods(namespace)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range realPods {
		g.Go(func() error {
			return ignoreNotFound(pods.Delete(ctx, fmt.Sprintf("%s-%d", round, i), metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
		})
	}
	return g.Wait()
}

// endpoints waits until the cluster's EndpointSlices of a Service have so many.
func (s *system) endpoints(service string, want int) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to have %d endpoints", service, want), func(ctx context.Context) error {
		all, err := s.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return err
		}
		have := 0
		for _, x := range all.Items {
			have += len(x.Endpoints)
		}
		if have != want {
			return fmt.Errorf("there are %d", have)
		}
		return nil
	})
}

// signOfLife is above the size of packets, with their headers, that only keep a link alive; an
// endpoint alone is more.
const signOfLife = 160

// traffic counts the packets of a device's uplink.
type traffic struct{ packets, bytes, large int }

// count has the device's kernel count the packets of its uplink, until the test ends.
func (s *system) count(node string) {
	s.T.Helper()
	s.Must(s.shell(s.T.Context(), node, fmt.Sprintf(`nft -f - <<'.'
table inet counted {
  chain in {
    type filter hook prerouting priority -400; policy accept;
    iifname "wan0" counter
    iifname "wan0" meta length > %d counter
  }
}
.`, signOfLife)))
	s.T.Cleanup(func() {
		if _, err := s.shell(context.Background(), node, "nft delete table inet counted"); err != nil {
			s.T.Error(err)
		}
	})
}

func (s *system) traffic(node string) (t traffic) {
	s.T.Helper()
	out := s.Must(s.shell(s.T.Context(), node, "nft list table inet counted | grep counter"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		s.T.Fatalf("the counters are %q", out)
	}
	number := func(line, after string) int {
		fields := strings.Fields(line)
		for i, f := range fields[:len(fields)-1] {
			if f == after {
				n, err := strconv.Atoi(fields[i+1])
				s.Check(err)
				return n
			}
		}
		s.T.Fatalf("no %s in %q", after, line)
		return 0
	}
	return traffic{number(lines[0], "packets"), number(lines[0], "bytes"), number(lines[1], "packets")}
}

// waitQuiet waits until only keepalives have come for a while: earlier changes are delivered.
func (s *system) waitQuiet(nodes []string) {
	s.T.Helper()
	last := map[string]traffic{}
	quiet := 0
	s.WaitFor("the uplinks to be quiet", func(context.Context) error {
		for _, n := range nodes {
			now := s.traffic(n)
			switch {
			case now.large != last[n].large:
				quiet = 0
			case now.packets > last[n].packets:
				quiet++
			}
			last[n] = now
		}
		if quiet < 4*len(nodes) {
			return errors.New("something else came")
		}
		return nil
	})
}
