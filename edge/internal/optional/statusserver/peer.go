package statusserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/validation"
)

// peerTimeout bounds the time of one peer.
const peerTimeout = 5 * time.Second

// merged is the page of an application from here and from every peer, in the order of the
// configuration. A peer that hangs or refuses is in the list with its error.
func merged(ctx context.Context, c Config, r *reader, name string) any {
	answers := make([]any, len(c.Peers)+1)
	page, _, err := r.page(ctx, name)
	if err != nil {
		answers[0] = failed(c.NodeName, err)
	} else {
		answers[0] = page
	}
	client := &http.Client{Timeout: peerTimeout, CheckRedirect: noRedirect, Transport: &http.Transport{TLSClientConfig: c.Trust.client(), DisableKeepAlives: true}}
	var g errgroup.Group
	for i, peer := range c.Peers {
		g.Go(func() error {
			answer, err := ask(ctx, client, peer, name)
			if err != nil {
				answers[i+1] = failed(peer.String(), err)
			} else {
				answers[i+1] = answer
			}
			return nil
		})
	}
	_ = g.Wait() // each failure is in the list
	return map[string]any{"key": "cluster-app", "value": fit(answers)}
}

// noRedirect refuses redirects: a peer answers itself.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// validName reports whether a text can name an application: NAME, NAMESPACE/NAME or a UID. Another
// one could be another path to a peer.
func validName(name string) bool {
	parts := strings.Split(name, "/")
	if len(parts) > 2 {
		return false
	}
	for _, part := range parts {
		if part == "" && len(parts) == 1 {
			return true // of no application
		}
		if len(validation.IsDNS1123Subdomain(part)) > 0 {
			return false
		}
	}
	return true
}

// fit drops the peers' parts, last first, until the whole fits.
func fit(answers []any) []any {
	size := 0
	for i, a := range answers {
		raw, err := json.Marshal(a)
		if size += len(raw); err != nil || size > mostBytes-(64<<10) {
			answers[i] = failed(fmt.Sprintf("answer %d", i), errors.New("all answers together are too long"))
			size -= len(raw)
		}
	}
	return answers
}

func failed(host string, err error) any {
	return map[string]string{"hostname": host, "error": err.Error()}
}

func ask(ctx context.Context, client *http.Client, peer netip.AddrPort, name string) (json.RawMessage, error) {
	at := url.URL{Scheme: "https", Host: peer.String(), Path: "/app/" + name}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // all of it is read
	raw, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading its answer: %w", err)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answers %s", answer.Status)
	case len(raw) > mostBytes:
		return nil, fmt.Errorf("its answer is longer than %d bytes", mostBytes)
	case !json.Valid(raw):
		return nil, errors.New("its answer is no JSON")
	}
	return raw, nil
}
