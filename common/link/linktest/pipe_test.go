package linktest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

func TestPipe_CarriesMessages_AndLivesWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge, cloud := linktest.Pipe(t, linktest.PipeOptions{})
		for range 3 {
			if err := edge.Send(t.Context(), topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: 7})); err != nil {
				t.Fatal(err)
			}
			m, err := cloud.Receive(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			beat, err := topic.Heartbeat.Content(m)
			if err != nil || beat.Sequence != 7 {
				t.Fatal(beat, err)
			}
			time.Sleep(10 * time.Minute)
		}
		if err := edge.Err(); err != nil {
			t.Fatal(err)
		}
		if err := cloud.Close(4001, "a newer one"); err != nil {
			t.Fatal(err)
		}
		<-edge.Done()
		t.Log(edge.Err())
	})
}

func TestPipe_IsALink(t *testing.T) {
	authority := linktest.NewAuthority(t)
	edge, cloud := authority.Node(t, "edge-1").Leaf, authority.Server(t).Leaf
	linktest.TestConn(t, func(t *testing.T, o linktest.PairOptions) linktest.Ends {
		e, c := linktest.Pipe(t, linktest.PipeOptions{Config: o.Edge, Other: o.Cloud, Edge: edge, Cloud: cloud, WrapEdge: o.Network.Conn})
		return linktest.Ends{Edge: e, Cloud: c, EdgeCertificate: edge, CloudCertificate: cloud}
	})
}
