package site_test

import (
	"context"
	"errors"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// autoSettings are the defaults of edgecore.yaml, where the trial's have true.
var autoSettings = []string{"modules.site.enable=auto", "modules.services.enable=auto", "modules.names.enable=auto"}

// A device whose edgecore.yaml does not enable Services and names serves them because its NodePool
// has podSubnets, offline too; taken out of the pool it stops and leaves no rules, and back in it,
// it serves again.
func TestAuto(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	const node = "edge1"
	pool := func(to string) {
		t.Helper()
		s.Kubectl("label", "node", node, "--overwrite", v1alpha1.NodePoolLabel+to)
	}
	defer func() { // the trial is to be as the next test expects it
		pool("=" + trial.Pool)
		s.Check(s.Trial.Set(t.Context(), node, []string{"modules.site.enable=true", "modules.services.enable=true", "modules.names.enable=true"}))
	}()
	s.Check(s.Trial.Set(t.Context(), node, autoSettings))
	s.WaitReady(node, true)
	s.Apply(ns, deployment("front", node, 1)+deployment("store", node, 1)+service("store", "store", ""))
	front := s.WaitPods(ns, "app=front", node, 1)[0].Status.PodIP
	store := names(s.WaitPods(ns, "app=store", node, 1))
	byName := func(ctx context.Context) (string, error) { return s.fetch(ctx, node, front, "http://store/name") }
	s.waitAnswers("the pod by name", 3, store, byName)
	s.Cut(node)
	s.WaitReady(node, false)
	s.Check(s.Trial.Stop(t.Context(), node, "edgecore"))
	s.Start(node, "edgecore") // the pool's settings are known offline too
	s.waitAnswers("the pod by name, offline and after a restart", 3, store, byName)
	s.Heal(node)
	s.WaitReady(node, true)

	rules := func(want bool) {
		t.Helper()
		s.WaitFor("rules of Services to come or go", func(ctx context.Context) error {
			_ = s.Trial.Start(ctx, node, "edgecore") // as systemd does after it has ended itself; it may run
			if is, err := s.rules(ctx, node); err != nil || is != want {
				return errors.Join(err, errors.New("they are not as they should be"))
			}
			return nil
		})
	}
	rules(true)
	pool("-")
	rules(false)
	pool("=" + trial.Pool)
	rules(true)
	s.waitAnswers("the pod by name, in the pool again", 3, store, byName)
}
