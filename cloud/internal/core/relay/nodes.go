package relay

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
)

// report is the state of a node with a link.
type report struct {
	fleet.Session
	heard time.Time // of the last heartbeat; zero before the first
	alive bool      // the last heartbeat reported a running kubelet
}

// reporter is a node's session.
type reporter interface{ report() report }

// Nodes is a prometheus.Collector with series for each node that has its link at this replica. A
// value of zero, such as an empty backlog, has its series too. A node without a link has no series,
// so that old values don't look like present ones; only the count of its sessions remains for
// countsKept: a link that lasts for seconds has ended at most scrapes. Counts of nodes without a
// link are bounded as nodes with series are; above that a count ends with its link.
type Nodes struct {
	most int // nodes with series of their own

	mu     sync.Mutex
	open   map[types.NodeName]reporter
	counts map[types.NodeName]count

	link, start, heard, alive, backlog, oldest, certificate, sessions, omitted *prometheus.Desc
}

// count is how many sessions a node opened here.
type count struct {
	sessions int
	ended    time.Time // the last session; zero while one is open
}

// countsKept is how long a count outlasts the last session: longer than the range of an alert.
const countsKept = time.Hour

func newNodes() *Nodes {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("skerry_node_"+name, help, labels, nil)
	}
	return &Nodes{
		open:        map[types.NodeName]reporter{},
		counts:      map[types.NodeName]count{},
		link:        desc("link_info", "Nodes whose link is at this replica, with its transport and the version of edgecore: 1.", "node", "transport", "version"),
		start:       desc("link_start_timestamp_seconds", "When the node's link came up, in Unix time.", "node"),
		heard:       desc("heartbeat_timestamp_seconds", "Time of the node's last heartbeat, in Unix time; 0 before the first.", "node"),
		alive:       desc("kubelet_alive", "Whether the node's last heartbeat reported a running kubelet: 1 or 0.", "node"),
		backlog:     desc("backlog_writes", "Writes on the node that kube-apiserver has not accepted, as of its last heartbeat.", "node"),
		oldest:      desc("backlog_oldest_timestamp_seconds", "Time of the oldest write in the node's backlog, in Unix time; 0 if the backlog is empty.", "node"),
		certificate: desc("certificate_expiration_timestamp_seconds", "Expiry of the node's certificate, in Unix time.", "node"),
		sessions:    desc("sessions_total", "Sessions that the node opened at this replica; kept for an hour after the last.", "node"),
		omitted:     prometheus.NewDesc("skerry_nodes_without_series", "Nodes above metrics.nodes, which have no series of their own.", nil, nil),
	}
}

func (n *Nodes) enter(node types.NodeName, r reporter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[node] = r
	n.counts[node] = count{sessions: n.counts[node].sessions + 1}
}

func (n *Nodes) leave(node types.NodeName, r reporter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open[node] != r {
		return
	}
	delete(n.open, node)
	n.counts[node] = count{n.counts[node].sessions, time.Now()}
	maps.DeleteFunc(n.counts, func(_ types.NodeName, c count) bool { return !c.ended.IsZero() && time.Since(c.ended) > countsKept })
	if len(n.counts)-len(n.open) > n.most {
		delete(n.counts, node)
	}
}

// Describe implements prometheus.Collector.
func (n *Nodes) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{n.link, n.start, n.heard, n.alive, n.backlog, n.oldest, n.certificate, n.sessions, n.omitted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (n *Nodes) Collect(ch chan<- prometheus.Metric) {
	n.mu.Lock()
	open, counts := maps.Clone(n.open), maps.Clone(n.counts)
	n.mu.Unlock()
	counted := slices.Sorted(maps.Keys(counts))
	for _, name := range counted[:min(len(counted), n.most)] {
		ch <- prometheus.MustNewConstMetric(n.sessions, prometheus.CounterValue, float64(counts[name].sessions), string(name))
	}
	names := slices.Sorted(maps.Keys(open)) // the same ones each time
	shown := min(len(names), n.most)
	for _, name := range names[:shown] {
		r, node := open[name].report(), string(name)
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{node}, labels...)...)
		}
		gauge(n.link, 1, r.Transport, fleet.Printable(r.Version, 64))
		if r.Since != nil {
			gauge(n.start, float64(r.Since.Unix()))
		}
		heard, oldest := 0.0, 0.0
		if !r.heard.IsZero() {
			heard = float64(r.heard.UnixMilli()) / 1000
		}
		if r.Oldest != nil {
			oldest = float64(r.Oldest.Unix())
		}
		gauge(n.heard, heard)
		gauge(n.alive, map[bool]float64{true: 1}[r.alive])
		gauge(n.backlog, float64(r.Backlog))
		gauge(n.oldest, oldest)
		if r.CertificateEnd != nil {
			gauge(n.certificate, float64(r.CertificateEnd.Unix()))
		}
	}
	ch <- prometheus.MustNewConstMetric(n.omitted, prometheus.GaugeValue, float64(len(names)-shown))
}
