package balance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/balance"
)

// system is replicas that share a cluster, and devices that dial another replica when their
// session is ended.
type system struct {
	t *testing.T

	mu          sync.Mutex
	replicas    []*replica
	annotations map[string]string // nil: there is no Lease
	refuse      bool
	sticky      bool          // devices come back to where their session was ended
	answer      time.Duration // how long the next request takes
}

// leases implements kube-apiserver's part for a Balancer: merge patches of annotations (RFC 7396).
// tests/integration/balance has a real one.
type leases struct {
	coordination.LeaseInterface
	*system
}

func (s leases) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.annotations != nil || l.Name != balance.Lease {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), l.Name)
	}
	s.annotations = map[string]string{}
	return l, nil
}

func (s leases) Patch(ctx context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*coordinationv1.Lease, error) {
	var patch struct {
		Metadata struct {
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	s.mu.Lock()
	answer := s.answer
	s.answer = 0
	s.mu.Unlock()
	time.Sleep(answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.refuse:
		return nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), name, errors.New("no right"))
	case s.annotations == nil:
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}
	for k, v := range patch.Metadata.Annotations {
		if v == nil {
			delete(s.annotations, k)
		} else {
			s.annotations[k] = *v
		}
	}
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: maps.Clone(s.annotations)}}, nil
}

type replica struct {
	*balance.Balancer
	name string
	stop func()

	// Guarded by the system's mu.
	sessions, max int
	ready         bool
	ends          []time.Time   // of each session that was ended
	hang          time.Duration // for which the next end takes
	counts        int           // calls of Sessions until one takes as long as count; 0: never
	count         time.Duration
}

func newSystem(t *testing.T) *system { return &system{t: t} }

// start starts a replica with so many sessions.
func (s *system) start(name string, sessions, most int) *replica {
	r := &replica{name: name, sessions: sessions, max: most, ready: true}
	r.Balancer = balance.New(balance.Config{
		Leases: leases{system: s}, Instance: name, Max: most,
		Ready: func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !r.ready {
				return errors.New("not ready")
			}
			return nil
		},
		Sessions: func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			if r.counts--; r.counts == 0 {
				s.mu.Unlock()
				time.Sleep(r.count) // set before counts is
				s.mu.Lock()
			}
			return r.sessions
		},
		End: func(n int) int { return s.end(r, n) },
	})
	ctx, cancel := context.WithCancel(klog.NewContext(s.t.Context(), klog.New(nil)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	s.t.Cleanup(r.stop)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = append(s.replicas, r)
	return r
}

// end ends sessions of a replica: each goes to the next one that takes it.
func (s *system) end(r *replica, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, r.sessions)
	for range n {
		r.ends = append(r.ends, time.Now())
		if s.sticky {
			continue
		}
		r.sessions--
		from := slices.Index(s.replicas, r)
		for i := range s.replicas {
			if to := s.replicas[(from+i+1)%len(s.replicas)]; to.ready && to.sessions < to.max {
				to.sessions++
				break
			}
		}
	}
	if d := r.hang; d > 0 {
		r.hang = 0
		s.mu.Unlock()
		time.Sleep(d)
		s.mu.Lock()
	}
	return n
}

// set changes a replica.
func (s *system) set(r *replica, change func(*replica)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(r)
}

func (s *system) count() (all []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.replicas {
		all = append(all, r.sessions)
	}
	return all
}

func (s *system) ended(r *replica) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(r.ends)
}

// reported lists the replicas with an annotation.
func (s *system) reported() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.annotations {
		names = append(names, strings.TrimPrefix(k, "replicas.skerry.io/"))
	}
	slices.Sort(names)
	return names
}

func TestBalancer_SharesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		a := s.start("a", 10_000, 10_000)
		time.Sleep(time.Hour)
		if n := s.ended(a); n != 0 || a.Elsewhere() {
			t.Errorf("alone it has ended %d sessions, and says that there is another one: %v", n, a.Elsewhere())
		}
		b := s.start("b", 0, 10_000)
		time.Sleep(time.Minute)
		if !a.Elsewhere() || b.Elsewhere() == (s.count()[0] == 10_000) {
			t.Errorf("with %v sessions another one has room: %v, %v", s.count(), a.Elsewhere(), b.Elsewhere())
		}
		time.Sleep(time.Hour)
		if got := s.count(); got[0] < 4990 || got[0] > 5000 {
			t.Errorf("sessions: %v", got)
		}
		c := s.start("c", 0, 10_000)
		time.Sleep(time.Hour)
		stopped := s.count()
		for _, n := range stopped {
			if n < 3000 || n > 3680 {
				t.Errorf("sessions: %v", stopped)
			}
		}
		time.Sleep(24 * time.Hour)
		if got := s.count(); !slices.Equal(got, stopped) {
			t.Errorf("sessions go on moving: %v, then %v", stopped, got)
		}
		if n := s.ended(c); n != 0 {
			t.Errorf("the newest has ended %d sessions", n)
		}
		want := fmt.Sprintf("# HELP skerry_balance_ended_total Sessions closed to move them to another replica.\n"+
			"# TYPE skerry_balance_ended_total counter\nskerry_balance_ended_total %d\n"+
			"# HELP skerry_balance_replicas Serving replicas known to this one, including itself; 0 if unknown.\n"+
			"# TYPE skerry_balance_replicas gauge\nskerry_balance_replicas 3\n", s.ended(a))
		if err := testutil.CollectAndCompare(a, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
		atOnce(t, a)
	})
}

// atOnce shows how many sessions were ended within any second, and within any round.
func atOnce(t *testing.T, r *replica) {
	t.Helper()
	for i, first := range r.ends {
		if j := i + 50; j < len(r.ends) && r.ends[j].Sub(first) < time.Second {
			t.Fatalf("more than 50 were ended in the second from %v", first)
		}
		if j := i + 500; j < len(r.ends) && r.ends[j].Sub(first) < 20*time.Second { // the ends of a round, and the wait after it
			t.Fatalf("more than 500 were ended in the 20 s from %v", first)
		}
	}
}

func TestBalancer_OnlyAmongThoseThatServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		a, b := s.start("a", 1000, 10_000), s.start("b", 0, 10_000)
		s.set(b, func(r *replica) { r.ready = false })
		time.Sleep(time.Hour)
		if n := s.ended(a); n != 0 {
			t.Errorf("%d were ended, and the other one is not ready", n)
		}
		s.set(b, func(r *replica) { r.ready = true })
		s.set(a, func(r *replica) { r.ready = false })
		time.Sleep(time.Hour)
		if n := s.ended(a); n != 0 || b.Elsewhere() {
			t.Errorf("%d were ended by one that is not ready; the other one says that it takes sessions: %v", n, b.Elsewhere())
		}
		s.set(a, func(r *replica) { r.ready = true })
		time.Sleep(30 * time.Minute)
		if got := s.count(); got[0] > 505 {
			t.Errorf("sessions: %v", got)
		}
		// A stopping replica removes its annotation, and the others don't wait for it.
		if got := s.reported(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("annotations of %v", got)
		}
		b.stop()
		if got := s.reported(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("after the end of b: annotations of %v", got)
		}
		before := s.ended(a)
		s.set(a, func(r *replica) { r.sessions = 1000 })
		time.Sleep(time.Hour)
		if n := s.ended(a); n != before || a.Elsewhere() {
			t.Errorf("alone it has ended %d more, and says that there is another one: %v", n-before, a.Elsewhere())
		}
	})
}

// A replica that was suspended ends no sessions by its old data, however it was suspended.
func TestBalancer_StoodStill(t *testing.T) {
	for what, stop := range map[string]func(s *system, a *replica, d time.Duration){
		"while it ended sessions":      func(_ *system, a *replica, d time.Duration) { a.hang = d },
		"while it counted":             func(_ *system, a *replica, d time.Duration) { a.counts, a.count = 1, d },
		"while it counted, once asked": func(_ *system, a *replica, d time.Duration) { a.counts, a.count = 2, d },
		"while it asked":               func(s *system, _ *replica, d time.Duration) { s.answer = d },
	} {
		for _, d := range []time.Duration{9 * time.Minute, time.Hour} { // after 10 minutes a replica counts as gone
			t.Run(fmt.Sprintf("%s for %v", what, d), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { stoodStill(t, d, what == "while it ended sessions", stop) })
			})
		}
	}
}

func stoodStill(t *testing.T, d time.Duration, ending bool, stop func(*system, *replica, time.Duration)) {
	s := newSystem(t)
	a := s.start("a", 5000, 10_000)
	time.Sleep(time.Second)
	b := s.start("b", 0, 10_000)
	time.Sleep(15 * time.Second) // it has seen the other one, and not yet that it renews
	for ending && s.ended(a) == 0 {
		time.Sleep(time.Second)
	}
	s.set(a, func(*replica) { stop(s, a, d) })
	time.Sleep(11 * time.Second)
	b.stop()
	// As one that was killed leaves it: renewed since the other one looked.
	s.mu.Lock()
	s.annotations["replicas.skerry.io/b"] = `{"sessions":0,"max":10000,"at":"x"}`
	s.mu.Unlock()
	time.Sleep(d - time.Minute)
	before := s.ended(a)
	time.Sleep(3 * time.Minute)
	if n := s.ended(a); n != before || a.Elsewhere() {
		t.Errorf("%d were ended when it went on; another one has room: %v", n-before, a.Elsewhere())
	}
	time.Sleep(20 * time.Minute)
	if got := s.reported(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("annotations of %v: what one leaves that is gone is not removed", got)
	}
}

// Sessions that can't be ended in time are not ended all at once later.
func TestBalancer_SlowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		a := s.start("a", 10_000, 10_000)
		s.start("b", 0, 10_000)
		for range 60 {
			s.set(a, func(r *replica) { r.hang = 8 * time.Second })
			time.Sleep(time.Minute)
		}
		atOnce(t, a)
		if s.ended(a) == 0 {
			t.Error("none was ended")
		}
	})
}

func TestBalancer_DevicesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.sticky = true
		a := s.start("a", 1000, 10_000)
		s.start("b", 0, 10_000)
		time.Sleep(24 * time.Hour)
		if n := s.ended(a); n == 0 || n > 36*50 {
			t.Errorf("%d were ended in a day", n)
		}
	})
}

// While kube-apiserver refuses, as where the Role was not updated, no sessions are ended.
func TestBalancer_WithoutKubeAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		refuse := func(yes bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refuse = yes
		}
		a := s.start("a", 5000, 10_000)
		s.start("b", 0, 10_000)
		for s.ended(a) == 0 {
			time.Sleep(time.Second)
		}
		refuse(true)
		time.Sleep(11 * time.Second) // the round that has begun
		before := s.ended(a)
		time.Sleep(time.Hour)
		if n := s.ended(a); n != before || a.Elsewhere() {
			t.Errorf("%d were ended by counts of before; another one has room: %v", n-before, a.Elsewhere())
		}
		refuse(false)
		time.Sleep(time.Hour)
		if got := s.count(); got[0] > 2510 {
			t.Errorf("sessions: %v", got)
		}
	})
}
