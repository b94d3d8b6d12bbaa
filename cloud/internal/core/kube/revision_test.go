package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A cluster is restored between two reads, so quickly that no call fails, and has reached its old
// revision: only the identities of the kube-apiservers show it.
func TestRevisions(t *testing.T) {
	type read struct {
		s   sighting
		err error
	}
	at := func(revision uint64, servers ...string) read { return read{s: sighting{revision, servers}} }
	away := read{err: errors.New("connection refused")}
	for name, test := range map[string]struct {
		reads []read // the last one is repeated
		want  int    // restarts
		lost  int    // of those, after which writes may be lost
	}{
		"all is well":                      {[]read{at(5, "a"), at(6, "a")}, 0, 0},
		"the revision is lower":            {[]read{at(5, "a"), at(4, "a")}, 1, 1},
		"kube-apiserver was away":          {[]read{at(5, "a"), away, at(6, "a")}, 1, 0},
		"restored between two reads":       {[]read{at(5, "a"), at(5, "b")}, 1, 1},
		"one of three is restarted":        {[]read{at(5, "a", "b", "c"), at(6, "x", "b", "c")}, 0, 0},
		"three are, one after the other":   {[]read{at(5, "a", "b", "c"), at(6, "x", "b", "c"), at(6, "x", "y", "c"), at(7, "x", "y", "z")}, 0, 0},
		"all three are":                    {[]read{at(5, "a", "b", "c"), at(6, "x", "y", "z")}, 1, 1},
		"identities can't be read":         {[]read{at(5), at(6)}, 0, 0},
		"they can't for a while":           {[]read{at(5, "a"), at(6), at(7, "a")}, 0, 0},
		"they can't right after a restore": {[]read{at(5, "a"), at(6), at(7, "b")}, 1, 1},
		"the Lease is from the backup":     {[]read{at(5, "a"), at(6, "old"), at(7, "b"), at(7, "b")}, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reads, restarts, lost := slices.Clone(test.reads), 0, 0
				r := newRevisions(func(context.Context) (sighting, bool, error) {
					next := reads[0]
					if len(reads) > 1 {
						reads = reads[1:]
					}
					return next.s, next.err == nil, next.err
				})
				r.OnRestart(func() { restarts++ })
				r.OnLoss(func() { lost++ })
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				time.Sleep(5 * time.Minute)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if d := cmp.Diff(test.want, restarts); d != "" {
					t.Errorf("restarts (-want +got):\n%s", d)
				}
				if d := cmp.Diff(test.lost, lost); d != "" {
					t.Errorf("times at which writes may be lost (-want +got):\n%s", d)
				}
			})
		})
	}
}

// A slow answer is no absence: only where nobody is there are all lists read again.
func TestClaims_36_SlowAnswerIsNoAbsence(t *testing.T) {
	slow := &url.Error{Op: "Get", URL: "https://api", Err: context.DeadlineExceeded}
	for name, tc := range map[string]struct {
		err  error
		away bool
	}{
		"an answer":                     {nil, false},
		"given up by its caller":        {context.Canceled, false},
		"takes longer than it may":      {slow, false},
		"the body takes longer":         {fmt.Errorf("reading: %w", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), false},
		"refused":                       {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		"nobody answers the connection": {&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true},
		"the connection broke":          {io.ErrUnexpectedEOF, true},
		"reset":                         {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		"it says that it is overloaded": {apierrors.NewTooManyRequests("later", 1), false},
	} {
		if got := unanswered(tc.err); got != tc.away {
			t.Errorf("%s: away %v, want %v", name, got, tc.away)
		}
	}
	// Reads that take 15 s each, for an hour.
	synctest.Test(t, func(t *testing.T) {
		restarts, revision := 0, uint64(1)
		r := newRevisions(func(ctx context.Context) (sighting, bool, error) {
			sleep(ctx, 15*time.Second, nil)
			revision++
			return sighting{revision, []string{"a"}}, true, nil
		})
		r.OnRestart(func() { restarts++ })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		for range 240 {
			r.Failed(slow)
			time.Sleep(15 * time.Second)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if restarts > 0 {
			t.Errorf("all watches were opened again %d times", restarts)
		}
	})
}
