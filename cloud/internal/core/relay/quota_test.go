package relay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The writes of a device with 110 pods when all of them start, and when it comes back after an
// hour, are below the default quotas. A flood of statuses is not, by its number or by its bytes:
// writes above the quotas are answered 429 with a Retry-After, make no request, and are accepted
// when they come again then. Another device is served at the same time.
func TestQuotaOfStatuses(t *testing.T) {
	d := config.Default().Relay.Quotas
	for name, bytes := range map[string]int{"relay.quotas.statusesPerSecond": 100, "relay.quotas.statusBytesPerSecond": 512 << 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.relay.Limit(relay.Quotas{
					Statuses:    quota.Rate{PerSecond: float64(d.StatusesPerSecond), Burst: d.StatusBurst, Heavy: d.HeavyNodes},
					StatusBytes: quota.Rate{PerSecond: float64(d.StatusBytesPerSecond), Burst: d.StatusByteBurst, Heavy: d.HeavyNodes},
				})
				const pods = 110
				honest, device := w.connect("edge1", 1), w.connect("edge2", 1)
				for i := range pods {
					w.addPod(fmt.Sprint("pod-", i), "edge1", "u")
					w.addPod(fmt.Sprint("theirs-", i), "edge2", "u")
				}
				id := uint64(0)
				write := func(e *edge, pod string, bytes int) {
					id++
					s := podStatus(id, pod, "u", "Running")
					s.Body = fmt.Appendf(nil, `{"status":{"message":%q}}`, strings.Repeat("x", bytes))
					e.send(topic.PodStatusWrite.New(message.Resource{}, s))
				}
				starting := func() {
					t.Helper()
					for range 4 { // scheduled, initialized, its containers, ready
						for i := range pods {
							write(honest, fmt.Sprint("pod-", i), 8<<10)
						}
						time.Sleep(3 * time.Second)
					}
					results := honest.takeResults()
					if n := len(results); n != 4*pods {
						t.Errorf("%d of %d statuses were answered", n, 4*pods)
					}
					for _, r := range results {
						if !strings.HasSuffix(r, "accepted") {
							t.Errorf("a device that starts 110 pods: %s", r)
						}
					}
				}
				starting()
				refused, asked, each := 0, 0, 300
				if bytes > 1<<10 {
					each = 20
				}
				for range 20 { // seconds of a flood
					for range each {
						write(device, fmt.Sprint("theirs-", asked%pods), bytes)
						asked++
					}
					time.Sleep(time.Second)
				}
				device.mu.Lock()
				for _, r := range device.results {
					var s metav1.Status
					if r.GetAccepted() {
						continue
					}
					if err := json.Unmarshal(r.GetStatus(), &s); err != nil || s.Code != 429 || s.Details == nil || s.Details.Kind != topic.QuotaKind || s.Details.Name != name ||
						s.Details.RetryAfterSeconds < 1 || s.Details.RetryAfterSeconds > 60 {
						t.Fatalf("refused with %s", r.GetStatus())
					}
					refused++
				}
				device.results = nil
				device.mu.Unlock()
				most := d.StatusBurst + 21*(d.StatusesPerSecond+1)
				if bytes > 1<<10 {
					most = (d.StatusByteBurst + 21*(d.StatusBytesPerSecond+d.StatusBytesPerSecond/50)) / bytes
				}
				if taken := asked - refused; taken > most || taken < most*3/4 {
					t.Errorf("%d of %d were taken, want %d", taken, asked, most)
				}
				time.Sleep(time.Hour)
				starting() // it has been away in the meantime
				write(device, "theirs-0", bytes)
				time.Sleep(time.Second)
				want(t, "after the wait", device.takeResults(), []string{fmt.Sprintf("%d accepted", id)})
			})
		})
	}
}

// Writes of nodes that have used much of their bursts take turns, two at once of all of them:
// twenty nodes that flood cause as many requests at once as one. Those of a light node don't wait
// for them, and neither do those of a heavy one whose turn has been taken for a second.
func TestHeavyNodesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.relay.Limit(relay.Quotas{Events: quota.Rate{PerSecond: 100, Burst: 1600, Heavy: 2}})
		const floods, each = 20, 300
		took := 10 * time.Millisecond
		w.api.mu.Lock()
		w.api.delay = func(r kube.Request) time.Duration {
			if r.Method == "POST" {
				return took
			}
			return 0
		}
		w.api.mu.Unlock()
		id := uint64(0)
		say := func(e *edge, n int) {
			for range n {
				id++
				about := podRef(fmt.Sprintf("pod-%s-%d", e.Name, id%16), fmt.Sprintf("uid-%s-%d", e.Name, id%16))
				write := event(id, topicpb.Verb_CREATE, fmt.Sprintf("e%d", id), about, 1)
				write.Body = bytes.ReplaceAll(write.Body, []byte(`"host":"edge1"`), fmt.Appendf(nil, `"host":%q`, e.Name))
				e.send(topic.EventWrite.New(message.Resource{}, write))
			}
		}
		most := func() int {
			w.api.mu.Lock()
			defer w.api.mu.Unlock()
			n := w.api.most
			w.api.most = 0
			return n
		}
		var devices []*edge
		for i := range floods {
			e := w.connect(types.NodeName(fmt.Sprint("flood-", i)), 1)
			for p := range 16 {
				w.addPod(fmt.Sprintf("pod-%s-%d", e.Name, p), string(e.Name), fmt.Sprintf("uid-%s-%d", e.Name, p))
			}
			devices = append(devices, e)
			say(e, each)
		}
		honest := w.connect("honest", 1)
		for p := range 16 {
			w.addPod(fmt.Sprintf("pod-honest-%d", p), "honest", fmt.Sprintf("uid-honest-%d", p))
		}
		time.Sleep(5 * time.Second) // until the writes before they were heavy are made
		most()
		time.Sleep(time.Second)
		if n := most(); n < 1 || n > 2 {
			t.Errorf("%d writes of heavy nodes at once, want at most 2", n)
		}
		say(honest, 1)
		time.Sleep(took + time.Millisecond)
		if got := honest.takeResults(); len(got) != 1 || !strings.HasSuffix(got[0], "accepted") {
			t.Errorf("a node that is not heavy: %v", got)
		}
		time.Sleep(3 * time.Minute)
		for _, e := range devices {
			if got := e.takeResults(); len(got) != each {
				t.Errorf("%s: %d of %d were answered", e.Name, len(got), each)
			}
		}
		took = 20 * time.Second // kube-apiserver hangs, for writes of two of them
		for _, e := range devices[:2] {
			say(e, 1)
		}
		time.Sleep(2500 * time.Millisecond)
		took = 10 * time.Millisecond
		say(devices[2], 1)
		time.Sleep(2500 * time.Millisecond)
		if got := devices[2].takeResults(); len(got) != 1 {
			t.Errorf("beside two that hang: %v", got)
		}
	})
}

// A pod's status does not wait for the events before it, and events are made while statuses hang.
func TestStatusesPassEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration { return 100 * time.Millisecond }
		w.api.mu.Unlock()
		const pods = 64
		for i := range pods {
			w.addPod(fmt.Sprint("pod-", i), "edge1", fmt.Sprint("uid-", i))
		}
		e := w.connect("edge1", 1)
		time.Sleep(time.Second)
		id := uint64(0)
		say := func(n int) {
			for range n {
				id++
				about := podRef(fmt.Sprint("pod-", id%pods), fmt.Sprint("uid-", id%pods))
				e.send(topic.EventWrite.New(message.Resource{}, event(id, topicpb.Verb_CREATE, fmt.Sprint("e", id), about, 1)))
			}
		}
		report := func(i int) {
			id++
			e.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(id, fmt.Sprint("pod-", i%pods), fmt.Sprint("uid-", i%pods), "Running")))
		}
		say(300)
		time.Sleep(10 * time.Millisecond)
		e.takeResults()
		report(0)
		time.Sleep(500 * time.Millisecond)
		if got := e.takeResults(); !slices.Contains(got, fmt.Sprint(id, " accepted")) {
			t.Errorf("a status behind 300 events: %v", got)
		}
		time.Sleep(time.Minute)
		e.takeResults()

		for i := range 300 {
			report(i)
		}
		say(10)
		first := id - 9
		time.Sleep(1500 * time.Millisecond)
		made := 0
		for _, r := range e.takeResults() {
			var n uint64
			if _, err := fmt.Sscanf(r, "%d accepted", &n); err == nil && n >= first {
				made++
			}
		}
		if made != 10 {
			t.Errorf("%d of 10 events were made while 300 statuses waited", made)
		}
	})
}

// One answer of kube-apiserver that it is overloaded does not have a node's statuses wait until its
// events have had their turns.
func TestStatusesPassEventsThatWaitForTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.relay.Limit(relay.Quotas{Events: quota.Rate{PerSecond: 1000, Burst: 1600}})
		var busy atomic.Bool
		w.api.mu.Lock()
		w.api.delay = func(r kube.Request) time.Duration {
			if r.Method == "POST" {
				return 900 * time.Millisecond
			}
			return 0
		}
		w.api.fail = func(as kube.Identity, r kube.Request) (*kube.Response, error) {
			if r.Method == "PATCH" && busy.CompareAndSwap(true, false) {
				return status(429, metav1.StatusReasonTooManyRequests, "too many requests"), nil
			}
			return nil, nil
		}
		w.api.mu.Unlock()
		id := uint64(0)
		var last *edge
		for i := range 20 {
			e := w.connect(types.NodeName(fmt.Sprint("flood-", i)), 1)
			for p := range 16 {
				w.addPod(fmt.Sprintf("pod-%s-%d", e.Name, p), string(e.Name), fmt.Sprintf("uid-%s-%d", e.Name, p))
			}
			for range 300 {
				id++
				about := podRef(fmt.Sprintf("pod-%s-%d", e.Name, id%16), fmt.Sprintf("uid-%s-%d", e.Name, id%16))
				write := event(id, topicpb.Verb_CREATE, fmt.Sprintf("e%d", id), about, 1)
				write.Body = bytes.ReplaceAll(write.Body, []byte(`"host":"edge1"`), fmt.Appendf(nil, `"host":%q`, e.Name))
				e.send(topic.EventWrite.New(message.Resource{}, write))
			}
			last = e
		}
		time.Sleep(20 * time.Second) // until the writes before they were heavy are made
		for round := range 5 {
			last.takeResults()
			busy.Store(true)
			id++
			last.send(topic.PodStatusWrite.New(message.Resource{}, podStatus(id, fmt.Sprintf("pod-%s-0", last.Name), fmt.Sprintf("uid-%s-0", last.Name), "Running")))
			time.Sleep(3 * time.Second)
			if got := last.takeResults(); busy.Load() || !slices.Contains(got, fmt.Sprint(id, " accepted")) {
				t.Errorf("round %d: 3 s after a 429 these were answered, and not the status: %v", round, got)
			}
		}
	})
}

// Events of fifty heavy nodes leave kube-apiserver most of its time; those of one that comes back
// with a backlog follow each other at once. Large bodies of many nodes are made one at a time, and
// leave it most of its time as well.
func TestFloodsLeaveTimeToOthers(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, body int
		most, least float64 // of the time, at how many writes kube-apiserver is
	}{
		"events of one":        {1, 100, 2, 1.5},
		"events of fifty":      {50, 100, 0.6, 0.3},
		"large bodies of one":  {1, 100 << 10, 0.6, 0.4},
		"large bodies of many": {8, 100 << 10, 0.3, 0.15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.relay.Limit(relay.Quotas{Events: quota.Rate{PerSecond: 1000, Burst: 1600}})
				const took = 10 * time.Millisecond
				var writes atomic.Int64
				w.api.mu.Lock()
				w.api.delay = func(r kube.Request) time.Duration {
					if r.Method != "POST" {
						return 0
					}
					writes.Add(1)
					return took
				}
				w.api.mu.Unlock()
				id := uint64(0)
				for i := range c.nodes {
					e := w.connect(types.NodeName(fmt.Sprint("flood-", i)), 1)
					for p := range 16 {
						w.addPod(fmt.Sprintf("pod-%s-%d", e.Name, p), string(e.Name), fmt.Sprintf("uid-%s-%d", e.Name, p))
					}
					for range 500 {
						id++
						about := podRef(fmt.Sprintf("pod-%s-%d", e.Name, id%16), fmt.Sprintf("uid-%s-%d", e.Name, id%16))
						write := event(id, topicpb.Verb_CREATE, fmt.Sprintf("e%d", id), about, 1)
						write.Body = bytes.ReplaceAll(write.Body, []byte(`"host":"edge1"`), fmt.Appendf(nil, `"host":%q`, e.Name))
						if c.body > 1<<10 {
							write.Body = append(write.Body, strings.Repeat(" ", c.body)...)
						}
						e.send(topic.EventWrite.New(message.Resource{}, write))
					}
				}
				time.Sleep(time.Second) // until the writes before they were heavy are made
				writes.Store(0)
				time.Sleep(time.Second)
				// Counted where they begin: each of the two that may be made at once can begin one
				// more in a second than fits into it.
				ends := 2 * took.Seconds()
				if busy := float64(writes.Load()) * took.Seconds(); busy > c.most+ends || busy < c.least {
					t.Errorf("kube-apiserver was at %.2f writes at once, want %.2f to %.2f", busy, c.least, c.most)
				}
			})
		})
	}
}

// While kube-apiserver is slow, a session holds writes and requests up to its quota of bytes. Those
// above it are answered 429 at once, and accepted once there is room.
func TestBytesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.relay.Limit(relay.Quotas{Bytes: 4 << 20})
		e := w.connect("edge1", 1)
		slow := true
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration {
			if slow {
				return 20 * time.Second
			}
			return 0
		}
		w.api.mu.Unlock()
		megabyte := strings.Repeat("x", 1<<20)
		write := func(id uint64) *topicpb.Write {
			s := podStatus(id, fmt.Sprintf("pod-%d", id), "u", "Running")
			s.Body = fmt.Appendf(nil, `{"status":{"message":%q}}`, megabyte)
			return s
		}
		for id := uint64(1); id <= 10; id++ {
			e.send(topic.PodStatusWrite.New(message.Resource{}, write(id)))
		}
		synctest.Wait()
		var over []string
		for id := 4; id <= 10; id++ {
			over = append(over, fmt.Sprintf("%d TooManyRequests", id))
		}
		want(t, "above the quota", e.takeResults(), over)
		ask := &topicpb.APIRequest{Method: "PUT", Path: "/api/v1/nodes/edge1", Body: []byte(megabyte)}
		e.send(topic.APIRequest.New(message.Resource{}, ask))
		synctest.Wait()
		e.mu.Lock()
		for _, a := range e.answers {
			if a.GetCode() != 429 || a.GetRetryAfter() == "" {
				t.Errorf("a request above the quota: %d, Retry-After %q", a.GetCode(), a.GetRetryAfter())
			}
		}
		if len(e.answers) != 1 {
			t.Errorf("%d answers", len(e.answers))
		}
		e.mu.Unlock()
		w.api.mu.Lock()
		slow = false
		w.api.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if got := e.takeResults(); len(got) != 3 {
			t.Errorf("of the first three: %v", got)
		}
		e.send(topic.PodStatusWrite.New(message.Resource{}, write(11)))
		time.Sleep(time.Minute)
		if got := e.takeResults(); len(got) != 1 || strings.Contains(got[0], "TooManyRequests") {
			t.Errorf("once there is room: %v", got)
		}
	})
}
