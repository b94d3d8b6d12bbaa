package lan_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// The device decides which endpoints are near, among those that are ready now: with the cloud and
// without it, the same node comes before the same site, and that before the others that the site
// reaches.
func TestSite_16_HintsOffline(t *testing.T) {
	s := newSystem(t)
	all, pods := s.web()
	prefer := func(what string) func(*corev1.Service) {
		return func(v *corev1.Service) { v.Spec.TrafficDistribution = &what }
	}
	node := s.service("near", prefer(corev1.ServiceTrafficDistributionPreferSameNode))
	site := s.service("here", prefer(corev1.ServiceTrafficDistributionPreferSameZone))

	// edge3 goes to a pool of its own, which the other two reach: by a route of the plant's router,
	// for example.
	s.pool("quay", `{"network":"quay"}`)
	s.patch(pools+"/"+trial.Pool, `{"spec":{"reachable":["quay"]}}`)
	third, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge3", metav1.GetOptions{})
	s.Check(err)
	s.label("edge3", "quay")
	defer func() {
		s.Mend(context.Background())
		s.label("edge3", trial.Pool)
		s.patch(pools+"/"+trial.Pool, `{"spec":{"reachable":null}}`)
	}()
	for _, n := range []string{"edge1", "edge2"} {
		s.WaitFor(n+" to have no route of ours to the pods of edge3", func(ctx context.Context) error {
			_, err := s.shell(ctx, n, "! ip route show proto 159 | grep "+third.Spec.PodCIDR+" && ip route replace "+third.Spec.PodCIDR+" via "+lab.LAN(3).Addr().String())
			return err
		})
		defer s.shell(context.Background(), n, "ip route del "+third.Spec.PodCIDR+" via "+lab.LAN(3).Addr().String())
	}
	check := func(when string) {
		t.Helper()
		t.Log(when)
		s.answered(pods["edge1"], all, "on-edge1", "on-edge2", "on-edge3")
		s.answered(pods["edge1"], node, "on-edge1")
		s.answered(pods["edge2"], node, "on-edge2")
		s.answered(pods["edge1"], site, "on-edge1", "on-edge2")
	}
	check("with the cloud")
	s.cutAll()
	check("without the cloud")
	s.ready(pods["edge1"], false)
	s.answered(pods["edge1"], node, "on-edge2") // the same site
	s.answered(pods["edge2"], node, "on-edge2")
	s.answered(pods["edge1"], site, "on-edge2")
	s.ready(pods["edge2"], false)
	s.answered(pods["edge1"], node, "on-edge3") // the remaining ones
	s.answered(pods["edge2"], site, "on-edge3")
	s.ready(pods["edge1"], true)
	s.ready(pods["edge2"], true)
	check("without the cloud, all ready again")
}

// answered waits until exactly these pods answer a pod, and no connection fails. Packets of pods
// out of the site have their device's address: so they reach pods of another site, too.
func (s *system) answered(from corev1.Pod, address string, want ...string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s at %s to be answered by %v", from.Name, address, want), func(context.Context) error {
		seen := map[string]bool{}
		err := s.inPod(from, func() error {
			for range rounds {
				pod, err := askOnce(address)
				if err != nil {
					return err
				}
				seen[pod] = true
			}
			return nil
		})
		if have := slices.Sorted(maps.Keys(seen)); err == nil && !slices.Equal(have, want) {
			err = fmt.Errorf("it is answered by %v", have)
		}
		return err
	})
}

// askOnce asks on the thread that calls it, whose network it is.
func askOnce(address string) (pod string, err error) {
	c, err := net.DialTimeout("tcp4", net.JoinHostPort(address, "80"), 3*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	_, page, _ := strings.Cut(string(answer), "\r\n\r\n")
	var where string
	if _, err := fmt.Sscanf(page, "pod %s on node %s", &pod, &where); err != nil {
		return "", fmt.Errorf("%q answered: %w", answer, err)
	}
	return pod, nil
}
