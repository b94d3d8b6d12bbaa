package campaign

import (
	"context"
	"errors"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/tests/campaign/history"
)

// requestPatience bounds every request of a client.
const requestPatience = 10 * time.Second

// put does a write and records it, unless it was refused. It reports whether it was acknowledged.
func (s *system) put(ctx context.Context, r history.Record, write func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	r.At = s.recorder.Now()
	err := write(ctx)
	r.End = s.recorder.Now()
	if err != nil && refused(err) {
		return false
	}
	r.Unknown = err != nil
	s.recorder.Add(r)
	return err == nil
}

// refused reports whether an error means that the request had no effect. An internal error of the
// server does not.
func refused(err error) bool {
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) { // without a listener there
		return true
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError || code == http.StatusServiceUnavailable
}

// draw is a source of chance that the seed and a name give.
func (s *system) draw(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(s.options.Seed, h.Sum64()))
}

// excuse records a fault that explains the observations from now until the returned function is
// called.
func (s *system) excuse(kind history.Kind, who string) (over func()) {
	s.excuses.Add(1)
	r := history.Record{Kind: kind, Who: who, At: s.recorder.Now()}
	return func() {
		r.End = s.recorder.Now()
		s.recorder.Add(r)
		s.excuses.Add(-1)
	}
}
