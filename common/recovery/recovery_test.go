package recovery_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/skerry-io/skerry/common/recovery"
)

func TestDo(t *testing.T) {
	before := testutil.CollectAndCount(recovery.Metric())
	own := errors.New("own")
	if err := recovery.Do(t.Context(), "test", func() error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
	var none []int
	if err := recovery.Do(t.Context(), "test", func() error { none[0]++; return nil }); !errors.Is(err, recovery.ErrPanic) {
		t.Error(err)
	}
	recovery.Call(t.Context(), "test", func() { panic("nil map") })
	if after := testutil.CollectAndCount(recovery.Metric()); after != before+1 {
		t.Errorf("%d places are counted, want %d", after, before+1)
	}
}
