// Package otlp posts to a receiver of OTLP over HTTP with JSON
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp): a collector, Loki, Prometheus and others.
//
// It owns the connection, its authorities and its token. The content is the
// caller's. A Client may be used by many goroutines.
package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// writeTimeout bounds one request.
const writeTimeout = 20 * time.Second

// ErrRefused is returned for content that the receiver would refuse again.
var ErrRefused = errors.New("the sink refuses it for good")

// Config is where a receiver is.
type Config struct {
	Field     string // of cloudcore.yaml, for errors: logs
	Endpoint  string // https://collector:4318/v1/logs
	CAFile    string // "": the system's
	TokenFile string // "": without a token. Read for each request: tokens are renewed
}

// Client posts to one receiver.
type Client struct {
	config Config
	client *http.Client
}

// New makes a Client. It does not connect yet.
func New(c Config) (*Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s.caFile: %w", c.Field, err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s.caFile: %s has no certificate", c.Field, c.CAFile)
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	return &Client{c, &http.Client{Transport: transport, Timeout: writeTimeout}}, nil
}

// Post sends a request. It returns nil once the receiver has taken it.
func (c *Client) Post(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.config.Endpoint, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.config.TokenFile != "" {
		token, err := os.ReadFile(c.config.TokenFile)
		if err != nil {
			return fmt.Errorf("%s.tokenFile: %w", c.config.Field, err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	res, err := c.client.Do(r)
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) && c.config.CAFile == "" {
		return fmt.Errorf("%w: set %s.caFile to the receiver's CA; cloudcore's image contains no CAs", err, c.config.Field)
	}
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
