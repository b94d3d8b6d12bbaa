package edgehub_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// The hello states the window; a welcome from within it opens the session, another does not.
func TestHub_TakesAWelcomeFromWithinItsWindow(t *testing.T) {
	ours := protocol.Window{Min: 2, Max: 3}
	for name, c := range map[string]struct {
		welcome *topicpb.Welcome
		code    link.CloseCode // 0: it opens
		streams bool
	}{
		"the newest":           {welcome: &topicpb.Welcome{Protocol: 3}},
		"an older cloud":       {welcome: &topicpb.Welcome{Protocol: 2, Streams: true}, streams: true},
		"streams as a feature": {welcome: &topicpb.Welcome{Protocol: 3, Features: []string{"later", protocol.FeatureStreams}}, streams: true},
		"newer":                {welcome: &topicpb.Welcome{Protocol: 4}, code: link.CloseVersion},
		"older":                {welcome: &topicpb.Welcome{Protocol: 1}, code: link.CloseVersion},
		"a feature of no name": {welcome: &topicpb.Welcome{Protocol: 3, Features: []string{""}}, code: link.CloseProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(config *edgehub.Config) { config.Protocols = ours })
				cloud := b.cloud()
				m := cloud.receive()
				hello, err := topic.Hello.Content(m)
				if err != nil || protocol.Stated(hello.GetProtocol(), hello.GetProtocolMin()) != ours {
					t.Errorf("hello is %v, %v", hello, err)
				}
				cloud.send(m.Answer(c.welcome))
				if c.code != 0 {
					if end := cloud.ended(); end.Code != c.code || strings.TrimSpace(end.Reason) == "" {
						t.Errorf("ended with %v, want %d", end, c.code)
					}
					return
				}
				if up := b.up(); up.Streams != c.streams {
					t.Errorf("streams: %v", up.Streams)
				}
			})
		})
	}
}

// attachments counts the sessions that a part is attached to.
type attachments int

func (n *attachments) Attach(linkstate.Link, func(context.Context, message.Message) error) (
	handle func(context.Context, message.Message) error, run func(context.Context)) {
	*n++
	return func(context.Context, message.Message) error { return nil }, func(context.Context) {}
}

// A cloud without a common version may offer a rescue session: the device lists that it supports
// it, no module gets a link, and only streams and heartbeats are accepted.
func TestHub_RescueSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open []bool
		var attached [2]attachments
		b := newBench(t, func(config *edgehub.Config) {
			config.Protocols, config.RescueFor = protocol.Window{Min: 1, Max: 1}, 10*time.Minute
			config.Rescued = func(is bool) { open = append(open, is) }
			config.Parts = map[message.Kind]edgehub.Part{topic.KindStream: &attached[0], topic.KindSite: &attached[1]}
		})
		offer := func() *cloud {
			t.Helper()
			cloud := b.cloud()
			m := cloud.receive()
			if hello, err := topic.Hello.Content(m); err != nil || !slices.Contains(hello.GetFeatures(), protocol.FeatureRescue) {
				t.Errorf("hello is %v, %v", hello, err)
			}
			cloud.send(m.Answer(&topicpb.Welcome{Protocol: protocol.Rescue, Version: "v9.0.0", Streams: true, Features: []string{protocol.FeatureRescue}}))
			cloud.heartbeat()
			return cloud
		}
		cloud := offer()
		synctest.Wait()
		if s := b.hub.Status(); s.Linked || !s.Rescue || !strings.Contains(s.Problem, "v9.0.0") || !slices.Equal(open, []bool{true}) {
			t.Errorf("status is %+v, open was %v", s, open)
		}
		cloud.send(topic.State.New(message.Resource{}, &topicpb.State{}))
		if end := cloud.ended(); end.Code != link.CloseProtocol {
			t.Errorf("a state ended it with %v", end)
		}
		cloud = offer()
		began := time.Now()
		cloud.keep(t.Context())
		if end, lasted := cloud.ended(), time.Since(began); end.Code != link.CloseShutdown || lasted != 10*time.Minute {
			t.Errorf("it ended after %v with %v", lasted, end)
		}
		// The next cloud has a version in common.
		cloud = b.cloud()
		m := cloud.receive()
		cloud.send(m.Answer(&topicpb.Welcome{Protocol: 1}))
		b.up()
		if attached != [2]attachments{3, 1} {
			t.Errorf("streams and the site were attached to %v of three sessions", attached)
		}
		if s := b.hub.Status(); !s.Linked || s.Rescue || s.Problem != "" || !slices.Equal(open, []bool{true, false, true, false}) {
			t.Errorf("status is %+v, open was %v", s, open)
		}
	})
}
