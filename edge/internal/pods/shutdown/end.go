package shutdown

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// minimum is the minimum time of a container after its SIGTERM, as in the kubelet.
	minimum = 2 * time.Second
	// again is the delay of the next check for running containers: one that was being created when
	// the kubelet stopped, or all of them after a runtime that did not answer.
	again = 500 * time.Millisecond
)

// ender ends the containers of one shutdown.
type ender struct {
	runtime Runtime
	pods    []corev1.Pod
	periods []Period
}

// run returns when no container of a pod runs, or when ctx ends, whose deadline is the shutdown's.
func (e *ender) run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	for round := 0; ; round++ {
		running, err := e.runtime.ListContainers(ctx, &runtimev1.ContainerFilter{State: &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING}})
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Failed to list the running containers, retrying")
		}
		if err == nil {
			deadline, _ := ctx.Deadline()
			groups := Plan(running, e.pods, e.periods, time.Until(deadline))
			if len(groups) == 0 {
				return nil
			}
			var pending sync.WaitGroup // bounded by the running containers; each ends with ctx
			for _, g := range groups {
				e.group(ctx, g, &pending)
			}
			pending.Wait()
			if round == 0 {
				continue // at once: mostly there are no containers left
			}
		}
		if err := rerun.Pause(ctx, again); err != nil {
			return fmt.Errorf("not all containers ended in time: %w", err)
		}
	}
}

// group returns when the containers of a group have ended, or after its time. The others continue
// to end.
func (e *ender) group(ctx context.Context, g Group, pending *sync.WaitGroup) {
	log := klog.FromContext(ctx)
	log.Info("Ending containers", "priority", g.Priority, "pods", len(g.Pods), "atMost", g.Length)
	var here sync.WaitGroup
	for _, p := range g.Pods {
		ended := map[string]chan struct{}{}
		for _, c := range p.Containers {
			ended[c.Name] = make(chan struct{})
		}
		for _, c := range p.Containers {
			here.Add(1)
			pending.Go(func() {
				defer here.Done()
				defer close(ended[c.Name])
				if err := e.container(ctx, p, c, ended); err != nil {
					log.Error(err, "Failed to end a container: it ends with the device", "pod", klog.KRef(p.Namespace, p.Name), "container", c.Name)
				}
			})
		}
	}
	done := make(chan struct{})
	pending.Go(func() { here.Wait(); close(done) })
	timer := time.NewTimer(g.Length)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// container gives one container its hook, its turn, its signal and its time, as the kubelet does.
func (e *ender) container(ctx context.Context, p Pod, c Container, ended map[string]chan struct{}) error {
	end := time.Now().Add(p.Grace)
	turn, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if c.PreStop != nil && p.Grace > 0 {
		if err := preStop(turn, e.runtime, c); err != nil {
			klog.FromContext(ctx).Error(err, "preStop hook failed, ending the container", "pod", klog.KRef(p.Namespace, p.Name), "container", c.Name)
		}
	}
	for _, name := range c.After {
		select {
		case <-ended[name]:
		case <-turn.Done():
		}
	}
	left := max(time.Until(end), minimum)
	return e.runtime.StopContainer(ctx, c.ID, int64(math.Ceil(left.Seconds())))
}
