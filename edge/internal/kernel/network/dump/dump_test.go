package dump_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump/dumptest"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

func TestRead(t *testing.T) {
	interrupted := fmt.Errorf("listing: %w", netlink.ErrDumpInterrupted)
	for name, test := range map[string]struct {
		errs []error // of the readings; the last one's repeats
		want error
		most int
	}{
		"at once":               {[]error{nil}, nil, 1},
		"the third time":        {[]error{interrupted, unix.EINTR, nil}, nil, 3},
		"another error":         {[]error{unix.EPERM}, unix.EPERM, 1},
		"another error at last": {[]error{interrupted, unix.ENOBUFS}, unix.ENOBUFS, 2},
		"always interrupted":    {[]error{interrupted}, netlink.ErrDumpInterrupted, 100},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			got, err := dump.Read(func() (int, error) {
				n++
				return n, test.errs[min(n, len(test.errs))-1]
			})
			if !errors.Is(err, test.want) || n > test.most || got != n {
				t.Errorf("%d after %d readings, %v; want %v", got, n, err, test.want)
			}
		})
	}
}

func TestInterfaces(t *testing.T) {
	h := wire.NewHost(t)
	dumptest.Churn(t, h.Do)
	h.Must(t, func() error {
		for range 300 {
			links, addresses, err := dump.Interfaces()
			if err != nil {
				return err
			}
			for _, l := range links {
				if name := l.Attrs().Name; len(name) > 8 && name[:8] == "standing" && len(addresses[l.Attrs().Index]) != 10 {
					return fmt.Errorf("%s has the addresses %v", name, addresses[l.Attrs().Index])
				}
			}
			if len(links) < 61 { // with the loopback
				return fmt.Errorf("there are only %d interfaces", len(links))
			}
		}
		return nil
	})
}
