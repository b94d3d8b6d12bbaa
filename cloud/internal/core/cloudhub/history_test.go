package cloudhub_test

import (
	"context"
	"crypto/x509"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
)

// A session that opens while the history changes gets the new name, and one that is open ends.
func TestHub_HistoryChangesDuringTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		var history atomic.Value
		history.Store("one")
		asked := 0
		b = newBench(t, cloudhub.Config{
			History: func(context.Context) string { return history.Load().(string) },
			Admission: admission(func(types.NodeName, *x509.Certificate) error {
				if asked++; asked == 2 { // the handshake is over, and the session is not attached
					history.Store("two")
					b.hub.EndHistories("two")
				}
				return nil
			}),
		})
		e := b.dial("edge-1")
		e.hello(1)
		if got := e.welcomed().GetHistory(); got != "two" {
			t.Errorf("the Welcome names %q, want two", got)
		}
		b.hub.EndHistories("two")
		if !e.live() {
			t.Error("a session of the present history was ended")
		}
		b.hub.EndHistories("three")
		if end := e.ended(); end.Code != link.CloseShutdown {
			t.Errorf("ended with %v", end)
		}
	})
}
