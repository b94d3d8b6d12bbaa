package hub

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// metrics belongs to one Hub; nothing is registered with any global registry.
type metrics struct {
	connects *prometheus.CounterVec // links that became a session
	refused  *prometheus.CounterVec // links that did not
	closes   *prometheus.CounterVec // sessions that ended
	messages *prometheus.CounterVec

	sessions   *prometheus.Desc
	handshakes *prometheus.Desc
	bytes      *prometheus.Desc

	mu    sync.Mutex
	ended traffic // of the sessions that have ended
}

// traffic is bytes on the wire by class, sent and received.
type traffic [2][topic.Classes]uint64

func (t *traffic) add(conn link.Conn) {
	meter, ok := conn.(link.Meter)
	if !ok {
		return
	}
	stats := meter.Stats()
	for class := range topic.Classes {
		t[0][class] += stats.Sent[class].Bytes
		t[1][class] += stats.Received[class].Bytes
	}
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "hub", Name: name, Help: help}, labels)
	}
	return &metrics{
		connects: counter("connects_total", "Links that became a session.", "transport"),
		refused:  counter("refused_total", "Links that were refused before they became a session, by close code.", "transport", "code"),
		closes:   counter("closes_total", "Sessions that ended, by close code and by who closed.", "transport", "code", "by"),
		messages: counter("messages_total", "Messages, by topic and direction.", "direction", "topic"),
		sessions: prometheus.NewDesc("skerry_hub_sessions", "Open sessions.", []string{"transport"}, nil),
		handshakes: prometheus.NewDesc("skerry_hub_handshakes", "Links that are open and not yet a session.",
			nil, nil),
		bytes: prometheus.NewDesc("skerry_hub_bytes_total", "Bytes of messages on the wire, by class and direction.", []string{"direction", "class"}, nil),
	}
}

func (m *metrics) message(direction string, key message.Key) {
	m.messages.WithLabelValues(direction, key.String()).Inc()
}

func (m *metrics) refuse(transport link.Transport, code link.CloseCode) {
	m.refused.WithLabelValues(string(transport), codeLabel(code)).Inc()
}

// close counts the end of s, once.
func (m *metrics) close(s *session, end *link.CloseError) {
	m.mu.Lock()
	m.ended.add(s.conn)
	s.counted = true
	m.mu.Unlock()
	transport := s.conn.Info().Transport
	by := "cloud"
	if end.Remote {
		by = "edge"
	} else if end.Code == link.CloseNetwork {
		by = "network"
	}
	m.closes.WithLabelValues(string(transport), codeLabel(end.Code), by).Inc()
}

// codeLabel bounds the label: a peer may send any number.
func codeLabel(code link.CloseCode) string {
	switch code {
	case link.CloseShutdown, link.CloseReplaced, link.CloseOverloaded, link.CloseTimeout, link.CloseProtocol, link.CloseTooLarge,
		link.CloseNetwork, link.CloseInternal, link.CloseForbidden, link.CloseVersion, link.CloseGone:
		return strconv.Itoa(int(code))
	}
	return "other"
}

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
	// Both are always told: a transport without sessions is 0, not unknown.
	count := map[link.Transport]int{link.WebSocket: 0, link.QUIC: 0}
	h.metrics.mu.Lock() // a session that ends meanwhile is counted as open or as ended, never as both
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

func (m *metrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.connects, m.refused, m.closes, m.messages}
}
