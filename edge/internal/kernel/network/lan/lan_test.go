package lan_test

import (
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump/dumptest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// Pods start and end while the networks are listed.
func TestNetworks_interfacesComeAndGo(t *testing.T) {
	h := wire.NewHost(t)
	dumptest.Churn(t, h.Do)
	h.Must(t, func() error {
		for range 300 {
			if _, err := lan.New().Networks(); err != nil {
				return err
			}
		}
		return nil
	})
}
