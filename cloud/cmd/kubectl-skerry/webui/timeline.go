package webui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// maxEntries bounds a timeline: the newest are kept.
const maxEntries = 300

// Entry is one line of a timeline.
type Entry struct {
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`
	Object  string    `json:"object"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	From    string    `json:"from"` // cluster or device
}

// History is what the cluster has of one device.
type History struct {
	Node       fleet.Node
	Pods       []corev1.Pod
	Operations []*v1alpha1.NodeOperation
	Events     []corev1.Event // of the Node
}

// Timeline is that in order, the newest first.
func (h History) Timeline() []Entry {
	var all []Entry
	add := func(at time.Time, kind, object, reason, message string) {
		if !at.IsZero() {
			all = append(all, Entry{Time: at.UTC(), Kind: kind, Object: object, Reason: reason, Message: message, From: "cluster"})
		}
	}
	h.link(add)
	for i := range h.Pods {
		ofPod(&h.Pods[i], add)
	}
	for _, o := range h.Operations {
		object := string(o.Spec.Operation) + " " + o.Name
		add(o.CreationTimestamp.Time, "Operation", object, "Created", o.Status.RequestedBy)
		for _, c := range o.Status.Conditions {
			if c.Status == "True" {
				add(c.LastTransitionTime.Time, "Operation", object, cmp.Or(c.Reason, c.Type), c.Message)
			}
		}
		if o.Status.CompletedAt != nil && !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.OperationDone) {
			add(o.Status.CompletedAt.Time, "Operation", object, "Completed", "")
		}
	}
	for i := range h.Events {
		e := &h.Events[i]
		at := e.LastTimestamp.Time
		if e.Series != nil {
			at = e.Series.LastObservedTime.Time
		}
		if at.IsZero() {
			at = cmp.Or(e.EventTime.Time, e.CreationTimestamp.Time)
		}
		add(at, "Event", "Node", e.Reason, e.Message)
	}
	return newest(all)
}

type adder func(at time.Time, kind, object, reason, message string)

func (h History) link(add adder) {
	n := h.Node
	if n.Session.Since != nil {
		add(n.Session.Since.Time, "Link", "", "Up", "by "+cmp.Or(n.Transport, "an unknown transport")+", edgecore "+n.Version)
	}
	if n.Link == fleet.Down && n.LastContact != nil {
		add(n.LastContact.Time, "Link", "", "LastContact", "the last renewal of the Lease before the cut")
	}
}

func ofPod(p *corev1.Pod, add adder) {
	name := p.Namespace + "/" + p.Name
	add(p.CreationTimestamp.Time, "Pod", name, "Created", "")
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			reason := "Ready"
			if c.Status != corev1.ConditionTrue {
				reason = "NotReady"
			}
			add(c.LastTransitionTime.Time, "Pod", name, reason, cmp.Or(c.Message, c.Reason))
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if end != nil {
				add(end.FinishedAt.Time, "Container", name+"/"+c.Name, cmp.Or(end.Reason, "Ended"), fmt.Sprintf("exit code %d; %d restarts", end.ExitCode, c.RestartCount))
			}
		}
	}
	if p.DeletionTimestamp != nil {
		add(p.DeletionTimestamp.Time, "Pod", name, "Deleting", "")
	}
}

// newest sorts a timeline, bounds it, and makes its texts printable.
func newest(all []Entry) []Entry {
	slices.SortStableFunc(all, func(a, b Entry) int { return b.Time.Compare(a.Time) })
	all = all[:min(len(all), maxEntries)]
	for i := range all {
		e := &all[i]
		e.Kind, e.Object, e.Reason, e.Message = fleet.Printable(e.Kind, 40), fleet.Printable(e.Object, 320), fleet.Printable(e.Reason, 80), fleet.Printable(e.Message, 500)
	}
	return all
}

// Recorded reads the records that a device's flight recorder has sent: a JSON array.
func Recorded(raw []byte) ([]Entry, error) {
	var records []struct {
		Time                        time.Time
		Kind, Object, Reason, Cause string
	}
	if err := json.Unmarshal(raw, &records); err != nil {
		return nil, fmt.Errorf("reading the device's recorder: %w", err)
	}
	all := make([]Entry, 0, len(records))
	for _, r := range records {
		all = append(all, Entry{Time: r.Time.UTC(), Kind: r.Kind, Object: r.Object, Reason: r.Reason, Message: r.Cause, From: "device"})
	}
	return newest(all), nil
}
