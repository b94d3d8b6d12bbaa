package drain

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// responseObserver notes, for the attempt that a request is of, that there was no answer: what an
// attempt ends with is the errors of many pods, and of reads whose failure is no failure.
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
