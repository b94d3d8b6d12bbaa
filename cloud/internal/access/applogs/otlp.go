package applogs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
)

// OTLP is a Sink that posts OTLP with JSON, which collectors, Loki and others take.
type OTLP struct{ client *otlp.Client }

// NewOTLP makes an OTLP.
func NewOTLP(client *otlp.Client) *OTLP { return &OTLP{client} }

type (
	otlpAny struct {
		String *string `json:"stringValue,omitempty"`
		Int    *string `json:"intValue,omitempty"` // a 64-bit integer is a string in proto3's JSON
	}
	otlpAttribute struct {
		Key   string  `json:"key"`
		Value otlpAny `json:"value"`
	}
	otlpRecord struct {
		Time           string          `json:"timeUnixNano,omitempty"`
		Observed       string          `json:"observedTimeUnixNano"`
		SeverityNumber int             `json:"severityNumber,omitempty"`
		SeverityText   string          `json:"severityText,omitempty"`
		Body           otlpAny         `json:"body"`
		Attributes     []otlpAttribute `json:"attributes"`
	}
)

func text(key, value string) otlpAttribute { return otlpAttribute{key, otlpAny{String: &value}} }

func number(key string, value int64) otlpAttribute {
	n := strconv.FormatInt(value, 10)
	return otlpAttribute{key, otlpAny{Int: &n}}
}

// warn is OpenTelemetry's number of the severity WARN.
const warn = 13

// encode makes the request. Attributes of the resource are those of OpenTelemetry's conventions for
// Kubernetes; a record's skerry.log.id is the same however often it is sent.
func encode(o Origin, now time.Time) ([]byte, error) {
	observed := strconv.FormatInt(now.UnixNano(), 10)
	var records []otlpRecord
	if o.Dropped > 0 {
		note := fmt.Sprintf("%d lines of container %s were dropped on the device before they could be sent", o.Dropped, o.Container)
		records = append(records, otlpRecord{
			Time: observed, Observed: observed, SeverityNumber: warn, SeverityText: "WARN", Body: otlpAny{String: &note}, Attributes: []otlpAttribute{number("skerry.log.dropped", o.Dropped)},
		})
	}
	for i := range o.Lines {
		l := &o.Lines[i]
		body := strings.ToValidUTF8(l.Text, "�")
		r := otlpRecord{Observed: observed, Body: otlpAny{String: &body}}
		if !l.Time.IsZero() {
			r.Time = strconv.FormatInt(l.Time.UnixNano(), 10)
		}
		stream := "stdout"
		if l.Stderr {
			stream = "stderr"
		}
		r.Attributes = []otlpAttribute{text("log.iostream", stream), text("skerry.log.id", fmt.Sprintf("%s/%d", o.Stream(), l.End))}
		if l.Partial {
			r.Attributes = append(r.Attributes, text("skerry.log.partial", "true"))
		}
		records = append(records, r)
	}
	type obj = map[string]any
	return json.Marshal(obj{"resourceLogs": []obj{{
		"resource": obj{"attributes": []otlpAttribute{
			text("service.name", o.App), text("service.namespace", o.Namespace), text("skerry.app.uid", o.AppUID), text("k8s.namespace.name", o.Namespace), text("k8s.node.name", o.Node),
			text("k8s.pod.name", o.Pod), text("k8s.pod.uid", o.PodUID), text("k8s.container.name", o.Container), number("k8s.container.restart_count", int64(o.Restart)),
		}},
		"scopeLogs": []obj{{"scope": obj{"name": "skerry"}, "logRecords": records}},
	}}})
}

// Write implements Sink.
func (s *OTLP) Write(ctx context.Context, o Origin) error {
	body, err := encode(o, time.Now())
	if err != nil {
		return err
	}
	return s.client.Post(ctx, body)
}
