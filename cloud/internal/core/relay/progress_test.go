package relay_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Whatever cycle kube-apiserver's failures come in, each request that it does answer advances a
// write: one of three requests gets through where every second one fails.
func TestFaultsOnACycle(t *testing.T) {
	const pods, events = 8, 20
	for _, faults := range []string{"refuse", "lose", "break", "all"} {
		for _, every := range []int{2, 3, 4, 5} {
			t.Run(fmt.Sprintf("%s every %d", faults, every), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newSystem(t)
					for i := range pods {
						w.addPod(fmt.Sprintf("p%d", i), "edge1", fmt.Sprintf("u%d", i))
					}
					e := w.connect("edge1", 1)
					failOnACycle(w.api, faults, every)
					for i := range pods * events {
						pod := i % pods
						wr := event(uint64(2*i+1), topicpb.Verb_CREATE, fmt.Sprintf("p%d.%d", pod, i/pods), podRef(fmt.Sprintf("p%d", pod), fmt.Sprintf("u%d", pod)), 1)
						wr.Uid = fmt.Sprintf("u%d", pod)
						e.send(topic.EventWrite.New(message.Resource{}, wr))
						again := event(uint64(2*i+2), topicpb.Verb_PATCH, wr.Name, podRef(fmt.Sprintf("p%d", pod), wr.Uid), 2)
						again.Uid = wr.Uid
						e.send(topic.EventWrite.New(message.Resource{}, again))
					}
					start, answered := time.Now(), 0
					for answered < 2*pods*events && time.Since(start) < 20*time.Minute {
						time.Sleep(time.Second)
						for _, r := range e.takeResults() {
							if !strings.HasSuffix(r, " accepted") {
								t.Error(r)
							}
							answered++
						}
					}
					want(t, "answered", answered, 2*pods*events)
					t.Logf("after %v, %d requests", time.Since(start), len(w.api.calls))
				})
			})
		}
	}
}

// failOnACycle lets every request of a number fail that a node makes, or cloudcore for its Lease.
func failOnACycle(api *apiserver, faults string, every int) {
	n, met := 0, 0
	api.mu.Lock()
	defer api.mu.Unlock()
	api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
		api.mu.Lock()
		defer api.mu.Unlock()
		if n++; n%every != 0 {
			return nil, nil
		}
		kind := faults
		if met++; kind == "all" {
			kind = [...]string{"refuse", "lose", "break"}[met%3]
		}
		switch kind {
		case "refuse":
			return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "no"), nil
		case "lose":
			api.serve(r)
		}
		return nil, errors.New("connection reset by peer")
	}
}

// A kube-apiserver that answers reads and fails each write, as with a full etcd, is asked ever less
// often: to read again that an event is gone is no progress.
func TestClaims_38_ReadsAloneAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		w.addPod("p", "edge1", "u")
		e := w.connect("edge1", 1)
		posts := 0
		w.api.mu.Lock()
		w.api.fail = func(_ kube.Identity, r kube.Request) (*kube.Response, error) {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.Path, "/events") {
				return nil, nil
			}
			posts++
			return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "database space exceeded"), nil
		}
		w.api.mu.Unlock()
		e.send(topic.EventWrite.New(message.Resource{}, event(1, topicpb.Verb_PATCH, "p.1", podRef("p", "u"), 2)))
		time.Sleep(10 * time.Minute)
		if posts < 30 || posts > 150 {
			t.Errorf("%d attempts in 10 minutes", posts)
		}
		w.api.mu.Lock()
		w.api.fail = nil
		w.api.mu.Unlock()
		time.Sleep(time.Minute)
		want(t, "results", fmt.Sprint(e.takeResults()), "[1 accepted]")
	})
}
