package cloudhub

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// metrics belongs to one Hub; it does not use the global registry.
type metrics struct {
	connects *prometheus.CounterVec // links that became a session
	refused  *prometheus.CounterVec // links that did not
	closes   *prometheus.CounterVec // sessions that ended
	messages *prometheus.CounterVec
	pauses   prometheus.Counter

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
		connects: counter("connects_total", "Links that opened a session.", "transport"),
		refused:  counter("refused_total", "Links refused before a session opened, by close code.", "transport", "code"),
		closes:   counter("closes_total", "Closed sessions, by close code and closing end.", "transport", "code", "by"),
		messages: counter("messages_total", "Messages, by topic and direction.", "direction", "topic"),
		pauses: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "hub", Name: "pauses_total",
			Help: "Pauses in reading a link because its node exceeded its quota."}),
		sessions: prometheus.NewDesc("skerry_hub_sessions", "Open sessions.", []string{"transport"}, nil),
		handshakes: prometheus.NewDesc("skerry_hub_handshakes", "Open links without a session yet.",
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

// close counts the end of a session's link, once: counted is the session's, and is guarded by mu.
func (m *metrics) close(conn link.Conn, counted *bool, end *link.CloseError) {
	m.mu.Lock()
	m.ended.add(conn)
	*counted = true
	m.mu.Unlock()
	transport := conn.Info().Transport
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

func (m *metrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.connects, m.refused, m.closes, m.messages, m.pauses}
}
