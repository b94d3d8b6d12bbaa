package cloudhub_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// nodes are those with an open session.
func (b *bench) nodes() (all []string) {
	synctest.Wait()
	for _, s := range b.hub.Sessions() {
		all = append(all, string(s.Node))
	}
	return all
}

func TestHub_EndsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{}, part{attach: func(s cloudhub.Session, mux *message.Mux) {
			message.Handle(mux, topic.EventWrite, func(context.Context, message.Message, *topicpb.Write) error {
				s.Charge(time.Hour)
				return nil
			})
		}})
		edges := map[string]*edge{}
		for _, node := range []string{"owes", "logs", "a", "b", "c"} {
			edges[node] = b.open(node, 1)
			go edges[node].beat()
			time.Sleep(10 * time.Second)
		}
		time.Sleep(2 * time.Minute)
		edges["young"] = b.open("young", 1)
		edges["owes"].send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1})) // its link is not read now
		busy := func(node types.NodeName) bool { return node == "logs" }
		for _, c := range []struct {
			n, ended int
			left     []string
		}{
			{2, 2, []string{"c", "logs", "owes", "young"}},
			{0, 0, []string{"c", "logs", "owes", "young"}},
			{1, 1, []string{"logs", "owes", "young"}},
			{9, 1, []string{"owes", "young"}},
			{9, 0, []string{"owes", "young"}},
		} {
			before := b.nodes()
			if got := b.hub.EndOldest(c.n, 2*time.Minute, busy, "another replica has room"); got != c.ended {
				t.Errorf("%d were ended of %v, want %d", got, before, c.ended)
			}
			if diff := cmp.Diff(c.left, b.nodes()); diff != "" {
				t.Errorf("%d of %v (-want +got):\n%s", c.n, before, diff)
			}
			if got := b.hub.Len(); got != len(c.left) {
				t.Errorf("%d places are taken, want %d", got, len(c.left))
			}
		}
		if end := edges["a"].ended(); end.Code != link.CloseShutdown || end.Reason != "another replica has room" {
			t.Errorf("ended with %v", end)
		}
	})
}

// A device that finds no place where another replica has one need not wait.
func TestHub_Full_SendsToAnotherReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere := false
		b := newBench(t, cloudhub.Config{MaxSessions: 3, Elsewhere: func() bool { return elsewhere }})
		for i := range 3 {
			b.open(fmt.Sprintf("edge-%d", i), 1)
		}
		for _, c := range []struct {
			elsewhere bool
			code      link.CloseCode
			reason    string
		}{{false, link.CloseOverloaded, "retry-after="}, {true, link.CloseShutdown, "all 3 sessions are taken, and another replica has room"}} {
			elsewhere = c.elsewhere
			e := b.dial("another")
			e.hello(1)
			if end := e.ended(); end.Code != c.code || !strings.HasPrefix(end.Reason, c.reason) {
				t.Errorf("room elsewhere %v: refused with %v", c.elsewhere, end)
			}
		}
		b.open("edge-1", 2) // one that has a place keeps it
		if got := b.nodes(); !slices.Equal(got, []string{"edge-0", "edge-1", "edge-2"}) {
			t.Errorf("sessions: %v", got)
		}
	})
}
