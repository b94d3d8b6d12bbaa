package cloudhub

import (
	"crypto/x509"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// closers is how many links are being closed at once: a close may wait a moment for its peer.
const closers = 64

// Hub accepts links and runs their sessions. It is a prometheus.Collector.
type Hub struct {
	// Set by New, never changed.
	config     Config
	listeners  []link.Listener
	parts      []Part
	table      *table
	metrics    *metrics
	handshakes chan struct{}                // a token for each link that is not yet a session
	shares     *link.Shares[types.NodeName] // of handshakes
	refusals   chan struct{}                // a token for each link that is being turned away for overload
	charges    *quota.Rates
	openings   *quota.Rates
}

// New returns a hub that serves the links of the listeners with the parts. Run starts it.
func New(config Config, listeners []link.Listener, parts []Part) *Hub {
	config = config.withDefaults()
	return &Hub{
		config: config, listeners: listeners, parts: parts,
		table: newTable(config.MaxSessions, config.Elsewhere), metrics: newMetrics(),
		handshakes: make(chan struct{}, config.MaxHandshakes), shares: link.NewShares[types.NodeName](config.MaxHandshakes),
		refusals: make(chan struct{}, closers), charges: quota.NewRates(charges), openings: quota.NewRates(openings),
	}
}

// Session returns the open session of a node, except a rescue session.
func (h *Hub) Session(node types.NodeName) (Session, bool) {
	s, ok := h.table.get(node)
	if !ok || s.rescue {
		return nil, false
	}
	return s, true
}

// Linked reports whether a node has an open session, of whichever kind that is: a device that is
// rescued renews no Lease, and has its name all the same.
func (h *Hub) Linked(node types.NodeName) bool {
	_, ok := h.table.get(node)
	return ok
}

// Peer returns the certificate of a node's open session, of whichever kind that is.
func (h *Hub) Peer(node types.NodeName) (*x509.Certificate, bool) {
	s, ok := h.table.get(node)
	if !ok {
		return nil, false
	}
	return s.conn.Info().Peer, true
}

// SessionInfo describes an open session.
type SessionInfo struct {
	Node         types.NodeName
	Since        time.Time
	LastHeard    time.Time
	Transport    link.Transport
	Remote       string
	Epoch        uint64
	Version      string // of edgecore
	BootID       string
	KubeletAlive bool // by the last heartbeat
	Rescue       bool // without a common version of the protocol
}

// Sessions lists the open sessions by node.
func (h *Hub) Sessions() []SessionInfo {
	sessions := h.table.attached()
	infos := make([]SessionInfo, 0, len(sessions))
	for _, s := range sessions {
		info := s.conn.Info()
		infos = append(infos, SessionInfo{
			Node: s.node, Since: info.Since, LastHeard: s.LastHeard(),
			Transport: info.Transport, Remote: address(info.Remote),
			Epoch: s.epoch, Version: s.version, BootID: s.bootID, KubeletAlive: s.alive.Load(), Rescue: s.rescue,
		})
	}
	slices.SortFunc(infos, func(a, b SessionInfo) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return infos
}

// Kick ends the node's sessions and reports whether there was one.
func (h *Hub) Kick(node types.NodeName, code link.CloseCode, reason string) bool {
	sessions := h.table.all(node)
	for _, s := range sessions {
		s.Close(code, reason)
	}
	return len(sessions) > 0
}

// Len is how many of MaxSessions are taken.
func (h *Hub) Len() int { return h.table.len() }

// Describe implements prometheus.Collector.
func (h *Hub) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range h.metrics.counters() {
		c.Describe(ch)
	}
	ch <- h.metrics.sessions
	ch <- h.metrics.handshakes
	ch <- h.metrics.bytes
}

// Collect implements prometheus.Collector.
func (h *Hub) Collect(ch chan<- prometheus.Metric) {
	for _, c := range h.metrics.counters() {
		c.Collect(ch)
	}
	// Both are always there: a transport without sessions is 0, not unknown.
	count := map[link.Transport]int{link.WebSocket: 0, link.QUIC: 0}
	h.metrics.mu.Lock() // a session that ends concurrently is counted as open or as ended, never as both
	sum := h.metrics.ended
	for _, s := range h.table.attached() {
		count[s.conn.Info().Transport]++
		if !s.counted {
			sum.add(s.conn)
		}
	}
	h.metrics.mu.Unlock()
	for i, direction := range []string{"sent", "received"} {
		for class := range topic.Classes {
			ch <- prometheus.MustNewConstMetric(h.metrics.bytes, prometheus.CounterValue, float64(sum[i][class]), direction, topic.Class(class).String())
		}
	}
	for transport, n := range count {
		ch <- prometheus.MustNewConstMetric(h.metrics.sessions, prometheus.GaugeValue, float64(n), string(transport))
	}
	ch <- prometheus.MustNewConstMetric(h.metrics.handshakes, prometheus.GaugeValue, float64(len(h.handshakes)))
}
