package kube_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// inProcess is a way to a handler without a network, so that time can be a test's own.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	body, w := io.Pipe()
	answer := &pipedAnswer{header: http.Header{}, body: w, begun: make(chan int, 1)}
	go func() {
		p.ServeHTTP(answer, r)
		answer.WriteHeader(http.StatusOK)
		w.Close()
	}()
	select {
	case code := <-answer.begun:
		stop := context.AfterFunc(r.Context(), func() { body.CloseWithError(r.Context().Err()) })
		return &http.Response{StatusCode: code, Header: answer.header, Body: &stoppedBody{body, stop}, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
	case <-r.Context().Done():
		body.CloseWithError(r.Context().Err())
		return nil, r.Context().Err()
	}
}

type stoppedBody struct {
	io.ReadCloser
	stop func() bool
}

func (b *stoppedBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

type pipedAnswer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan int
}

func (a *pipedAnswer) Header() http.Header  { return a.header }
func (a *pipedAnswer) Flush()               {}
func (a *pipedAnswer) WriteHeader(code int) { a.once.Do(func() { a.begun <- code }) }
func (a *pipedAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// troubled is an apiserver whose reviews and reads can be made to go wrong.
type troubled struct {
	*apiserver
	mu     sync.Mutex
	review *authorizationv1.SubjectAccessReviewStatus // the answer of every review; nil: that of forbid
	hang   func(*http.Request) bool
}

func (a *troubled) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	review, hang := a.review, a.hang != nil && a.hang(r)
	a.mu.Unlock()
	switch {
	case hang:
		<-r.Context().Done()
	case review != nil && strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		answer := authorizationv1.SubjectAccessReview{Status: *review}
		answer.Kind, answer.APIVersion = "SubjectAccessReview", "authorization.k8s.io/v1"
		reply(w, 201, &answer)
	default:
		a.apiserver.ServeHTTP(w, r)
	}
}

func (a *troubled) say(review *authorizationv1.SubjectAccessReviewStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.review = review
}

func (a *troubled) hold(hang func(*http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hang = hang
}

// runObjectWatches runs them at a troubled apiserver until the returned function is called.
func runObjectWatches(t *testing.T) (*troubled, *kube.ObjectWatches, func()) {
	t.Helper()
	a := &troubled{apiserver: &apiserver{
		Server: &httptest.Server{URL: "http://apiserver.test"}, objects: newObjects(), version: 100, watchers: map[int]*watcher{}, forbidden: map[string]bool{},
	}}
	config := &rest.Config{Host: a.URL, Transport: inProcess{a}}
	client, err := kube.NewClient(config, kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	plain := client.Config()
	plain.ContentType, plain.AcceptContentTypes = "application/json", "application/json"
	w, err := kube.NewObjectWatches(client, kube.NewAccess(kubernetes.NewForConfigOrDie(plain)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	synctest.Wait()
	return a, w, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A single refusal by a review revokes no permission, nor does an authorizer that fails. Refusals
// must last, and a read as the node must be refused as well before an object that its pods need is
// withdrawn.
func TestRefusalsMustLast(t *testing.T) {
	no := &authorizationv1.SubjectAccessReviewStatus{Reason: "said the test"}
	failed := &authorizationv1.SubjectAccessReviewStatus{EvaluationError: "the authorizer's webhook is away"}
	const recheck = 6 * time.Minute // after which every node has been asked about again
	for name, test := range map[string]struct {
		review *authorizationv1.SubjectAccessReviewStatus
		last   time.Duration
		reads  bool // refused as well
		goes   bool
	}{
		"20 s":                          {no, 20 * time.Second, true, false},
		"long, by reviews alone":        {no, recheck, false, false},
		"long, by reads as well":        {no, recheck, true, true},
		"the authorizer fails for long": {failed, recheck, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w, stop := runObjectWatches(t)
				defer stop()
				a.set("cm", "1")
				var one, two seen
				defer w.Watch(ref("cm"), "edge1", one.changed).Cancel()
				time.Sleep(time.Second)
				defer w.Watch(ref("cm"), "edge2", two.changed).Cancel()
				time.Sleep(time.Second)
				if !two.is("101")() {
					t.Fatal("edge2 has not got the object")
				}
				time.Sleep(5*time.Minute + 18*time.Second) // edge2 is asked about again in 10 s
				a.say(test.review)
				a.forbid("edge2", test.reads)
				time.Sleep(test.last)
				a.say(nil)
				a.forbid("edge2", false)
				synctest.Wait()
				if went := two.is("refused")(); went != test.goes {
					t.Errorf("the object went: %v, want %v", went, test.goes)
				}
				if !one.is("101")() {
					t.Error("the other node lost the object")
				}
				time.Sleep(recheck)
				synctest.Wait()
				if !two.is("101")() {
					t.Error("the object did not come back")
				}
			})
		})
	}
}

// Reviews allow a watch that kube-apiserver then refuses: watches are tried less and less often,
// until one is admitted.
func TestRefusedWatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, stop := runObjectWatches(t)
		defer stop()
		a.set("cm", "1")
		a.say(&authorizationv1.SubjectAccessReviewStatus{Allowed: true})
		a.forbid("edge1", true)
		watches := 0
		a.hold(func(r *http.Request) bool { // called with the lock held
			if r.URL.Query().Get("watch") != "" {
				watches++
			}
			return false
		})
		var one seen
		defer w.Watch(ref("cm"), "edge1", one.changed).Cancel()
		time.Sleep(time.Minute)
		a.mu.Lock()
		n := watches
		a.mu.Unlock()
		if n < 5 || n > 40 { // 9 until the pause is 5 s, at least 2.5 s each then
			t.Errorf("%d watches in a minute", n)
		}
		a.forbid("edge1", false)
		time.Sleep(10 * time.Second)
		if !one.is("101")() {
			t.Error("the object did not come")
		}
	})
}

// A node with a pending CatchUp whose right is in doubt gets the answer when it is granted again: a
// session waits for it, and sends no object of that resource before.
func TestCaughtUpWhileInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, stop := runObjectWatches(t)
		defer stop()
		a.set("cm", "1")
		var one seen
		watch := w.Watch(ref("cm"), "edge1", one.changed)
		defer watch.Cancel()
		time.Sleep(time.Second)
		if !one.is("101")() {
			t.Fatal("the object has not come")
		}
		// The watch ends, and an authorizer that lags refuses the next one. Reads are allowed
		// before reviews.
		a.say(&authorizationv1.SubjectAccessReviewStatus{Reason: "said the test"})
		a.forbid("edge1", true)
		a.mu.Lock()
		for _, v := range a.watchers {
			v.cancel()
		}
		a.mu.Unlock()
		time.Sleep(2 * time.Second)
		watch.CatchUp(500)
		a.hold(func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" })
		a.forbid("edge1", false)
		time.Sleep(15 * time.Second)
		if one.last.CaughtUp {
			t.Fatal("CatchUp is answered before the node may have the object")
		}
		a.say(nil)
		a.hold(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !one.last.CaughtUp || !one.is("101")() {
			t.Errorf("the answer is %+v", one.last)
		}
	})
}

// Reads that hang hold up only their own object, for a time.
func TestHungReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, stop := runObjectWatches(t)
		defer stop()
		a.set("there", "1")
		a.hold(func(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Query().Get("watch") == "" })
		var there, absent seen
		defer w.Watch(ref("absent"), "edge1", absent.changed).Cancel() // only a read can tell
		for range 200 {
			var other seen
			defer w.Watch(ref("absent"), "edge1", other.changed).Cancel()
		}
		time.Sleep(time.Minute)
		defer w.Watch(ref("there"), "edge1", there.changed).Cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		if !there.is("101")() {
			t.Error("reads of another object hold this one up")
		}
		if absent.calls != 0 {
			t.Errorf("received %+v before any read was answered", absent.last)
		}
		a.hold(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !absent.is("absent")() {
			t.Error("the absence was not found once reads were answered")
		}
	})
}
