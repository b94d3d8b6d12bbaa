package relay_test

import (
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

var lives = topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true})

// renewedAt is the time in the Lease, as kube-apiserver has it.
func (w *system) renewedAt() time.Time {
	w.t.Helper()
	at, err := time.Parse(metav1.RFC3339Micro, w.renewed())
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

// Whenever the host of cloudcore dies, the device counts its silence from the last heartbeat that
// arrived: how old the Lease is at that heartbeat, silence and a dial make the age at which another
// replica renews it.
func TestLeaseIsYoungAtEachHeartbeat(t *testing.T) {
	for name, test := range map[string]struct {
		keepalive, jitter time.Duration
		write             time.Duration // takes a renewal
		first             time.Duration // takes the first one
		period            time.Duration // 0: the usual
		atHeartbeat, ever time.Duration // how old the Lease may be
		least, most       int           // renewals an hour
	}{
		"heartbeats each 10 s":          {keepalive: 10 * time.Second, atHeartbeat: 12500 * time.Millisecond, ever: 20 * time.Second, least: 178, most: 181},
		"late, early and slow to write": {keepalive: 10 * time.Second, jitter: time.Second, write: 400 * time.Millisecond, atHeartbeat: 15 * time.Second, ever: 23 * time.Second, least: 175, most: 185},
		"2.4 s for each write":          {keepalive: 10 * time.Second, write: 2400 * time.Millisecond, atHeartbeat: 12500 * time.Millisecond, ever: 22500 * time.Millisecond, least: 178, most: 181},
		"the first one slow":            {keepalive: 10 * time.Second, first: 4 * time.Second, atHeartbeat: 16 * time.Second, ever: 23 * time.Second, least: 178, most: 181},
		"each second":                   {keepalive: time.Second, atHeartbeat: 20250 * time.Millisecond, ever: 20250 * time.Millisecond, least: 178, most: 190},
		"each 3 s":                      {keepalive: 3 * time.Second, atHeartbeat: 20 * time.Second, ever: 21 * time.Second, least: 178, most: 204},
		"each 8 s":                      {keepalive: 8 * time.Second, atHeartbeat: 22 * time.Second, ever: 22 * time.Second, least: 178, most: 226},
		"each 12 s":                     {keepalive: 12 * time.Second, atHeartbeat: 20 * time.Second, ever: 20 * time.Second, least: 178, most: 181},
		"each minute":                   {keepalive: time.Minute, atHeartbeat: 20 * time.Second, ever: 20 * time.Second, least: 178, most: 181},
		"each 10 minutes":               {keepalive: 10 * time.Minute, atHeartbeat: 20 * time.Second, ever: 20 * time.Second, least: 178, most: 181},
		"renewed each 10 s":             {keepalive: 10 * time.Second, period: 10 * time.Second, atHeartbeat: 10 * time.Second, ever: 10 * time.Second, least: 358, most: 361},
		"each 3 s, renewed each 10 s":   {keepalive: 3 * time.Second, period: 10 * time.Second, atHeartbeat: 10 * time.Second, ever: 11 * time.Second, least: 358, most: 401},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.keepalive = test.keepalive
				if test.period > 0 {
					w.relay.RenewEvery(test.period)
				}
				renewals := 0
				w.api.delay = func(r kube.Request) time.Duration {
					if r.Method != "PUT" || !strings.HasSuffix(r.Path, "/edge1") {
						return 0
					}
					w.api.mu.Lock()
					defer w.api.mu.Unlock()
					if renewals++; renewals == 1 {
						return test.first
					}
					return test.write
				}
				e := w.connect("edge1", 5)
				random := rand.New(rand.NewPCG(1, 2))
				heard, start := time.Now(), time.Now()
				e.send(lives)
				time.Sleep(max(test.first, test.write))
				synctest.Wait()
				begun := w.api.count("edge1 PUT " + leasePath)
				const look = 50 * time.Millisecond
				next := start.Add(test.keepalive)
				for time.Since(start) < time.Hour {
					time.Sleep(look)
					if now := time.Now(); !now.Before(next) {
						heard = now
						e.send(lives)
						next = start.Add(now.Sub(start).Round(test.keepalive) + test.keepalive)
						if test.jitter > 0 {
							next = next.Add(around(random, test.jitter).Round(look))
						}
					}
					synctest.Wait()
					renewed := w.renewedAt()
					if age := heard.Sub(renewed); age > test.atHeartbeat {
						t.Fatalf("at %v: the Lease was %v old at the last heartbeat", time.Since(start), age)
					}
					if age := time.Since(renewed); age > test.ever+look {
						t.Fatalf("at %v: the Lease is %v old", time.Since(start), age)
					}
				}
				if n := w.api.count("edge1 PUT "+leasePath) - begun; n < test.least || n > test.most {
					t.Errorf("%d renewals in an hour, want %d to %d", n, test.least, test.most)
				}
			})
		})
	}
}

// The Lease has the state of the session, without an additional write.
func TestLeaseHasTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		e := w.connect("edge1", 5)
		e.send(lives)
		time.Sleep(time.Second)
		session := func() fleet.Session {
			annotations, _, _ := unstructured.NestedStringMap(w.api.get(leasePath), "metadata", "annotations")
			s, ok := fleet.SessionOf(annotations)
			if !ok {
				t.Fatalf("annotations %v", annotations)
			}
			return s
		}
		if s := session(); s.Backlog != 0 || s.Oldest != nil {
			t.Errorf("without a backlog: %+v", s)
		}
		writes := w.api.count("edge1 PUT " + leasePath)
		end := time.Now().Add(240 * time.Hour).Truncate(time.Second)
		for range 6 {
			e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true, Backlog: 3, BacklogSeconds: 400, CertificateUnix: end.Unix()}))
			time.Sleep(10 * time.Second)
		}
		s := session()
		if s.Backlog != 3 || s.Oldest == nil || s.CertificateEnd == nil || !s.CertificateEnd.Time.Equal(end) {
			t.Fatalf("with a backlog: %+v", s)
		}
		if age := time.Since(s.Oldest.Time); age < 400*time.Second || age > 425*time.Second {
			t.Errorf("the oldest is %v old", age)
		}
		if n := w.api.count("edge1 PUT "+leasePath) - writes; n > 3 {
			t.Errorf("%d writes in a minute", n)
		}
	})
}

// A heartbeat that comes while the Lease is read has it renewed by the write that acquires it: one
// write for a device that comes back, not two.
func TestLeaseIsAcquiredAndRenewedAtOnce(t *testing.T) {
	for name, alive := range map[string]bool{"the kubelet lives": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t)
				w.api.mu.Lock()
				w.api.delay = func(r kube.Request) time.Duration {
					if r.Method == "GET" {
						return time.Second
					}
					return 0
				}
				w.api.mu.Unlock()
				e := w.open("edge1", 5)
				time.Sleep(time.Second / 2)
				e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: alive}))
				time.Sleep(5 * time.Second) // the Node is read as well
				writes := w.api.count("edge1 POST "+path.Dir(leasePath)) + w.api.count("edge1 PUT "+leasePath)
				if age := time.Since(w.renewedAt()); writes != 1 || alive != (age < 10*time.Second) {
					t.Errorf("%d writes of the Lease, which is %v old", writes, age)
				}
			})
		})
	}
}

// kube-controller-manager marks no node NotReady whose Lease was written since without a later
// renewal: a session's write without a renewal is a moment later than the one before.
func TestLeaseIsLaterWithEachSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.connect("edge1", 5).send(lives)
		time.Sleep(5 * time.Second)
		for epoch := uint64(6); epoch < 9; epoch++ {
			before := w.renewedAt()
			w.connect("edge1", epoch)
			time.Sleep(5 * time.Second)
			if by := w.renewedAt().Sub(before); by != time.Microsecond {
				t.Errorf("epoch %d: a session without a kubelet moved the renewal by %v", epoch, by)
			}
		}
	})
}

// A renewal by a clock that is behind that of the renewal before, another replica's or this one
// before it was set back, is a later one too: kube-controller-manager would not take it for one.
func TestRenewalByAClockThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.leaseOf("edge1", -time.Minute)
		e := w.connect("edge1", 5)
		before := w.renewedAt()
		if !before.After(time.Now()) {
			t.Fatal("the Lease was to be of a clock that is ahead")
		}
		for range 18 {
			writes := w.api.count("edge1 PUT " + leasePath)
			e.send(lives)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			now := w.renewedAt()
			if written := w.api.count("edge1 PUT "+leasePath) > writes; now.Before(before) || written && now.Equal(before) {
				t.Fatalf("a renewal went from %v to %v", before, now)
			}
			before = now
		}
		if age := time.Since(before); age > 30*time.Second {
			t.Errorf("with the clock where the other one was, the Lease is %v old", age)
		}
	})
}

// around is between -d and d.
func around(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(2*d))) - d
}

// kube-apiserver may answer from an old cache for any time: the write that follows is refused, and
// the newest Lease is read then.
func TestLeaseOfAnOldCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.connect("edge1", 5)
		synctest.Wait()
		read := kube.Request{Method: "GET", Path: leasePath, Query: "resourceVersion=0"}
		w.api.mu.Lock()
		old := w.api.serve(read)
		w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
			if r.Method != "GET" || r.Path != leasePath || r.Query != read.Query {
				return nil, nil
			}
			return &kube.Response{Code: old.Code, Body: old.Body}, nil
		}
		w.api.mu.Unlock()
		w.connect("edge1", 6)
		time.Sleep(5 * time.Second)
		w.connect("edge1", 7) // the cache has epoch 5
		time.Sleep(10 * time.Second)
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		if now := string(w.api.serve(kube.Request{Method: "GET", Path: leasePath}).Body); !strings.Contains(now, `epoch":"7"`) {
			t.Errorf("the Lease is %s", now)
		}
	})
}
