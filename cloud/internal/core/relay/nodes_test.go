package relay_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Each node whose link is here has its series, up to a bound, until its link is gone.
func TestNodesHaveSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		nodes := w.relay.Nodes(1)
		one, two := w.connect("edge1", 5), w.connect("edge2", 5)
		for _, e := range []*edge{one, two} {
			e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true, Backlog: 3, BacklogSeconds: 60, CertificateUnix: 2_000_000_000}))
		}
		time.Sleep(time.Second)
		const want = `
# HELP skerry_node_backlog_writes Writes on the node that kube-apiserver has not accepted, as of its last heartbeat.
# TYPE skerry_node_backlog_writes gauge
skerry_node_backlog_writes{node="edge1"} 3
# HELP skerry_node_certificate_expiration_timestamp_seconds Expiry of the node's certificate, in Unix time.
# TYPE skerry_node_certificate_expiration_timestamp_seconds gauge
skerry_node_certificate_expiration_timestamp_seconds{node="edge1"} 2e+09
# HELP skerry_node_kubelet_alive Whether the node's last heartbeat reported a running kubelet: 1 or 0.
# TYPE skerry_node_kubelet_alive gauge
skerry_node_kubelet_alive{node="edge1"} 1
# HELP skerry_nodes_without_series Nodes above metrics.nodes, which have no series of their own.
# TYPE skerry_nodes_without_series gauge
skerry_nodes_without_series 1
`
		if err := testutil.CollectAndCompare(nodes, strings.NewReader(want), "skerry_node_backlog_writes", "skerry_node_kubelet_alive",
			"skerry_node_certificate_expiration_timestamp_seconds", "skerry_nodes_without_series"); err != nil {
			t.Error(err)
		}
		if wrong, err := testutil.CollectAndLint(nodes); err != nil || len(wrong) > 0 {
			t.Errorf("%v: %v", err, wrong)
		}
		for _, e := range []*edge{one, two} {
			e.cancel()
			<-e.ended
		}
		if n := testutil.CollectAndCount(nodes); n != 2 { // the sessions of one node, as there may be series of one
			t.Errorf("%d series without a link", n)
		}
	})
}

// A node's sessions are counted while it has a link and for an hour after the last.
func TestNodesCountSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t)
		nodes := w.relay.Nodes(10)
		count := func(want string) {
			t.Helper()
			if err := testutil.CollectAndCompare(nodes, strings.NewReader(want), "skerry_node_sessions_total"); err != nil {
				t.Error(err)
			}
		}
		const head = "# HELP skerry_node_sessions_total Sessions that the node opened at this replica; kept for an hour after the last.\n# TYPE skerry_node_sessions_total counter\n"
		session := func(node types.NodeName, epoch uint64) {
			e := w.connect(node, epoch)
			time.Sleep(5 * time.Second)
			e.cancel()
			<-e.ended
		}
		for epoch := range uint64(6) {
			session("edge1", epoch+1)
		}
		count(head + "skerry_node_sessions_total{node=\"edge1\"} 6\n")
		time.Sleep(time.Hour + time.Second)
		session("edge2", 1)
		count(head + "skerry_node_sessions_total{node=\"edge2\"} 1\n")
	})
}
