package nodemetrics

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	"github.com/skerry-io/skerry/common/nodemetrics"
)

// OTLP is a Sink that posts OTLP with JSON, which collectors, Prometheus and others take.
type OTLP struct {
	client *otlp.Client
	series map[uint32]nodemetrics.Series
}

// NewOTLP makes an OTLP.
func NewOTLP(client *otlp.Client) *OTLP {
	o := &OTLP{client, map[uint32]nodemetrics.Series{}}
	for _, s := range nodemetrics.All() {
		o.series[s.ID] = s
	}
	return o
}

// Write implements Sink.
func (o *OTLP) Write(ctx context.Context, b Batch) error {
	body, err := o.encode(b)
	if err != nil {
		return err
	}
	return o.client.Post(ctx, body)
}

type (
	otlpValue struct {
		String string `json:"stringValue"`
	}
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpPoint struct {
		Time       string          `json:"timeUnixNano"` // a 64-bit integer is a string in proto3's JSON
		Value      float64         `json:"asDouble"`
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpGauge struct {
		Points []otlpPoint `json:"dataPoints"`
	}
	otlpSum struct {
		otlpGauge
		Temporality int  `json:"aggregationTemporality"`
		Monotonic   bool `json:"isMonotonic"`
	}
	otlpMetric struct {
		Name        string     `json:"name"`
		Description string     `json:"description"`
		Gauge       *otlpGauge `json:"gauge,omitempty"`
		Sum         *otlpSum   `json:"sum,omitempty"`
	}
)

// cumulative is OTLP's AGGREGATION_TEMPORALITY_CUMULATIVE.
const cumulative = 2

func attribute(key, value string) otlpAttribute { return otlpAttribute{key, otlpValue{value}} }

// encode makes the request: a resource for the node, by OpenTelemetry's conventions, and the node
// as an attribute of each point, which becomes Prometheus' label.
func (o *OTLP) encode(b Batch) ([]byte, error) {
	var all []*otlpMetric
	named := map[string]*otlpMetric{}
	ids := map[uint32]bool{}
	for _, sample := range b.Samples {
		for id := range sample.Values {
			ids[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		s, known := o.series[id]
		if !known {
			continue // of a newer device
		}
		metric := named[s.Name]
		if metric == nil {
			metric = &otlpMetric{Name: s.Name, Description: s.Help}
			if s.Counter {
				metric.Sum = &otlpSum{Temporality: cumulative, Monotonic: true}
			} else {
				metric.Gauge = &otlpGauge{}
			}
			named[s.Name], all = metric, append(all, metric)
		}
		to := metric.Gauge
		if to == nil {
			to = &metric.Sum.otlpGauge
		}
		attributes := []otlpAttribute{attribute("node", b.Node)}
		if s.Label != "" {
			attributes = append(attributes, attribute(s.Label, s.Value))
		}
		for _, sample := range b.Samples {
			if value, ok := sample.Values[id]; ok {
				to.Points = append(to.Points, otlpPoint{strconv.FormatInt(sample.Unix, 10) + "000000000", float64(value) / s.PerUnit, attributes})
			}
		}
	}
	type obj = map[string]any
	return json.Marshal(obj{"resourceMetrics": []obj{{
		"resource": obj{"attributes": []otlpAttribute{
			attribute("service.name", "edgecore"), attribute("service.instance.id", b.Node), attribute("k8s.node.name", b.Node),
		}},
		"scopeMetrics": []obj{{"scope": obj{"name": "skerry"}, "metrics": all}},
	}}})
}
