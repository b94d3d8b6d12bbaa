package edgehub

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
)

// metrics belongs to one Hub; it is not registered with a global registry.
type metrics struct {
	tries    prometheus.Counter
	connects *prometheus.CounterVec
	losses   *prometheus.CounterVec
	messages *prometheus.CounterVec
	dropped  *prometheus.CounterVec
	late     prometheus.Counter
	linked   *prometheus.Desc
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "skerry", Subsystem: "edgehub", Name: name, Help: help}
	}
	return &metrics{
		tries:    prometheus.NewCounter(opts("dials_total", "Attempts to connect to a cloudcore.")),
		connects: prometheus.NewCounterVec(opts("connects_total", "Sessions opened."), []string{"transport"}),
		losses:   prometheus.NewCounterVec(opts("losses_total", "Sessions ended, by close code."), []string{"code"}),
		messages: prometheus.NewCounterVec(opts("messages_total", "Messages over the link, by topic and direction."), []string{"direction", "topic"}),
		dropped:  prometheus.NewCounterVec(opts("dropped_total", "Messages for the cloud that could not be sent."), []string{"topic"}),
		late:     prometheus.NewCounter(opts("late_answers_total", "Responses of the cloud to requests that had already ended.")),
		linked:   prometheus.NewDesc("skerry_edgehub_linked", "1 while a session is open.", nil, nil),
	}
}

func (m *metrics) message(direction string, key message.Key) {
	m.messages.WithLabelValues(direction, key.String()).Inc()
}

func (m *metrics) lost(err error) {
	code := "other"
	if end, ok := errors.AsType[*link.CloseError](err); ok {
		code = strconv.Itoa(int(end.Code))
	}
	m.losses.WithLabelValues(code).Inc()
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.tries, m.connects, m.losses, m.messages, m.dropped, m.late}
}
