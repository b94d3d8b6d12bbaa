package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/registry"
)

// The replica of cloudcore that leads is killed while each wave of a rollout runs. Another one
// carries it on: each device has one operation, and the second wave begins after the first.
func TestFleet_19_LeaderIsKilledInEachWaveOfARollout(t *testing.T) {
	s := newSystem(t).fleet("edge2")
	release := map[string]func(){}
	for _, node := range []string{"edge1", "edge2"} {
		r := s.newRegistry("./tests/images/devices")
		blocked := make(chan struct{})
		r.Slow(func() time.Duration { <-blocked; return 0 })
		release[node] = func() { close(blocked) }
		s.serve(node, r)
	}
	const image = registry.Address + "/rollout/devices:1"
	t.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx)
		s.Must(s.Run(ctx, "kubectl", "delete", "nodeoperationsets,nodeoperations", "--all"))
		for node, end := range release {
			end()
			s.onHostIn(ctx, node, "ctr", "--namespace=k8s.io", "images", "rm", image)
		}
	})
	s.Apply("default", `apiVersion: skerry.io/v1alpha1
kind: NodeOperationSet
metadata: {name: images}
spec:
  template: {operation: ImagePull, imagePull: {images: ["`+image+`"]}}
  nodeSelector: {}
  maxParallel: 2
  waves:
  - selector: {matchLabels: {kubernetes.io/hostname: edge1}}
`)
	operations := func(ctx context.Context) (nodes []string, err error) {
		out, err := s.Run(ctx, "kubectl", "get", "nodeoperations", "--sort-by=.metadata.creationTimestamp", "-o", `jsonpath={range .items[*]}{.spec.nodeName} {.metadata.uid}{"\n"}{end}`)
		return slices.Collect(strings.Lines(out)), err
	}
	var seen []string // operations, in the order of their begin
	for _, node := range []string{"edge1", "edge2"} {
		s.WaitFor("the operation of "+node, func(ctx context.Context) error {
			now, err := operations(ctx)
			if err == nil && (len(now) != len(seen)+1 || !slices.Equal(now[:len(seen)], seen)) {
				err = fmt.Errorf("there are %q, after %q", now, seen)
			}
			if err == nil {
				seen = now
			}
			return err
		})
		if last := seen[len(seen)-1]; !strings.HasPrefix(last, node+" ") {
			t.Errorf("the operation of %s is %s", node, last)
		}
		s.killLeader()
		release[node]()
		delete(release, node)
	}
	s.WaitFor("the rollout to be complete", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "nodeopset", "images", "-o", "json")
		var set v1alpha1.NodeOperationSet
		if err == nil {
			err = json.Unmarshal([]byte(out), &set)
		}
		if err == nil && (set.Status.Done != 2 || set.Status.Failed != 0) {
			err = fmt.Errorf("%+v", set.Status)
		}
		return err
	})
	if now, err := operations(t.Context()); err != nil || !slices.Equal(now, seen) {
		t.Errorf("the operations are %q, were %q: %v", now, seen, err)
	}
}

// killLeader kills the replica of cloudcore that leads, waits for another leader, and starts it
// again.
func (s *system) killLeader() {
	s.T.Helper()
	lease := []string{"kubectl", "get", "lease", "-n", "skerry-system", "cloudcore", "-o", "jsonpath={.spec.holderIdentity}"}
	led := s.Must(s.Run(s.T.Context(), lease...))
	leader := ""
	for _, replica := range options().Replicas() {
		if strings.HasPrefix(led, replica+"-") {
			leader = replica
		}
	}
	if leader == "" {
		s.T.Fatalf("leader %q is none of %q", led, options().Replicas())
	}
	s.Kill(leader, "cloudcore")
	s.WaitFor("another leader", func(ctx context.Context) error {
		now, err := s.Run(ctx, lease...)
		if err == nil && (now == "" || now == led) {
			err = fmt.Errorf("it is %q", now)
		}
		return err
	})
	s.Start(leader, "cloudcore")
}
