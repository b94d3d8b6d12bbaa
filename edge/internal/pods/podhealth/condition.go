package podhealth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// settled is how long a pod is in trouble before it is reported: a pod that starts, or restarts
	// at once, is not in trouble. runtimeSettled is that of the container runtime, of which a
	// restart takes seconds.
	settled        = 2 * time.Minute
	runtimeSettled = 30 * time.Second
	// mended is how long a pod runs before its trouble is over: one that crashes again and again
	// runs now and then.
	mended = time.Minute
	// mostNamed bounds the pods that a message names; `edgecore status` names all.
	mostNamed = 5
)

// RuntimeNotReady is the reason where the container runtime keeps pods from being started.
const RuntimeNotReady = "ContainerRuntimeNotReady"

// History distinguishes lasting trouble from transient. It belongs to one goroutine. The zero value
// has no problems.
type History struct {
	pods    map[types.UID]trouble
	runtime time.Time // since when the runtime is in trouble; zero: it is not
}

// trouble is of a pod that does not run, or did not until a moment ago.
type trouble struct {
	pod   Pod
	since time.Time
	runs  time.Time // since when it runs again; zero: it does not
}

// Problem returns why pods of a device do not run, for a condition of its Node: in one word, and
// with the pods and the action needed; empty if all run, or the pods are unknown. It stays the same
// while the same pods are in the same trouble. s may be nil; runtime is the trouble of the
// container runtime.
//
// A pod that has ended and has a controller is the cluster's to replace where there is a link, and
// is no trouble then. now must not run backwards: give it a time with a monotonic clock.
func (h *History) Problem(now time.Time, s *Status, runtime error, linked bool) (reason, message string) {
	if runtime == nil {
		h.runtime = time.Time{}
	} else if h.runtime.IsZero() {
		h.runtime = now
	}
	before := h.pods
	h.pods = map[types.UID]trouble{}
	if s != nil {
		for _, p := range s.NotRunning {
			if p.State == Ended && p.Controlled && linked {
				continue
			}
			t := trouble{pod: p, since: now}
			if was, known := before[p.UID]; known {
				t.since = was.since
			}
			h.pods[p.UID] = t
		}
		for uid, t := range before {
			if t.runs.IsZero() {
				t.runs = now
			}
			if _, still := h.pods[uid]; !still && now.Sub(t.runs) < mended {
				h.pods[uid] = t
			}
		}
	}
	var lasting []Pod
	for _, t := range h.pods {
		if now.Sub(t.since) >= settled {
			lasting = append(lasting, t.pod)
		}
	}
	slices.SortFunc(lasting, byName)
	var texts []string
	if runtime != nil && now.Sub(h.runtime) >= runtimeSettled {
		reason = RuntimeNotReady
		texts = append(texts, runtime.Error())
	}
	if len(lasting) > 0 {
		reason = cmp.Or(reason, "PodsNotRunning")
		texts = append(texts, fmt.Sprintf("%d of %d pods do not run: %s", len(lasting), s.Total, strings.Join(grouped(lasting), "; ")))
	}
	return reason, strings.Join(texts, "; ")
}

// grouped lists pods by their problem, without details that change constantly.
func grouped(pods []Pod) (texts []string) {
	named := map[string][]string{}
	var order []string
	for i, p := range pods {
		if p.Reason == "ErrImagePull" {
			p.Reason = "ImagePullBackOff" // the two take turns
		}
		key := fmt.Sprintf("%s (%s)", p.State, p.Reason)
		switch {
		case p.Again:
			key += ", runs again on this device when the reason has passed"
		case p.Action != "":
			key += ", " + p.Action
		}
		if named[key] == nil {
			order = append(order, key)
		}
		if i < mostNamed {
			named[key] = append(named[key], p.Namespace+"/"+p.Name)
		} else if !slices.Contains(named[key], "...") {
			named[key] = append(named[key], "...")
		}
	}
	for _, key := range order {
		texts = append(texts, strings.Join(named[key], ", ")+" "+key)
	}
	return texts
}
