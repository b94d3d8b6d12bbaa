package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// A Secret is read as the kubelet reads it.
func TestCredentialsOfImages(t *testing.T) {
	hub := "docker" + ".io" // its entry in a Secret has another name than its images
	secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths": {
		"https://index.` + hub + `/v1/": {"username": "hub", "password": "p"}, "registry.example.com/team": {"auth": "dGVhbTpw"}, "registry.example.com": {"username": "all", "password": "p"}
	}}`)}}
	as, err := credentialsIn(secret)
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string][]string{
		"till:1": {"hub"}, hub + "/shop/till:1": {"hub"}, "registry.example.com/team/till:1": {"team", "all"}, "registry.example.com/till:1": {"all"}, "other.example.com/till:1": nil,
	} {
		var got []string
		for _, c := range as(image) {
			got = append(got, c.Username)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: as %v, want %v", image, got, want)
		}
	}
	if _, err := credentialsIn(&corev1.Secret{Type: corev1.SecretTypeOpaque, Data: secret.Data}); err == nil {
		t.Error("a Secret of another type is taken")
	}
}

// A version that can use the store is no downgrade too far, even if this one writes a newer schema.
func TestSchemaThatAnUpgradeNeeds(t *testing.T) {
	if got := (&device{}).Schema(); got != store.Readers {
		t.Errorf("schema %d is needed, the store's readers have %d", got, store.Readers)
	}
}

// A heartbeat of this process counts, also after the clock was set; one of the process before does
// not.
func TestReadyBySinceTheStart(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	boot := time.Date(1970, 1, 1, 0, 1, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		began, heartbeat, now time.Time
		want                  bool
	}{
		"of this process":                              {noon, noon.Add(5 * time.Second), noon.Add(10 * time.Second), true},
		"of the process before":                        {noon, noon.Add(-5 * time.Second), noon.Add(10 * time.Second), false},
		"after the clock was set from 1970":            {boot, noon.Add(5 * time.Second), noon.Add(10 * time.Second), true},
		"before it, of this process":                   {boot, boot.Add(5 * time.Second), noon.Add(10 * time.Second), true},
		"of the process before, whose clock was right": {boot, noon.Add(-5 * time.Second), noon.Add(10 * time.Second), false},
		"after the clock was put back":                 {noon.Add(time.Hour), noon.Add(5 * time.Second), noon.Add(10 * time.Second), true},
		"of the process before a clock was put back":   {noon.Add(time.Hour), noon.Add(59 * time.Minute), noon.Add(10 * time.Second), false},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(c.heartbeat),
		}}}}
		if got := readySince(node, c.began, c.now, 10*time.Second); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The log of a trial has the end of all that was written.
func TestTrialLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), trialLog)
	f, err := newTailFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for n := range 5000 {
		line := fmt.Sprintf("line %d of a log with some text\n", n)
		all.WriteString(line)
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if end := readTail(path, 4<<10); !strings.HasSuffix(all.String(), end) || len(end) < min(all.Len(), 4<<10) {
			t.Fatalf("after line %d the end is %q", n, end)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() > maxTrialLog {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	if n, err := f.Write(make([]byte, 2*maxTrialLog)); n != 2*maxTrialLog || err != nil {
		t.Errorf("one long line: %d, %v", n, err)
	}
}

// A trial is unhealthy where the switch to it has ended all containers of a pod: also before the
// kubelet reports that, and once they run again.
func TestContainersOfThePodsBeforeASwitch(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(d)} }
	runs := func(id string, restarts int32, since time.Duration) corev1.ContainerStatus {
		return corev1.ContainerStatus{ContainerID: "containerd://" + id, RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *at(since)}}}
	}
	after := func(run time.Duration, c corev1.ContainerStatus) corev1.ContainerStatus {
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{StartedAt: *at(-run), FinishedAt: *at(0)}
		return c
	}
	waits := corev1.ContainerStatus{ContainerID: "containerd://old", RestartCount: 7, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}
	for name, c := range map[string]struct {
		started          *metav1.Time
		containers       []corev1.ContainerStatus
		running          []string
		restarted, ended bool
	}{
		"they run":                            {at(-time.Hour), []corev1.ContainerStatus{runs("a", 0, -time.Hour), runs("b", 0, -time.Hour)}, []string{"a", "b"}, false, false},
		"they ended":                          {at(-time.Hour), []corev1.ContainerStatus{runs("a", 0, -time.Hour), runs("b", 0, -time.Hour)}, []string{"c"}, false, true},
		"one of two ended":                    {at(-time.Hour), []corev1.ContainerStatus{runs("a", 0, -time.Hour), runs("b", 0, -time.Hour)}, []string{"b"}, false, false},
		"they were restarted":                 {at(-time.Hour), []corev1.ContainerStatus{runs("a", 1, time.Second), runs("b", 1, time.Second)}, []string{"a", "b"}, true, false},
		"one of two was restarted":            {at(-time.Hour), []corev1.ContainerStatus{runs("a", 1, time.Second), runs("b", 0, -time.Hour)}, []string{"a", "b"}, false, false},
		"one restarts by itself, again":       {at(-time.Hour), []corev1.ContainerStatus{runs("a", 8, time.Second)}, []string{"a"}, false, false},
		"one crashes, again":                  {at(-time.Hour), []corev1.ContainerStatus{after(time.Minute, runs("a", 8, time.Second))}, []string{"a"}, false, false},
		"restarted, after reboots":            {at(-time.Hour), []corev1.ContainerStatus{after(3*time.Hour, runs("a", 8, time.Second)), after(3*time.Hour, runs("b", 2, time.Second))}, []string{"a", "b"}, true, false},
		"one of two restarted, after reboots": {at(-time.Hour), []corev1.ContainerStatus{after(3*time.Hour, runs("a", 8, time.Second)), after(time.Hour, runs("b", 2, -time.Hour))}, []string{"a", "b"}, false, false},
		"one waits to be restarted by itself": {at(-time.Hour), []corev1.ContainerStatus{waits}, nil, false, false},
		"a pod of after the switch":           {at(time.Second), []corev1.ContainerStatus{runs("a", 0, time.Second)}, nil, false, false},
		"a pod that has not started":          {nil, nil, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{StartTime: c.started, ContainerStatuses: c.containers}}
			running := map[string]bool{}
			for _, id := range c.running {
				running[id] = true
			}
			if got := restartedBy(pod, noon); got != c.restarted {
				t.Errorf("restarted: %t", got)
			}
			if got := endedBy(pod, noon, running); got != c.ended {
				t.Errorf("ended: %t", got)
			}
		})
	}
}
