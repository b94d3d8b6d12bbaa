package campaign

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready brings up edges with live kubelets, but for the last, whose kubelet is silent once it has
// registered its node. It returns each node's values of Ready since all were True, in order and
// each once: for o.Length, and from there until kube-controller-manager has noticed the silent one.
func Ready(ctx context.Context, o Options) (map[string][]corev1.ConditionStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := start(ctx, o)
	if s != nil {
		defer s.stop()
	}
	if err != nil {
		return nil, err
	}
	var kubelets sync.WaitGroup
	defer kubelets.Wait()
	defer cancel()
	silent := s.edges[len(s.edges)-1].name
	for _, e := range s.edges {
		k := s.newKubelet(e)
		if e.name == silent {
			err = await(ctx, "the node of "+silent, k.register)
			continue
		}
		kubelets.Go(func() { k.heartbeat(ctx) })
	}
	if err != nil {
		return nil, err
	}
	found := map[string][]corev1.ConditionStatus{}
	look := func(ctx context.Context) error {
		list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		for _, n := range list.Items {
			found[n.Name] = slices.Compact(append(found[n.Name], readiness(n)))
		}
		return nil
	}
	if err := await(ctx, "all nodes to be Ready", func(ctx context.Context) error {
		clear(found)
		if err := look(ctx); err != nil {
			return err
		}
		for _, e := range s.edges {
			if e.name != silent && !slices.Equal(found[e.name], []corev1.ConditionStatus{corev1.ConditionTrue}) {
				return fmt.Errorf("%s is %v", e.name, found[e.name])
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for end := time.Now().Add(o.Length); time.Now().Before(end); pause(ctx, 200*time.Millisecond) {
		if err := look(ctx); err != nil {
			return found, err
		}
	}
	return found, await(ctx, silent+" to be noticed", func(ctx context.Context) error {
		if err := look(ctx); err != nil {
			return err
		}
		if is := found[silent]; len(is) == 0 || is[len(is)-1] == corev1.ConditionTrue {
			return fmt.Errorf("its Ready is %v", is)
		}
		return nil
	})
}

func readiness(n corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return "absent"
}
