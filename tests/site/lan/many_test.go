package lan_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// A pool gets its 65th device: it reports that, its devices end their connections and use the
// cloud's state, and the routes to each other's pods go. With one device less they are a site
// again. 62 of the 65 are Node objects alone: the count is made in the cloud.
func TestSite_28_SixtyFiveDevicesFallBackToTheCloudsWord(t *testing.T) {
	s := newSystem(t)
	address, pods := s.web()
	edges := []string{"edge1", "edge2", "edge3"}
	nodes := s.Client.CoreV1().Nodes()
	remove := func(ctx context.Context, n int) error {
		return nodes.Delete(ctx, fmt.Sprintf("object-%02d", n), metav1.DeleteOptions{})
	}
	const objects = 62
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for n := range objects {
			_ = remove(ctx, n)
		}
	})
	for n := range objects {
		cidr := fmt.Sprintf("10.244.%d.0/24", 100+n)
		_, err := nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%02d", n), Labels: map[string]string{v1alpha1.EdgeOwnLabel: "", v1alpha1.NodePoolLabel: trial.Pool}},
			Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		}, metav1.CreateOptions{})
		s.Check(err)
	}
	s.tooMany(true)
	s.waitContacts(edges, "")
	for _, node := range edges {
		s.WaitFor(node+" to have no routes to pods of others", func(ctx context.Context) error {
			out, err := s.shell(ctx, node, "ip route show proto 159")
			if err == nil && strings.TrimSpace(out) != "" {
				err = errors.New(out)
			}
			return err
		})
	}
	// The cloud's word holds: a pod that it calls unready goes from the rules of a device that has
	// no contact with the pod's.
	s.ready(pods["edge3"], false)
	s.shownReady("edge1", 2)
	s.ready(pods["edge3"], true)
	s.shownReady("edge1", 3)

	s.Check(remove(t.Context(), 0))
	s.tooMany(false)
	s.waitContacts(edges, "Met")
	for _, node := range edges {
		s.served(node, address, "on-edge1", "on-edge2", "on-edge3")
	}
}

// tooMany waits until the pool reports that it has too many devices, or not.
func (s *system) tooMany(want bool) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("TooManyDevices of the pool to be %v", want), func(ctx context.Context) error {
		raw, err := s.Client.CoreV1().RESTClient().Get().AbsPath(pools + "/" + trial.Pool).Do(ctx).Raw()
		if err != nil {
			return err
		}
		var p v1alpha1.NodePool
		if err := json.Unmarshal(raw, &p); err != nil {
			return err
		}
		if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.PoolTooManyDevices) != want {
			return fmt.Errorf("its conditions are %v", p.Status.Conditions)
		}
		return nil
	})
}

// waitContacts waits until each of some devices has each other one in this status; "" where it is
// not in the site.
func (s *system) waitContacts(nodes []string, want string) {
	s.T.Helper()
	for _, a := range nodes {
		for _, b := range nodes {
			if a == b {
				continue
			}
			s.WaitFor(fmt.Sprintf("%s to see %s as %q", a, b, want), func(ctx context.Context) error {
				status, _, err := s.contact(ctx, a, b)
				if err == nil && status != want {
					err = fmt.Errorf("it is %q", status)
				}
				return err
			})
		}
	}
}

// shownReady waits until a device's own API shows as many ready endpoints of the Service.
func (s *system) shownReady(node string, want int) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to show %d ready endpoints", node, want), func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, node, "get", "endpointslices", "-n", namespace, "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].conditions.ready}")
		if n := strings.Count(out, "true"); err == nil && n != want {
			err = fmt.Errorf("there are %d: %s", n, out)
		}
		return err
	})
}
