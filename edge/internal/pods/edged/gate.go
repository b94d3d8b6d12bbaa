package edged

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

var errStopped = errors.New("the kubelet was stopped")

// gate passes the kubelet's requests to its API, until it is stopped: open requests end then,
// watches above all, and new ones fail.
type gate struct {
	next    http.RoundTripper
	stopped context.Context
	stop    context.CancelFunc
}

func newGate(next http.RoundTripper) *gate {
	g := &gate{next: next}
	if next == nil {
		g.next = http.DefaultTransport
	}
	g.stopped, g.stop = context.WithCancel(context.Background())
	return g
}

// RoundTrip implements http.RoundTripper.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	forget := context.AfterFunc(g.stopped, cancel)
	end := func() { forget(); cancel() }
	if g.stopped.Err() != nil {
		end()
		if r.Body != nil {
			_ = r.Body.Close() // as http.RoundTripper asks for
		}
		return nil, errStopped
	}
	answer, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		if g.stopped.Err() != nil && r.Context().Err() == nil {
			err = fmt.Errorf("%w: %w", errStopped, err)
		}
		return nil, err
	}
	if answer.StatusCode == http.StatusServiceUnavailable && (r.Method != http.MethodGet || r.URL.RawQuery == "") {
		// client-go would wait that long ten times, inside the call: 50 s in which a pod's worker,
		// or the registration of a plugin, is blocked. An unreachable kube-apiserver fails at once,
		// and the kubelet retries by rules of its own. Lists and watches wait for a set that is
		// about to be synced.
		answer.Header.Del("Retry-After")
	}
	answer.Body = &gatedBody{answer.Body, end}
	return answer, nil
}

type gatedBody struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b *gatedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
