package tunnel

import (
	"net"

	"github.com/prometheus/client_golang/prometheus"
)

// The ways in.
const (
	byConnect = "connect" // kube-apiserver's egress
	byPeer    = "peer"    // another replica
	byName    = "name"    // the kubelets' endpoint

	bySubresources = "subresources" // cloudcore's own API of that name
)

// metrics belongs to one Tunnel, and is not registered with a global registry.
type metrics struct {
	open    *prometheus.GaugeVec
	total   *prometheus.CounterVec
	refused *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	sent    prometheus.Counter // of bytes: towards kubelets
	got     prometheus.Counter
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "skerry", Subsystem: "tunnel", Name: name, Help: help}
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	m := &metrics{
		open:    prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("connections", "Open connections, by the way in.")), []string{"way"}),
		total:   counter("connections_total", "Connections to their targets, by the way in.", "way"),
		refused: counter("refused_total", "Refused connections, by way in and reason.", "way", "reason"),
		bytes:   counter("bytes_total", "Bytes of connections, to the target (sent) and back (received).", "direction"),
	}
	m.sent, m.got = m.bytes.WithLabelValues("sent"), m.bytes.WithLabelValues("received")
	for _, way := range []string{byConnect, byPeer, byName, bySubresources} { // always there: 0, not unknown
		m.open.WithLabelValues(way)
		m.total.WithLabelValues(way)
	}
	return m
}

func (m *metrics) refuse(way, reason string) { m.refused.WithLabelValues(way, reason).Inc() }

// begin counts a connection; the returned function counts its end.
func (m *metrics) begin(way string) (end func()) {
	m.total.WithLabelValues(way).Inc()
	open := m.open.WithLabelValues(way)
	open.Inc()
	return open.Dec
}

// meter counts the bytes of a connection to a client.
func (m *metrics) meter(conn net.Conn) net.Conn { return &metered{conn, m} }

type metered struct {
	net.Conn
	m *metrics
}

func (c *metered) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.m.sent.Add(float64(n))
	return n, err
}

func (c *metered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.m.got.Add(float64(n))
	return n, err
}

// CloseWrite ends one direction, where the connection can.
func (c *metered) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// Describe implements prometheus.Collector.
func (t *Tunnel) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range t.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (t *Tunnel) Collect(ch chan<- prometheus.Metric) {
	for _, c := range t.metrics.all() {
		c.Collect(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.open, m.total, m.refused, m.bytes}
}
