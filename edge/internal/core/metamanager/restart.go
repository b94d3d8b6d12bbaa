package metamanager

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/event"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// restartPoll is the interval of checks whether a waiting pod may run again: the Node's conditions
// may change at any moment. It is idle while no pod waits.
const restartPoll = 2 * time.Second

// restartPods shows pods again that the kubelet has ended without a link, until ctx ends. Once
// there is a link Kubernetes' rules hold: the ends of those that still wait go to the cloud.
func (m *Manager) restartPods(ctx context.Context) error {
	log := klog.FromContext(ctx)
	queue := podrestart.NewQueue()
	tick := time.NewTicker(restartPoll)
	defer tick.Stop()
	m.wakeRestarts() // pods that waited when the last process ended
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.ended:
			tick.Reset(restartPoll)
		case <-tick.C:
		}
		left, err := m.restartDue(ctx, queue)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Failed to restart pods that the kubelet has ended, retrying")
		}
		if !left {
			tick.Stop()
		}
	}
}

// restartDue does one round; left: there are pods to check again.
func (m *Manager) restartDue(ctx context.Context, queue *podrestart.Queue) (left bool, err error) {
	var pods []*corev1.Pod
	var gone []object.Ref // ends of pods that are no longer there, or are being deleted
	var node *corev1.Node
	linked := false
	if err := m.do(ctx, func(b *batch) error {
		pods, gone, node = nil, nil, nil
		_, linked = b.view.Link()
		for _, ref := range b.outbox.Locals() {
			pod := decoded[*corev1.Pod](b.view.Get(ref).Visible())
			if pod == nil || pod.DeletionTimestamp != nil || outbox.LocalOf(b.outbox.Pending(ref), pod.UID) == nil {
				gone = append(gone, ref)
				continue
			}
			pods = append(pods, pod)
		}
		if len(pods) > 0 {
			node = decoded[*corev1.Node](b.view.Get(object.Ref{Resource: view.Nodes, Name: m.config.NodeName}).Visible())
		}
		return nil
	}); err != nil {
		return true, err
	}
	if linked {
		// With all that waits: a status that is sent must be on the disk as one that may have been,
		// or the next boot without a link would take it back.
		m.setRestarts(nil)
		return m.releaseEnds(ctx)
	}
	again, waiting := queue.Plan(time.Now(), pods, node)
	m.setRestarts(waiting)
	for _, pod := range again {
		if err := m.showAgain(ctx, pod); err != nil {
			return true, err
		}
	}
	return len(pods) > 0, nil
}

func (m *Manager) setRestarts(waiting []podrestart.Waiting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restarts = waiting
}

// releaseEnds releases the ends of pods to the cloud, if there is still a link.
func (m *Manager) releaseEnds(ctx context.Context) (left bool, err error) {
	err = m.do(ctx, func(b *batch) error {
		if _, linked := b.view.Link(); !linked {
			return nil
		}
		for _, ref := range b.outbox.Locals() {
			b.outbox.Release(ref)
			b.reapply(ref)
		}
		return nil
	})
	return err != nil, err
}

// showAgain drops the end of a pod, which the cloud has not seen, and shows the pod to the kubelet
// in its state before: as after a boot, the kubelet finds none of its containers. It is not Ready
// until the kubelet reports it.
func (m *Manager) showAgain(ctx context.Context, pod *corev1.Pod) error {
	ref := object.Ref{Resource: view.Pods, Namespace: pod.Namespace, Name: pod.Name}
	shown := false
	err := m.do(ctx, func(b *batch) error {
		shown = false
		_, linked := b.view.Link()
		if linked || outbox.LocalOf(b.outbox.Pending(ref), pod.UID) == nil {
			return nil
		}
		b.outbox.Remove(ref, func(e *outbox.Entry) bool { return e.Local })
		b.reapply(ref)
		have := b.view.Get(ref)
		w := Write{Verb: "patch", Ref: ref, Subresource: "status", PatchType: types.StrategicMergePatchType, UID: pod.UID}
		if _, err := m.stagePatch(b, w, storepb.Class_POD_STATUS, have, podgate.NotReady(time.Now(), "Restarting", "the kubelet ended the pod without a link to the cloud; the device runs it again")); err != nil {
			m.counters.malformed.Add(1) // the kubelet reports it a moment later
		}
		m.reportRestart(b, pod)
		shown = true
		return nil
	})
	if err == nil && shown {
		klog.FromContext(ctx).Info("Restarting a pod that the kubelet has ended without a link", "pod", klog.KObj(pod), "podUID", pod.UID, "reason", podrestart.Reason(pod))
	}
	return err
}

// reportRestart emits an event that the pod runs again: one event, with a count.
func (m *Manager) reportRestart(b *batch, pod *corev1.Pod) {
	e := m.ownEvent("RestartedOnDevice", corev1.EventTypeNormal, "The kubelet ended the pod without a link to the cloud ("+podrestart.Reason(pod)+"); the device runs it again")
	e.Namespace, e.Name = pod.Namespace, fmt.Sprintf("%s.restarted.%s", pod.Name, pod.UID)
	e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, APIVersion: "v1"}
	m.countRepeats(b, e)
	if _, err := m.stageEvent(b, event.Ref(e.Namespace, e.Name), e, m.config.ReportEvents); err != nil {
		m.counters.malformed.Add(1)
	}
}
