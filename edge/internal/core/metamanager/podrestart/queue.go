package podrestart

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// firstDelay is how long a pod stays hidden at least. The kubelet forgets a UID in its
	// housekeeping, every 2 s, once the pod's volumes are unmounted. A pod that is shown too early
	// is ended again at once, since the kubelet remembers its end, and waits twice as long.
	firstDelay = 10 * time.Second
	mostDelay  = 5 * time.Minute // as with containers that crash again and again
	// resetAfter is how long a pod runs before its next end counts as the first.
	resetAfter = 10 * time.Minute
	// priorityStep is how long pods of a lower priority wait for those of a higher: the kubelet
	// looks whether there is pressure every 10 s.
	priorityStep = 10 * time.Second
)

// Queue is the pods that wait to run again, and how often they have waited before. It holds a
// record for each pod that waits or has begun again within the last 10 minutes, so it is bounded by
// the pods of the device.
type Queue struct {
	records  map[types.UID]*record
	released time.Time // when pods were last shown again
	priority int32     // the lowest of theirs
}

type record struct {
	ends    int       // in a row
	waiting bool      // now
	due     time.Time // while it waits: not before
	again   time.Time // else: since when it runs again
}

// NewQueue returns a Queue without records: all waiting pods have ended once.
func NewQueue() *Queue { return &Queue{records: map[types.UID]*record{}} }

// Waiting is how a pod is that waits.
type Waiting struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Reason    string    `json:"reason"`             // of its end
	Ends      int       `json:"ends"`               // in a row, on this island
	For       []string  `json:"waitsFor,omitempty"` // conditions of the node
	NotBefore time.Time `json:"notBefore,omitzero"` // by back-off and priority
}

// Plan takes all waiting pods and returns those to show to the kubelet again now, the highest
// priority first, and the state of the others. now must not run backwards: give it a time with a
// monotonic clock, since that of a device may be set at any moment.
func (q *Queue) Plan(now time.Time, pods []*corev1.Pod, node *corev1.Node) (again []*corev1.Pod, waiting []Waiting) {
	q.observe(now, pods)
	var due []*corev1.Pod
	for _, pod := range pods {
		r := q.records[pod.UID]
		if !now.Before(r.due) && len(Blocks(pod, node)) == 0 {
			due = append(due, pod)
		}
	}
	slices.SortFunc(due, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(priority(b), priority(a)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	var step time.Time // lower priorities wait until then
	if len(due) > 0 {
		highest := priority(due[0])
		if step = q.released.Add(priorityStep); q.released.IsZero() || highest >= q.priority || !now.Before(step) {
			again = slices.DeleteFunc(slices.Clone(due), func(p *corev1.Pod) bool { return priority(p) < highest })
			q.released, q.priority = now, highest
			step = now.Add(priorityStep)
		}
	}
	for _, pod := range again {
		r := q.records[pod.UID]
		r.waiting, r.again = false, now
	}
	for _, pod := range pods {
		r := q.records[pod.UID]
		if !r.waiting {
			continue
		}
		w := Waiting{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Reason: Reason(pod), Ends: r.ends, NotBefore: r.due}
		for _, c := range Blocks(pod, node) {
			w.For = append(w.For, string(c))
		}
		if len(w.For) == 0 && step.After(r.due) {
			w.NotBefore = step
		}
		waiting = append(waiting, w)
	}
	slices.SortFunc(waiting, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return again, waiting
}

// observe counts new ends and drops obsolete records.
func (q *Queue) observe(now time.Time, pods []*corev1.Pod) {
	present := map[types.UID]bool{}
	for _, pod := range pods {
		present[pod.UID] = true
		r := q.records[pod.UID]
		if r == nil {
			r = &record{}
			q.records[pod.UID] = r
		}
		if r.waiting {
			continue
		}
		if now.Sub(r.again) >= resetAfter {
			r.ends = 0
		}
		r.ends++
		r.waiting, r.due = true, now.Add(delay(r.ends))
	}
	for uid, r := range q.records {
		if present[uid] {
			continue
		}
		if r.waiting { // the cloud has it, or it is gone
			delete(q.records, uid)
		} else if now.Sub(r.again) >= resetAfter {
			delete(q.records, uid)
		}
	}
}

// delay is how long a pod waits after its nth end.
func delay(n int) time.Duration {
	d := firstDelay
	for ; n > 1 && d < mostDelay; n-- {
		d *= 2
	}
	return min(d, mostDelay)
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}
