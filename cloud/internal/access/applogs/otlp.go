package applogs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// writeTimeout bounds one request to the sink.
const writeTimeout = 20 * time.Second

// OTLPConfig is where an OTLP sink is.
type OTLPConfig struct {
	Endpoint  string // https://collector:4318/v1/logs
	CAFile    string // "": the system's
	TokenFile string // "": without a token. Read for each request: tokens are renewed
}

// OTLP is a Sink that speaks OTLP/HTTP with JSON
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp), which collectors, Loki and others take.
type OTLP struct {
	config OTLPConfig
	client *http.Client
}

// NewOTLP makes an OTLP. It does not connect yet.
func NewOTLP(c OTLPConfig) (*OTLP, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("logs.caFile: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("logs.caFile: %s has no certificate", c.CAFile)
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	return &OTLP{c, &http.Client{Transport: transport, Timeout: writeTimeout}}, nil
}

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
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.config.Endpoint, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if s.config.TokenFile != "" {
		token, err := os.ReadFile(s.config.TokenFile)
		if err != nil {
			return fmt.Errorf("logs.tokenFile: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	res, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	why, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return err
	}
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity: // OTLP/HTTP: not to be sent again
		return fmt.Errorf("%w: %s: %.200q", ErrRefused, res.Status, why)
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %s: %.200q", res.Status, why)
	}
	return nil
}
