package drain

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// responseObserver records missing answers for a request's attempt: an attempt's own error joins
// those of many pods, and of optional reads.
type responseObserver struct{ next http.RoundTripper }

type observedKey struct{}

// observer receives the answers to the requests of an attempt.
type observer interface {
	observe(ctx context.Context, answer *http.Response, err error, took time.Duration)
}

// RoundTrip implements http.RoundTripper.
func (o responseObserver) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	answer, err := o.next.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		err = fmt.Errorf("the link to the cloud gave no answer: %w", err)
	}
	if a, ok := r.Context().Value(observedKey{}).(observer); ok {
		a.observe(r.Context(), answer, err, time.Since(began))
	}
	return answer, err
}
