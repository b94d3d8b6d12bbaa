// Package app is the device's side of EdgeApps: which parts of an application are on this device,
// their state, and the content that was fetched for it.
//
// It owns this node's entry in the status of each application that it has to do with. It refuses to
// decide: where an application runs is decided by its pods, which come from the cloud, and whether
// it runs by the local runtime, through the kubelet. A lost link does not change running pods;
// after Config.SilentAfter without one there are no more reports, because a reader could not
// distinguish them from the present state. Once a node has reported an application it keeps
// reporting, also that the application is gone: an entry that is never corrected would claim for
// ever that the application is here.
//
// Plan is pure; the agent around it runs on one goroutine, fetching on another. Bounds: an entry
// for each application of the cluster at most.
package app

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// launcher begins the name of the one pod of a virtual machine that counts (KubeVirt); launched is
// the label of such pods.
const (
	launcher = "virt-launcher-"
	launched = "kubevirt.io"
)

// State is the input of a plan.
type State struct {
	Node string
	Apps []*v1alpha1.EdgeApp
	Pods []*corev1.Pod // of this node
	// Alive reports whether the kubelet lives, so that its status of pods is true.
	Alive bool
	// Linked, or not since Lost.
	Linked bool
	Lost   time.Time
	// Content is the state of content, by ContentKey; "" if it is present, else the reason.
	Content map[string]string
}

// Rules are how long things may take.
type Rules struct {
	HaltingAfter time.Duration // an Unknown state becomes Halting
	SilentAfter  time.Duration // without a link there are no more reports
}

// Known is an application's state that must survive a restart.
type Known struct {
	UID types.UID `json:"uid"`
	// Unknown is since when its state is; zero: it is known.
	Unknown time.Time `json:"unknown,omitzero"`
}

// Plan is the wanted reports.
type Plan struct {
	Entries map[string]v1alpha1.EdgeAppNode // by NAMESPACE/NAME
	Known   map[string]Known                // to be remembered, by NAMESPACE/NAME
	Silent  bool                            // no reports are wanted
	Next    time.Duration                   // when to plan again without a change; 0: never
}

// Make makes the plan of a moment; before is the Known of the last one.
func (s State) Make(before map[string]Known, rules Rules, now time.Time) Plan {
	p := Plan{Entries: map[string]v1alpha1.EdgeAppNode{}, Known: map[string]Known{}}
	again := func(d time.Duration) {
		if d = max(d, time.Millisecond); p.Next == 0 || d < p.Next {
			p.Next = d
		}
	}
	if !s.Linked {
		if left := s.Lost.Add(rules.SilentAfter).Sub(now); left > 0 {
			again(left)
		} else {
			p.Silent = true
		}
	}
	pods := map[string][]*corev1.Pod{}
	for _, pod := range s.Pods {
		if name := pod.Labels[v1alpha1.EdgeAppLabel]; name != "" && counts(pod) {
			pods[pod.Namespace+"/"+name] = append(pods[pod.Namespace+"/"+name], pod)
		}
	}
	for _, app := range s.Apps {
		key := app.Namespace + "/" + app.Name
		known, was := before[key]
		if known.UID != app.UID {
			known, was = Known{}, false
		}
		e := s.entry(app, pods[key])
		if !was && !e.IsDesignated && len(pods[key]) == 0 && !slices.ContainsFunc(e.Content, func(c v1alpha1.ContentStatus) bool { return c.IsLocal }) {
			continue
		}
		since := time.Time{}
		if e.State == v1alpha1.AppUnknown {
			if since = known.Unknown; since.IsZero() || since.After(now) {
				since = now
			}
			if left := since.Add(rules.HaltingAfter).Sub(now); left > 0 {
				again(left)
			} else {
				e.State = v1alpha1.AppHalting
			}
		}
		p.Known[key] = Known{UID: app.UID, Unknown: since}
		p.Entries[key] = e
	}
	return p
}

// counts reports whether a pod shows its application's state: of a virtual machine's pods only the
// launcher does.
func counts(pod *corev1.Pod) bool {
	_, vm := pod.Labels[launched]
	return !vm || strings.HasPrefix(pod.Name, launcher)
}

// entry is this node's report of an application now.
func (s State) entry(app *v1alpha1.EdgeApp, pods []*corev1.Pod) v1alpha1.EdgeAppNode {
	e := v1alpha1.EdgeAppNode{Name: s.Node, IsDesignated: app.Spec.DesignatedNode == s.Node, State: v1alpha1.AppHalted}
	if pod := newest(pods); pod != nil {
		e.ScheduledOnThisNode = pod.DeletionTimestamp == nil && !ended(pod)
		e.State = stateOf(pod, s.Alive)
		e.Running = running(pod) && s.Alive
		for _, c := range pod.Status.ContainerStatuses {
			e.Restarts += c.RestartCount
		}
	}
	e.ReportsStats = e.ScheduledOnThisNode
	for _, c := range app.Spec.Content {
		state := v1alpha1.ContentStatus{Name: c.Name, IsLocal: Local(c, e.IsDesignated)}
		if why, asked := s.Content[ContentKey(c)]; asked {
			state.Ready, state.Message = why == "", why
		}
		e.Content = append(e.Content, state)
	}
	return e
}

// Local reports whether content is for this node to fetch: a container image is every node's, since
// the application may move here; a disk image goes into a volume, and is the designated node's
// alone.
func Local(c v1alpha1.AppContent, designated bool) bool {
	return c.Type == v1alpha1.ContentContainerImage || designated
}

// ContentKey names content by its digest and not by an application's name for it.
func ContentKey(c v1alpha1.AppContent) string {
	return string(c.Type) + " " + c.Source + " " + c.SHA256
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// newest is the pod that counts: one that is not being deleted before one that is, then
// the younger.
func newest(pods []*corev1.Pod) *corev1.Pod {
	if len(pods) == 0 {
		return nil
	}
	rank := func(pod *corev1.Pod) int {
		switch {
		case ended(pod):
			return 0
		case pod.DeletionTimestamp != nil:
			return 1
		}
		return 2
	}
	return slices.MaxFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

func running(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning {
		return false
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
}

// stateOf is the local runtime's state of a pod, through the kubelet. A link has no part in it.
func stateOf(pod *corev1.Pod, alive bool) v1alpha1.AppState {
	switch {
	case ended(pod):
		return v1alpha1.AppHalted
	case !alive, pod.Status.Phase == "Unknown":
		return v1alpha1.AppUnknown
	case pod.DeletionTimestamp != nil:
		return v1alpha1.AppHalting
	case running(pod):
		return v1alpha1.AppRunning
	}
	return v1alpha1.AppStarting
}

// same reports whether two entries are equal but for their times.
func same(a, b v1alpha1.EdgeAppNode) bool {
	return a.Name == b.Name && a.IsDesignated == b.IsDesignated && a.ScheduledOnThisNode == b.ScheduledOnThisNode && a.Running == b.Running &&
		a.ReportsStats == b.ReportsStats && a.State == b.State && a.Restarts == b.Restarts && slices.Equal(a.Content, b.Content)
}

func timeOf(t time.Time) *metav1.Time {
	at := metav1.NewTime(t.UTC()).Rfc3339Copy()
	return &at
}
