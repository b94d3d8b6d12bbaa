package linktest_test

import (
	"net"
	"sync/atomic"
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

func TestPipe_RefusesWhatIsNoLink(t *testing.T) { linktest.TestWire(t, linktest.PipeWire) }

// An idle link sends in an hour: one sign of life from the edge each interval, and half as many
// from the cloud.
func TestPipe_IdleCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up, down counter
		linktest.Pipe(t, linktest.PipeOptions{
			WrapEdge:  func(c net.Conn) net.Conn { return up.wrap(c) },
			WrapCloud: func(c net.Conn) net.Conn { return down.wrap(c) },
		})
		time.Sleep(time.Hour)
		if up, down := up.writes.Load(), down.writes.Load(); up > 360 || down > 180 || down < 120 {
			t.Errorf("%d writes up and %d down in an hour, want at most 360 and 180", up, down)
		}
	})
}

type counter struct{ writes atomic.Int64 }

func (c *counter) wrap(conn net.Conn) net.Conn { return counted{conn, c} }

type counted struct {
	net.Conn
	counter *counter
}

func (c counted) Write(b []byte) (int, error) {
	c.counter.writes.Add(1)
	return c.Conn.Write(b)
}

// Heartbeats replace keepalives, and each other while they wait.
func TestPipe_LatestWins(t *testing.T) {
	network := &linktest.Network{}
	edge, cloud := linktest.Pipe(t, linktest.PipeOptions{WrapEdge: network.Conn})
	network.Hold()
	for sequence := range uint64(50) {
		if err := edge.Send(t.Context(), topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: sequence})); err != nil {
			t.Fatal(err)
		}
	}
	network.Release()
	var came int
	for {
		m, err := cloud.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		came++
		if m.Content.(*topicpb.Heartbeat).Sequence == 49 {
			break
		}
	}
	if came > 3 {
		t.Errorf("%d heartbeats came", came)
	}
}
