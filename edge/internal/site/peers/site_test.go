package peers_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// disk is a memory that can be full.
type disk struct {
	kept map[string][]byte
	full bool
}

func (d *disk) Load() (map[string][]byte, error) { return d.kept, nil }

func (d *disk) Save(_ context.Context, changes map[string][]byte) error {
	if d.full {
		return store.ErrFull
	}
	maps.Copy(d.kept, changes)
	return nil
}

// A Site that the disk has no room for is used, and the next edgecore does not begin with it: the
// Holder reports that. It is kept when there is room, also in a later session.
func TestHolder_fullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{kept: map[string][]byte{}}
		h := peers.New("edge1", d)
		// session opens one; the first result makes the cloud describe a Site in it.
		session := func() (says func(name string), end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			handle, run := h.Attach(linkstate.Link{}, func(context.Context, message.Message) error { return nil })
			go run(ctx)
			return func(name string) {
				p := &topicpb.Site{Name: name, Members: []*topicpb.SiteMember{{Node: "edge1"}}}
				if err := handle(ctx, topic.Site.New(message.Resource{Name: "edge1"}, p)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}, cancel
		}
		expect := func(when, current, kept string) {
			t.Helper()
			if c, k := h.Current(), h.Kept(); c == nil || k == nil || c.Name != current || k.Name != kept {
				t.Errorf("%s: current %+v, kept %+v; want %s and %s", when, c, k, current, kept)
			}
			next := peers.New("edge1", d)
			if err := next.Load(); err != nil {
				t.Fatal(err)
			}
			if n := next.Current(); n == nil || n.Name != kept || next.Kept() != n {
				t.Errorf("%s: the next edgecore begins with %+v, want %s", when, n, kept)
			}
		}
		says, end := session()
		says("one")
		expect("with room", "one", "one")
		d.full = true
		says("two")
		says("three")
		expect("without room", "three", "one")
		end()
		time.Sleep(time.Hour)
		says, end = session()
		defer end()
		changed := h.Changed()
		d.full = false
		time.Sleep(time.Minute)
		synctest.Wait()
		expect("with room again", "three", "three")
		select {
		case <-changed:
		default:
			t.Error("nobody heard that it is kept now")
		}
		says("four")
		expect("afterwards", "four", "four")
	})
}
