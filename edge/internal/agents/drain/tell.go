package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// tell writes changes to the log, the events and the metric.
func (l *loop) tell(ctx context.Context, before, now State, at time.Time) {
	log := klog.FromContext(ctx)
	b, n := before.Drain, now.Drain
	switch {
	case b.Phase == n.Phase || b.Phase == "":
	case n.Phase == v1alpha1.DrainNotRequested:
		log.Info("Ended the drain", "was", b.Phase)
		l.event(false, "DrainEnded", "nothing holds the drain any more")
	default:
		step, warning := stepOf(n.Phase)
		log.Info("Drain phase changed", "nodedrain-step", step, "phase", n.Phase, "attempts", n.Attempts, "message", n.Message)
		l.event(warning, "Drain"+string(n.Phase), cmp.Or(n.Message, wordsOf(n.Phase)))
		if n.Phase == v1alpha1.DrainComplete && !n.BeganAt.IsZero() {
			l.agent.duration.Observe(at.Sub(n.BeganAt).Seconds())
		}
	}
	if n.Attempting && (!b.Attempting || b.Attempts != n.Attempts) {
		log.Info("Starting a drain attempt", "nodedrain-step", "attempt", "attempt", n.Attempts, "of", n.Limit)
		l.event(false, "DrainAttempt", fmt.Sprintf("attempt %d of %d", n.Attempts, n.Limit))
	}
	if b.Attempting && !n.Attempting && n.Phase == v1alpha1.DrainRetrying && b.Phase == n.Phase {
		log.Info("Drain attempt failed", "nodedrain-step", "failure", "attempt", n.Attempts, "message", n.Message, "next", n.Next)
		l.event(true, "Drain"+string(n.Phase), n.Message)
	}
	if n.Attempting && len(n.Blocked) > 0 && !slices.Equal(b.Blocked, n.Blocked) {
		l.event(true, "DrainBlocked", blockedText(n.Blocked))
	}
	for i := range now.Operations {
		o := &now.Operations[i]
		if o.Reason == endedBefore {
			continue
		}
		var was Stage
		if old := before.find(o.Name); old != nil {
			was = old.Stage
		}
		if was != o.Stage {
			log.Info("Operation stage changed", "operation", o.Name, "kind", o.Spec.Operation, "stage", o.Stage, "reason", o.Reason, "message", o.Message)
			l.event(o.Stage == Failed, "Operation"+string(o.Stage), describe(o))
		}
	}
}

// describe is an operation, the digest of its program, who requested it, and its message, for
// events.
func describe(o *Operation) string {
	text := string(o.Spec.Operation) + " " + o.Name
	if o.Work != nil && o.Work.Upgrade != nil && o.Work.Upgrade.Digest != "" {
		text += " " + o.Work.Upgrade.Digest
	}
	if o.RequestedBy != "" {
		text += ", requested by " + o.RequestedBy
	}
	if o.Message != "" {
		text += ": " + o.Message
	}
	return text
}

func stepOf(p v1alpha1.DrainPhase) (step string, warning bool) {
	switch p {
	case v1alpha1.DrainRequested:
		return "request", false
	case v1alpha1.DrainStarting:
		return "starting", false
	case v1alpha1.DrainCordoned:
		return "cordoned", false
	case v1alpha1.DrainFailedCordon:
		return "cordon-failure", true
	case v1alpha1.DrainRetrying:
		return "failure", true
	case v1alpha1.DrainFailed:
		return "giving-up", true
	}
	return "complete", false
}

// wordsOf returns the event message of a phase without a message of its own.
func wordsOf(p v1alpha1.DrainPhase) string {
	switch p {
	case v1alpha1.DrainRequested:
		return "an operation waits for the node to be drained"
	case v1alpha1.DrainStarting:
		return "there are other nodes for its pods"
	case v1alpha1.DrainCordoned:
		return "the node takes no new pods"
	}
	return "every pod that was to go has gone"
}

func (l *loop) event(warning bool, reason, message string) {
	if l.events == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	// The uid of a Node in events is its name, as the kubelet has it.
	name := l.agent.config.NodeName
	l.events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}, kind, reason, message)
}

// evicted emits the eviction event on the pod: a recorder drops events that come in bursts about
// one object, as the Node would be. It may be called from any goroutine.
func (l *loop) evicted(pod *corev1.Pod) {
	if l.events == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	l.events.Event(about, corev1.EventTypeNormal, "EvictedForDrain", "evicted for the drain of node "+l.agent.config.NodeName)
}

// blockedText names the first pods that hold a drain.
func blockedText(blocked []v1alpha1.BlockedPod) string {
	const named = 3
	var parts []string
	for _, b := range blocked[:min(len(blocked), named)] {
		part := fmt.Sprintf("%s/%s: %s", b.Namespace, b.Name, b.Reason)
		if b.PDB != "" {
			part += " " + b.PDB
		}
		parts = append(parts, part)
	}
	text := strings.Join(parts, "; ")
	if more := len(blocked) - named; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
