package cloudhub_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// A session uses the highest version that both ends support, and no feature that the node did not
// list.
func TestHub_SpeaksTheHighestCommonProtocol(t *testing.T) {
	many := strings.Fields(strings.Repeat("x ", protocol.MaxFeatures+1))
	for name, c := range map[string]struct {
		ours     protocol.Window // empty: this release's
		hello    *topicpb.Hello
		want     uint32 // 0: refused
		code     link.CloseCode
		reason   string
		supports []string
	}{
		"the same":               {hello: &topicpb.Hello{Protocol: protocol.Current}, want: protocol.Current},
		"a newer edge":           {ours: protocol.Window{Min: 2, Max: 3}, hello: &topicpb.Hello{Protocol: 4, ProtocolMin: 3}, want: 3},
		"an older edge":          {ours: protocol.Window{Min: 2, Max: 3}, hello: &topicpb.Hello{Protocol: 2}, want: 2},
		"too old":                {ours: protocol.Window{Min: 3, Max: 4}, hello: &topicpb.Hello{Protocol: 2}, code: link.CloseVersion, reason: "speaks protocol 3 to 4, edgecore  speaks 2"},
		"too new":                {ours: protocol.Window{Min: 2, Max: 3}, hello: &topicpb.Hello{Protocol: 5, ProtocolMin: 4}, code: link.CloseVersion, reason: "speaks 4 to 5"},
		"a window from above":    {hello: &topicpb.Hello{Protocol: 2, ProtocolMin: 3}, code: link.CloseVersion},
		"features":               {hello: &topicpb.Hello{Protocol: 2, Features: []string{"later", "streams"}}, want: 2, supports: []string{"later", "streams"}},
		"a feature of no name":   {hello: &topicpb.Hello{Protocol: 2, Features: []string{"a\nb"}}, code: link.CloseProtocol, reason: "is no name of a feature"},
		"too many features":      {hello: &topicpb.Hello{Protocol: 2, Features: many}, code: link.CloseProtocol, reason: "at most 64"},
		"as many as are allowed": {hello: &topicpb.Hello{Protocol: 2, Features: many[1:]}, want: 2, supports: []string{"x"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, cloudhub.Config{Protocols: c.ours, Streams: true})
				e := b.dial("edge-1")
				c.hello.Epoch = 1
				e.send(topic.Hello.New(message.Resource{}, c.hello))
				if c.want == 0 {
					if end := e.ended(); end.Code != c.code || !strings.Contains(end.Reason, c.reason) {
						t.Errorf("ended with %v, want %d with %q", end, c.code, c.reason)
					}
					return
				}
				welcome := e.welcomed()
				if welcome.GetProtocol() != c.want || strings.Join(welcome.GetFeatures(), " ") != protocol.FeatureStreams {
					t.Errorf("welcome is %v, want protocol %d", welcome, c.want)
				}
				synctest.Wait()
				s, ok := b.hub.Session("edge-1")
				if !ok || s.Supports("unlisted") {
					t.Fatalf("session: %v, supports a feature that was not listed", ok)
				}
				for _, f := range c.supports {
					if !s.Supports(f) {
						t.Errorf("%s was listed", f)
					}
				}
			})
		})
	}
}

// A node without a common version gets a rescue session if it supports one: heartbeats are
// answered, the parts are those of the rescue, and for everybody else the node has no session.
func TestHub_RescueSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attached []string
		note := func(name string) part {
			return part{attach: func(cloudhub.Session, *message.Mux) { attached = append(attached, name) }}
		}
		b := newBench(t, cloudhub.Config{Protocols: protocol.Window{Min: 4, Max: 5}, Rescue: []cloudhub.Part{note("rescue")}}, note("ordinary"))
		hello := &topicpb.Hello{Protocol: 2, Epoch: 1, Features: []string{protocol.FeatureRescue}}
		e := b.dial("edge-1")
		e.send(topic.Hello.New(message.Resource{}, hello))
		welcome := e.welcomed()
		if welcome.GetProtocol() != protocol.Rescue || !welcome.GetStreams() || strings.Join(welcome.GetFeatures(), " ") != protocol.FeatureRescue || welcome.GetHistory() != "" {
			t.Errorf("welcome is %v", welcome)
		}
		if _, ok := b.hub.Session("edge-1"); ok || strings.Join(attached, " ") != "rescue" {
			t.Errorf("a session for others: %v; parts %v", ok, attached)
		}
		if all := b.hub.Sessions(); len(all) != 1 || !all[0].Rescue {
			t.Errorf("sessions are %+v", all)
		}
		if !b.hub.Linked("edge-1") || b.hub.Linked("edge-2") {
			t.Error("another device can take its name")
		}
		if peer, ok := b.hub.Peer("edge-1"); !ok || peer == nil {
			t.Error("a revoked certificate is not found")
		}
		e.heartbeat(1, true)
		if m := e.receive(); m.Key() != topic.HeartbeatAnswer.Key() {
			t.Errorf("a heartbeat is answered by %s", m.Key())
		}
		e.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{}))
		if end := e.ended(); end.Code != link.CloseProtocol {
			t.Errorf("an event ended it with %v", end)
		}

		hello.Epoch, hello.Features = 2, nil
		e = b.dial("edge-1")
		e.send(topic.Hello.New(message.Resource{}, hello))
		if end := e.ended(); end.Code != link.CloseVersion {
			t.Errorf("a node that supports no rescue: %v", end)
		}
		attached = nil
		e = b.dial("edge-1")
		e.send(topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: 5, ProtocolMin: 4, Epoch: 3, Features: []string{protocol.FeatureRescue}}))
		if welcome := e.welcomed(); welcome.GetProtocol() != 5 || strings.Join(attached, " ") != "ordinary" {
			t.Errorf("with a common version: %v, parts %v", welcome, attached)
		}
	})
}
