package podhealth_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
)

// Only problems that last are reported, by a message that stays the same while they do.
func TestHistory(t *testing.T) {
	bad := func(name string, state podhealth.State, reason, action string) podhealth.Pod {
		return podhealth.Pod{Namespace: "default", Name: name, UID: types.UID(name), State: state, Reason: reason, Action: action}
	}
	of := func(pods ...podhealth.Pod) *podhealth.Status {
		return &podhealth.Status{Total: 9, Running: 9 - len(pods), NotRunning: pods}
	}
	pull, backOff := bad("image", podhealth.Waiting, "ErrImagePull", "load it"), bad("image", podhealth.Waiting, "ImagePullBackOff", "load it")
	evicted := bad("evicted", podhealth.Ended, "Evicted", "at 12:00")
	evicted.Again = true
	replaced := bad("replaced", podhealth.Ended, "Evicted", "only the cloud")
	replaced.Controlled = true
	crash := bad("crash", podhealth.Failing, "CrashLoopBackOff", "see its output")
	dead := errors.New("the container runtime does not answer")

	var h podhealth.History
	start := time.Now()
	for _, c := range []struct {
		at      time.Duration
		status  *podhealth.Status
		runtime error
		island  bool
		reason  string
		message string
	}{
		{at: 0, status: nil},
		{at: 0, status: of(pull, crash)},
		{at: 110 * time.Second, status: of(pull, crash)},
		{at: 120 * time.Second, status: of(backOff, crash), reason: "PodsNotRunning", message: "2 of 9 pods do not run: default/crash failing (CrashLoopBackOff), see its output; default/image waiting (ImagePullBackOff), load it"},
		{at: 130 * time.Second, status: of(pull), reason: "PodsNotRunning", message: "2 of 9 pods do not run: default/crash failing (CrashLoopBackOff), see its output; default/image waiting (ImagePullBackOff), load it"}, // crash runs for a moment
		{at: 180 * time.Second, status: of(crash, evicted, replaced), reason: "PodsNotRunning", message: "2 of 9 pods do not run: default/crash failing (CrashLoopBackOff), see its output; default/image waiting (ImagePullBackOff), load it"},
		{at: 260 * time.Second, status: of(evicted, replaced), reason: "PodsNotRunning", message: "1 of 9 pods do not run: default/crash failing (CrashLoopBackOff), see its output"},
		{at: 320 * time.Second, status: of(evicted, replaced), reason: "PodsNotRunning", message: "1 of 9 pods do not run: default/evicted ended (Evicted), runs again on this device when the reason has passed"},
		{at: 330 * time.Second, status: of(replaced), island: true, reason: "PodsNotRunning", message: "1 of 9 pods do not run: default/evicted ended (Evicted), runs again on this device when the reason has passed"},
		{at: 390 * time.Second, status: of(replaced), island: true},
		{at: 450 * time.Second, status: of(replaced), island: true, reason: "PodsNotRunning", message: "1 of 9 pods do not run: default/replaced ended (Evicted), only the cloud"},
		{at: 600 * time.Second, status: of(), runtime: dead, island: true, reason: "PodsNotRunning", message: "1 of 9 pods do not run: default/replaced ended (Evicted), only the cloud"},
		{at: 625 * time.Second, status: of(), runtime: dead, island: true, reason: "PodsNotRunning", message: "1 of 9 pods do not run: default/replaced ended (Evicted), only the cloud"},
		{at: 660 * time.Second, status: of(), runtime: dead, island: true, reason: podhealth.RuntimeNotReady, message: dead.Error()},
		{at: 730 * time.Second, status: of()},
	} {
		reason, message := h.Problem(start.Add(c.at), c.status, c.runtime, !c.island)
		if reason != c.reason || message != c.message {
			t.Errorf("%s: %s, %q\nwant %s, %q", c.at, reason, message, c.reason, c.message)
		}
	}

	var many []podhealth.Pod
	for _, n := range strings.Split("abcdefghij", "") {
		many = append(many, bad(n, podhealth.Waiting, "x", ""))
	}
	h = podhealth.History{}
	h.Problem(start, of(many...), nil, true)
	if _, message := h.Problem(start.Add(time.Hour), of(many...), nil, true); message != "10 of 9 pods do not run: default/a, default/b, default/c, default/d, default/e, ... waiting (x)" {
		t.Error(message)
	}
}
