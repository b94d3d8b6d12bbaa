package tunnel

import (
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics belongs to one Tunnel; it is not registered with a global registry.
type metrics struct {
	open    prometheus.Gauge
	total   prometheus.Counter
	refused *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	sent    prometheus.Counter // of bytes: to the kubelet
	got     prometheus.Counter
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "skerry", Subsystem: "tunnel", Name: name, Help: help}
	}
	m := &metrics{
		open:    prometheus.NewGauge(prometheus.GaugeOpts(opts("streams", "Open streams to this node's kubelet."))),
		total:   prometheus.NewCounter(prometheus.CounterOpts(opts("streams_total", "Streams connected to the kubelet."))),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts(opts("refused_total", "Refused streams, by reason.")), []string{"reason"}),
		bytes:   prometheus.NewCounterVec(prometheus.CounterOpts(opts("bytes_total", "Bytes to the kubelet (sent) and from it (received).")), []string{"direction"}),
	}
	m.sent, m.got = m.bytes.WithLabelValues("sent"), m.bytes.WithLabelValues("received")
	return m
}

func (m *metrics) refuse(reason string) { m.refused.WithLabelValues(reason).Inc() }

// begin counts a connection to the kubelet until it is closed.
func (m *metrics) begin(conn net.Conn) net.Conn {
	m.total.Inc()
	m.open.Inc()
	return &metered{Conn: conn, m: m, end: sync.OnceFunc(m.open.Dec)}
}

type metered struct {
	net.Conn
	m   *metrics
	end func()
}

func (c *metered) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.m.got.Add(float64(n))
	return n, err
}

func (c *metered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.m.sent.Add(float64(n))
	return n, err
}

// CloseWrite ends one direction, where the connection can.
func (c *metered) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

func (c *metered) Close() error {
	c.end()
	return c.Conn.Close()
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.open, m.total, m.refused, m.bytes}
}
