package usage

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// maxSummary bounds the answer of a kubelet, in bytes; one with 110 pods sends some 150 kB.
	maxSummary = 8 << 20
	// keepIdle is how long a connection waits for the next question. A TLS handshake costs a thin
	// link more than an answer does.
	keepIdle = time.Minute
)

// kubelets is a client that takes the name of a node for its host.
func (u *Usage) kubelets() *http.Client {
	return &http.Client{
		Timeout: u.config.Timeout,
		Transport: &http.Transport{
			DialTLSContext: u.dial, MaxConnsPerHost: 1, MaxIdleConns: 4 * parallel, IdleConnTimeout: keepIdle, MaxResponseHeaderBytes: 16 << 10,
		},
		// A kubelet sends no redirects.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (u *Usage) dial(ctx context.Context, _, address string) (net.Conn, error) {
	node, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	raw, err := u.config.Dial(ctx, types.NodeName(node))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: node, RootCAs: u.config.Roots()})
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("the kubelet of %s: %w", node, err)
	}
	return conn, nil
}

// ask reads the kubelet's summary, which holds rates: one answer is enough.
func (u *Usage) ask(ctx context.Context, node types.NodeName) (*stats.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, u.config.Timeout)
	defer cancel()
	token, err := u.config.Token(ctx)
	if err != nil {
		return nil, fmt.Errorf("getting a token for kubelets: %w", err)
	}
	at := url.URL{Scheme: "https", Host: net.JoinHostPort(string(node), "10250"), Path: "/stats/summary", RawQuery: "only_cpu_and_memory=true"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := u.client.Do(req)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // whose text names the node in our words, not in a URL's
		}
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxSummary+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the summary of the kubelet of %s: %w", node, err)
	case len(body) > maxSummary:
		return nil, fmt.Errorf("the summary of the kubelet of %s is larger than %d bytes", node, maxSummary)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the kubelet of %s answers %s: %.200q", node, res.Status, body)
	}
	summary := new(stats.Summary)
	if err := json.Unmarshal(body, summary); err != nil {
		return nil, fmt.Errorf("reading the summary of the kubelet of %s: %w", node, err)
	}
	return summary, nil
}
