package contact_test

import (
	"testing"

	"github.com/skerry-io/skerry/edge/internal/contact"
)

// Devices find each other by beacons alone, and tell of their pods.
func TestMeet(t *testing.T) {
	w := newWorld(t, 3)
	w.startAll()
	w.allMet()
	a, b := w.devices[0], w.devices[1]
	pod, ok := a.agent.Pod(b.name, b.pod(1).UID)
	if !ok || len(pod.Addresses) != 1 || !pod.Ready {
		t.Fatalf("the word of %s about its pod is %+v, %v", b.name, pod, ok)
	}
	b.agent.SetPods([]contact.Pod{b.pod(1), b.pod(2)})
	eventually(t, "the second pod is known", func() bool { _, ok := a.agent.Pod(b.name, b.pod(2).UID); return ok })
	b.host.Isolate(true)
	a.sees(b, contact.Dead)
	b.host.Isolate(false)
	w.allMet()
}
