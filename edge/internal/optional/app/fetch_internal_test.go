package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// sources are those of a fetcher: "slow" never ends by itself.
type sources struct {
	mu     sync.Mutex
	got    []string
	ended  []string
	pruned []map[string]bool
}

func (s *sources) Fetch(ctx context.Context, c v1alpha1.AppContent) error {
	if c.Name == "slow" {
		<-ctx.Done()
		s.mu.Lock()
		s.ended = append(s.ended, c.Name)
		s.mu.Unlock()
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, c.Name)
	if c.Name == "bad" {
		return errors.New("refused")
	}
	return nil
}

func (s *sources) Prune(keep map[string]bool) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pruned = append(s.pruned, maps.Clone(keep))
	return nil, nil
}

func contents(names ...string) map[string]v1alpha1.AppContent {
	all := map[string]v1alpha1.AppContent{}
	for _, n := range names {
		all[n] = v1alpha1.AppContent{Name: n, SHA256: n}
	}
	return all
}

func digests(names ...string) map[string]bool {
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	return all
}

// One slow source delays no other, and its download is cancelled once no application references it.
func TestClaims_13_SlowSourceHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sources{}
		f := newFetches(s, func() {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.run(ctx) }()
		f.want(contents("bad", "one", "slow", "two"), digests("bad", "one", "slow", "two"))
		synctest.Wait()
		s.mu.Lock()
		got := slices.Sorted(slices.Values(s.got))
		s.mu.Unlock()
		if diff := cmp.Diff([]string{"bad", "one", "two"}, got); diff != "" {
			t.Errorf("fetched besides the slow one (-want +got):\n%s", diff)
		}
		f.want(contents("one"), digests("one"))
		synctest.Wait()
		s.mu.Lock()
		if diff := cmp.Diff([]string{"slow"}, s.ended); diff != "" {
			t.Errorf("ended with its application (-want +got):\n%s", diff)
		}
		if len(s.pruned) > 0 {
			t.Errorf("removed at once, keeping %v", s.pruned)
		}
		s.mu.Unlock()
		time.Sleep(pruneAfter + time.Second)
		synctest.Wait()
		s.mu.Lock()
		if n := len(s.pruned); n != 1 || !maps.Equal(s.pruned[0], digests("one")) {
			t.Errorf("kept: %v", s.pruned)
		}
		s.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
