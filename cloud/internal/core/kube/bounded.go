package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// openTimeout bounds the opening of a watch. After that HTTP/2's pings watch over it.
	openTimeout = 30 * time.Second
	// listTimeout bounds the list of a whole collection.
	listTimeout = 2 * time.Minute
)

// BoundReads adds a timeout for the header of the answer to every GET of clients with this
// configuration. client-go's informers and reflectors give a list no timeout: one that hangs, in a
// proxy or a server that has stopped, hangs as long as the process lives, and its users with it.
// After the header HTTP/2's pings detect a dead connection.
func BoundReads(config *rest.Config) {
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return bounded{rt} })
}

type bounded struct{ http.RoundTripper }

// WrappedRoundTripper lets others find the transport.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" { // an upgraded connection is the response's body, which is no plain reader then
		return b.RoundTripper.RoundTrip(r)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	patience := answerPatience(r)
	late := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("kube-apiserver did not answer within %v", patience))
	})
	answer, err := b.RoundTripper.RoundTrip(r.WithContext(ctx))
	late.Stop()
	if err != nil {
		if ctx.Err() != nil && r.Context().Err() == nil {
			err = context.Cause(ctx)
		}
		cancel(nil)
		return nil, err
	}
	answer.Body = &answered{answer.Body, cancel}
	return answer, nil
}

// answerPatience is how long an answer may take to begin. kube-apiserver assembles a list of a
// whole collection before it sends the first byte; the rest is there at once.
func answerPatience(r *http.Request) time.Duration {
	query := r.URL.Query()
	if query.Get("watch") != "" || strings.Contains(query.Get("fieldSelector"), "metadata.name=") {
		return openTimeout
	}
	return listTimeout
}

// answered is the body of an answer that has begun.
type answered struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (a *answered) Close() error {
	defer a.cancel(nil)
	return a.ReadCloser.Close()
}
