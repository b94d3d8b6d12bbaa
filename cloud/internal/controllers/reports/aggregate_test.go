package reports_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// thing is an object that nodes report of.
type thing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            map[string]int `json:"status,omitempty"`
}

var things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}

func kind() reports.Kind {
	return reports.Of(things, func(o *thing, reports map[string][]byte) map[string]error {
		if o.Status == nil {
			o.Status = map[string]int{}
		}
		for node, body := range reports {
			var n int
			if err := json.Unmarshal(body, &n); err == nil {
				o.Status[node] = n
			}
		}
		return nil
	}, func(o *thing, exists func(node string) bool) {
		maps.DeleteFunc(o.Status, func(node string, _ int) bool { return !exists(node) })
	})
}

// apiserver has things and Leases. Each request takes a millisecond.
type apiserver struct {
	mu      sync.Mutex
	version int
	things  map[string]*thing
	epochs  map[string]uint64
	reads   int // of Leases
	missed  int // requests for absent things
	// most is the limit of a thing's sum, where it is not 0; refusals how many writes it refused.
	most, refusals int
	lossy          bool
	writes         int
}

func (a *apiserver) Do(ctx context.Context, _ kube.Identity, r kube.Request) (*kube.Response, error) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	name := r.Path[strings.LastIndex(strings.TrimSuffix(r.Path, "/status"), "/")+1:]
	name = strings.TrimSuffix(name, "/status")
	answer := func(o any) (*kube.Response, error) {
		body, err := json.Marshal(o)
		return &kube.Response{Code: http.StatusOK, Body: body}, err
	}
	if strings.Contains(r.Path, "/leases/") {
		a.reads++
		return answer(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{fence.EpochAnnotation: fmt.Sprint(a.epochs[name])}}})
	}
	if name == things.Resource {
		list := struct {
			Items []*thing `json:"items"`
		}{slices.Collect(maps.Values(a.things))}
		return answer(list)
	}
	have := a.things[name]
	if have == nil {
		a.missed++
		return &kube.Response{Code: http.StatusNotFound}, nil
	}
	if r.Method == http.MethodPut {
		if a.writes++; a.lossy && a.writes%3 == 0 {
			return nil, errors.New("connection reset by peer")
		}
		next := &thing{}
		if err := json.Unmarshal(r.Body, next); err != nil {
			return nil, err
		}
		if why := a.refuse(next); why != nil {
			body, err := json.Marshal(why.ErrStatus)
			return &kube.Response{Code: int(why.ErrStatus.Code), Body: body}, err
		}
		if next.ResourceVersion != have.ResourceVersion {
			body, err := json.Marshal(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: 409})
			return &kube.Response{Code: http.StatusConflict, Body: body}, err
		}
		a.version++
		next.ResourceVersion = fmt.Sprint(a.version)
		a.things[name], have = next, next
	}
	return answer(have)
}

// refuse is kube-apiserver's validation of a thing: its rules take no number below 0, and etcd has
// a limit for the sum.
func (a *apiserver) refuse(o *thing) *apierrors.StatusError {
	sum := 0
	for _, n := range o.Status {
		if sum += n; n < 0 {
			a.refusals++
			return apierrors.NewInvalid(schema.GroupKind{Group: things.Group, Kind: "Thing"}, o.Name, nil)
		}
	}
	if a.most > 0 && sum > a.most {
		a.refusals++
		return apierrors.NewInternalError(errors.New("etcdserver: request is too large"))
	}
	return nil
}

// session is a node's. A stalled one takes no answer.
type session struct {
	hubtest.Session
	stalled bool
	mux     *message.Mux
	cancel  context.CancelFunc
	ended   chan error
}

func (s *session) Send(ctx context.Context, m message.Message) error {
	if s.stalled {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Session.Send(ctx, m)
}

func connect(t *testing.T, api *apiserver, a *reports.Aggregator, node string, epoch uint64, stalled bool) *session {
	api.mu.Lock()
	api.epochs[node] = epoch
	api.mu.Unlock()
	s := &session{Session: hubtest.Session{Name: types.NodeName(node), Number: epoch}, stalled: stalled, mux: message.NewMux(), ended: make(chan error, 1)}
	service := a.Attach(s, s.mux)
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	go func() { s.ended <- cloudhub.Serve(ctx, service) }()
	synctest.Wait()
	return s
}

func (s *session) report(t *testing.T, id uint64, name string, n int) error {
	return s.mux.Dispatch(t.Context(), topic.ReportWrite.New(message.Resource{}, &topicpb.Write{
		Id: id, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: things.Group, Version: things.Version, Resource: things.Resource},
		Name: name, Subresource: "status", Body: fmt.Append(nil, n),
	}))
}

func start(t *testing.T, names ...string) (*apiserver, *reports.Aggregator) {
	api := &apiserver{things: map[string]*thing{}, epochs: map[string]uint64{}}
	for _, name := range names {
		api.things[name] = &thing{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "0"}}
	}
	a := reports.New(api, kind())
	run(t, a)
	return api, a
}

func run(t *testing.T, a *reports.Aggregator) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// An Aggregator that is made starts no goroutine, and writes the reports that came before Run.
func TestReportBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiserver{things: map[string]*thing{"one": {ObjectMeta: metav1.ObjectMeta{Name: "one", ResourceVersion: "0"}}}, epochs: map[string]uint64{}}
		a := reports.New(api, kind())
		s := connect(t, api, a, "edge-1", 1, false)
		if err := s.report(t, 1, "one", 5); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if api.writes != 0 {
			t.Errorf("%d writes before Run", api.writes)
		}
		run(t, a)
		time.Sleep(time.Minute)
		if api.writes != 1 {
			t.Errorf("%d writes after Run, want 1", api.writes)
		}
		s.cancel()
		<-s.ended
	})
}

// Scenario 4 of the hostile devices: devices that report and never read, more of them than there
// are workers, and 200 others. The others' reports are written and answered as soon as without
// them.
func TestStalledReadersHoldUpNoReport(t *testing.T) {
	took := func(stalled int) (d time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			names := []string{"shared"}
			for i := range 200 {
				names = append(names, fmt.Sprintf("thing%d", i))
			}
			api, a := start(t, names...)
			for i := range stalled {
				s := connect(t, api, a, fmt.Sprintf("bad%d", i), 1, true)
				for id := range uint64(50) {
					if err := s.report(t, id, names[int(id)%len(names)], 1); err != nil {
						t.Fatal(err)
					}
					if err := s.report(t, 100+id, fmt.Sprintf("made-up-%d-%d", i, id), 1); err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(time.Minute)
			began := time.Now()
			good := make([]*session, 200)
			for i := range good {
				good[i] = connect(t, api, a, fmt.Sprintf("good%d", i), 1, false)
				for id, name := range []string{"shared", fmt.Sprintf("thing%d", i)} {
					if err := good[i].report(t, uint64(id), name, i+1); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, s := range good {
				for s.Answered() < 2 {
					if time.Since(began) > time.Hour {
						t.Fatalf("node %s got %d answers in an hour", s.Name, s.Answered())
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			d = time.Since(began)
			for i, s := range good {
				api.mu.Lock()
				if got := api.things["shared"].Status[string(s.Name)]; got != i+1 {
					t.Errorf("%s is said to have %d", s.Name, got)
				}
				api.mu.Unlock()
			}
		})
		return d
	}
	// By the test's own clock, which only moves when all wait: no machine is too busy for that.
	alone, beside := took(0), took(8)
	if beside > 2*alone {
		t.Errorf("200 devices took %v beside stalled ones, and %v alone", beside, alone)
	}
}

// A device that doesn't read can't make more than its own bound wait.
func TestASessionsReportsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, a := start(t)
		s := connect(t, api, a, "bad", 1, true)
		var err error
		n := 0
		for ; err == nil && n < 10_000; n++ {
			err = s.report(t, uint64(n), fmt.Sprintf("made-up-%d", n), 1)
		}
		if err == nil || n > 300 {
			t.Errorf("%d reports without an answer: %v", n, err)
		}
	})
}

// The cost of a fence: one read of a Lease for a session that is new to an object, no read after
// that while no other writer comes between.
func TestTheFenceReadsOnceASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, a := start(t, "one")
		s := connect(t, api, a, "edge1", 1, false)
		for i := range 20 {
			if err := s.report(t, uint64(i), "one", i+1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if s.Answered() != 20 || api.reads != 1 {
			t.Errorf("%d answers, %d reads of Leases", s.Answered(), api.reads)
		}
	})
}

// known is cloudcore's cache of things: those that kube-apiserver had when it was made.
type known struct{ names []string }

func (k known) HasSynced() bool { return true }

func (k known) Get(key kube.Key) *kube.Object {
	if slices.Contains(k.names, key.Name) {
		return &kube.Object{}
	}
	return nil
}

// A device that reports about names that it made up has kube-apiserver asked about few of them: the
// others are answered 429. Reports about things that exist are written in the meantime, and so is
// one about a thing that a late watch doesn't show yet.
func TestReportsAboutMadeUpNamesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, a := start(t, "old", "new")
		a.Know(things, known{[]string{"old"}})
		s := connect(t, api, a, "bad", 1, false)
		if err := s.report(t, 1, "new", 7); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		id := uint64(1)
		for range 60 {
			for range 100 {
				id++
				if err := s.report(t, id, fmt.Sprint("made-up-", id), 1); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		id++
		if err := s.report(t, id, "old", 8); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.missed > 100 {
			t.Errorf("kube-apiserver was asked about %d made-up names of 6,000", api.missed)
		}
		if got := []int{api.things["new"].Status["bad"], api.things["old"].Status["bad"]}; !slices.Equal(got, []int{7, 8}) {
			t.Errorf("of things that exist: %v", got)
		}
		if got := s.Answered(); got != int(id) {
			t.Errorf("%d of %d reports were answered", got, id)
		}
		if s.Charged() < 500*time.Second { // 59 of each 60 are refused
			t.Errorf("6,000 made-up names were charged with %v: the link would be read on", s.Charged())
		}
	})
}

// A device's report of an object that the cluster refuses, or that makes the object too large, is
// refused, and the reports of the others are written.
func TestARefusedReportKeepsNoOtherBack(t *testing.T) {
	for name, c := range map[string]struct {
		bad   int
		lossy bool // kube-apiserver doesn't answer each third write
	}{
		"against the object's rules": {bad: -1}, "above etcd's bound": {bad: 1000}, "by a kube-apiserver that fails": {bad: -1, lossy: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, a := start(t, "shared")
				const honest = 60
				api.most, api.lossy = 100, c.lossy
				var all []*session
				for i := range honest + 2 {
					all = append(all, connect(t, api, a, fmt.Sprint("n", i), 1, false))
				}
				for round := range 3 {
					for i, s := range all {
						n := 1
						if i%40 == 7 {
							n = c.bad
						}
						if err := s.report(t, uint64(round+1), "shared", n); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Minute)
				}
				for i, s := range all {
					for id := range uint64(3) {
						if r := s.Result(id + 1); r != nil && r.Accepted == (i%40 == 7) {
							t.Errorf("report %d of %s was accepted: %v", id+1, s.Name, r.Accepted)
						}
					}
					if s.Answered() != 3 {
						t.Errorf("%d of 3 reports of %s were answered", s.Answered(), s.Name)
					}
				}
				api.mu.Lock()
				defer api.mu.Unlock()
				if got := len(api.things["shared"].Status); got != honest {
					t.Errorf("%d reports were written, want %d", got, honest)
				}
				if api.refusals > 150 {
					t.Errorf("%d writes were refused for 6 reports", api.refusals)
				}
			})
		})
	}
}

func TestShort(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0123456789": "0123456789", "0123456789a": "0123456789 ...", "\u00e9\u00e9\u00e9\u00e9\u00e9": "\u00e9\u00e9\u00e9\u00e9\u00e9",
		"\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9": "\u00e9\u00e9\u00e9\u00e9\u00e9 ...", "<<": "< ...", "\xff\xff": "\xff ...", `""""""`: `""""" ...`,
	} {
		if got := reports.Short(text, 10); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
