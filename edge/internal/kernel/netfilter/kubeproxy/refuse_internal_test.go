package kubeproxy

import (
	"os"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/netns/wire"
)

// Each request to a Service without endpoints is refused at once, and not one a second.
func TestClaims_29_RefusalsAreNotLimited(t *testing.T) {
	for mask, want := range map[string]string{"6168": "6160", "6160": "6160", "0": "0"} {
		if got, err := withoutBit(mask); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", mask, got, err, want)
		}
	}
	for mask, want := range map[string]string{"0-1,3-127": "0,3-127", "0,3-127": "0,3-127", "0-127": "0,2-127", "1": "", "": "", "1-2": "2"} {
		if got, err := withoutType(mask); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", mask, got, err, want)
		}
	}
	wire.NewHost(t).Must(t, func() error {
		for range 2 {
			if err := refuseAtOnce(); err != nil {
				return err
			}
			raw, err := os.ReadFile(ratemask4)
			if err != nil {
				return err
			}
			if got := strings.TrimSpace(string(raw)); got != "6160" {
				t.Errorf("%s has %s", ratemask4, got)
			}
		}
		return nil
	})
}
