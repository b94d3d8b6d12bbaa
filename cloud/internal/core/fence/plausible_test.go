package fence_test

import (
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/fence"
)

// However high the epoch of a session with a copied certificate is, the device itself can use a
// higher one.
func TestClaims_09_NoEpochLocksANameOut(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	ms := uint64(now.UnixMilli())
	lease := func(epoch uint64) map[string]string {
		return map[string]string{fence.EpochAnnotation: strconv.FormatUint(epoch, 10)}
	}
	for name, tc := range map[string]struct {
		lease map[string]string
		ours  uint64
		good  bool
	}{
		"the first":                        {nil, ms, true},
		"a clock of 1970":                  {nil, 1, true},
		"a clock of 2106":                  {nil, 1 << 42, true},
		"2^64-1":                           {nil, math.MaxUint64, false},
		"2^64-1 above a Lease":             {lease(ms), math.MaxUint64, false},
		"2^63":                             {lease(ms), 1 << 63, false},
		"above one that was far":           {lease(ms + 1<<42), ms + 1<<42 + 1, true},
		"a Lease of before this rule":      {lease(math.MaxUint64 - 1), math.MaxUint64, true},
		"an annotation that can't be read": {map[string]string{fence.EpochAnnotation: "x"}, ms, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := fence.Plausible(tc.lease, tc.ours, now); (err == nil) != tc.good {
				t.Errorf("%v, want %v", err, tc.good)
			}
		})
	}
	// The highest allowed epoch still has a successor.
	have := lease(ms)
	for range 1000 {
		epoch, err := strconv.ParseUint(have[fence.EpochAnnotation], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		taken := max(epoch, ms) + 1<<42
		if err := fence.Plausible(have, taken, now); err != nil {
			t.Fatal(err)
		}
		have = lease(taken)
		if err := fence.Plausible(have, taken+1, now); err != nil {
			t.Fatalf("locked out: %v", err)
		}
	}
}

// A device, or who has its certificate, writes a number into its Lease that no session can exceed:
// the next session takes the Lease all the same, and is fenced by later ones.
func TestClaims_09_NumberOfNoSessionIsIgnored(t *testing.T) {
	ours := uint64(time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC).UnixMilli())
	for _, written := range []uint64{math.MaxUint64, math.MaxUint64 - 1, 1<<63 + 1} {
		lease := map[string]string{fence.EpochAnnotation: strconv.FormatUint(written, 10)}
		if err := fence.Compare(lease, ours); !errors.Is(err, fence.ErrNotHeld) {
			t.Errorf("%d: %v", written, err)
		}
		if err := fence.Plausible(lease, ours, time.UnixMilli(int64(ours))); err != nil {
			t.Errorf("%d: %v", written, err)
		}
	}
	newer := map[string]string{fence.EpochAnnotation: strconv.FormatUint(ours+1, 10)}
	if err := fence.Compare(newer, ours); err == nil || errors.Is(err, fence.ErrNotHeld) {
		t.Errorf("a newer session: %v", err)
	}
}
