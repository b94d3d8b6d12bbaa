package edgehub_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
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
