package metamanager_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

func TestNothingChangedNothingSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		for i := range 20 {
			c.set(ref("pods", "default", fmt.Sprint(i)), pod())
		}
		c.link()
		e.holdPods()
		c.mu.Lock()
		sent := c.sentObjects
		c.mu.Unlock()
		c.cut()
		e.restart()
		c.link()
		synctest.Wait()
		if c.sentObjects != sent || len(c.compared) > 0 {
			t.Errorf("%d objects sent again, compared %v", c.sentObjects-sent, c.compared)
		}
		c.cut()
		c.delete(ref("pods", "default", "3"))
		c.set(ref("pods", "default", "4"), pod())
		c.link()
		synctest.Wait()
		if c.sentObjects != sent+1 || len(c.compared) != 1 {
			t.Errorf("%d objects sent again, compared %v; want one of pods", c.sentObjects-sent, c.compared)
		}
		if _, err := e.Get(t.Context(), ref("pods", "default", "3"), metamanager.Caller{Kubelet: true}); !apierrors.IsNotFound(err) {
			t.Errorf("a pod that was deleted meanwhile: %v", err)
		}
	})
}

// A cloud that has lost its record of an edge's objects sends newer objects and the digests that it
// expects of the edge afterwards.
func TestWhatTheCloudExpects(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*cloud)
		sent      int
		surprised []string
	}{
		"it is right": {func(c *cloud) { c.set(ref("pods", "default", "4"), pod()); c.set(ref("pods", "default", "new"), pod()) }, 2, nil},
		"a pod that it does not know of": {
			func(c *cloud) { c.set(ref("pods", "default", "4"), pod()); c.delete(ref("pods", "default", "3")) }, 1, []string{"pods"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newCloud(t)
				c.guess = true
				e := newEdge(t, c, metamanager.Config{})
				for i := range 20 {
					c.set(ref("pods", "default", fmt.Sprint(i)), pod())
				}
				c.link()
				e.holdPods()
				c.cut()
				before := c.sentObjects
				test.meanwhile(c)
				e.restart()
				c.link()
				synctest.Wait()
				if c.sentObjects != before+test.sent || !slices.Equal(c.surprised, test.surprised) || len(c.compared) > 0 {
					t.Errorf("%d objects sent, surprised: %v, compared: %v; want %d, %v and none", c.sentObjects-before, c.surprised, c.compared, test.sent, test.surprised)
				}
				items, _, err := e.List(t.Context(), ownPods(), metamanager.ListOptions{FromReflector: true})
				if err != nil || len(items) != len(c.wanted()) {
					t.Errorf("%d pods, %v; want %d", len(items), err, len(c.wanted()))
				}
			})
		})
	}
}

// A set that a mistaken cloud marks as synced is not synced: no client is shown a set that isn't
// known to be complete.
func TestAMistakenCloudSyncsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{Limits: metamanager.Limits{SyncWait: time.Second}})
		c.link()
		synctest.Wait()
		c.mu.Lock()
		c.quiet = true
		sequence := c.sequence
		c.mu.Unlock()
		services := selection("services")
		list := func() error {
			_, _, err := e.List(t.Context(), services, metamanager.ListOptions{FromReflector: true})
			return err
		}
		if err := list(); retryAfter(err) == 0 {
			t.Fatalf("a set that never came: %v", err)
		}
		resource := &topicpb.Resource{Version: "v1", Resource: "services"}
		say := func(count uint64, id uint64) {
			sequence++
			c.mu.Lock()
			c.down(topic.State.New(message.Resource{}, &topicpb.State{
				Sequence: sequence, Expected: []*topicpb.Digest{{Resource: resource, Count: count, Sum: make([]byte, 16)}}, Synced: []uint64{id},
			}))
			c.mu.Unlock()
			synctest.Wait()
		}
		var id uint64
		synctest.Wait()
		c.mu.Lock()
		for _, i := range c.interests {
			if i.Resource.GetResource() == "services" {
				id = i.Id
			}
		}
		c.mu.Unlock()
		say(1, id)
		if err := list(); retryAfter(err) == 0 {
			t.Errorf("a set of which something is missing: %v", err)
		}
		c.mu.Lock()
		if !slices.Equal(c.surprised, []string{"services"}) {
			t.Errorf("mismatches reported: %v, want services", c.surprised)
		}
		c.mu.Unlock()
		say(0, id)
		if err := list(); err != nil {
			t.Errorf("a set that is as expected: %v", err)
		}
	})
}
