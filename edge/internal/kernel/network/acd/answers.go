package acd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// askEvery is how often Answers asks: often, since it is against loss in little time.
const askEvery = 100 * time.Millisecond

// Answers reports whether the kernel of the host that has an address answers on an interface within
// patience. It returns at the first answer. Another host of the LAN that has taken the address
// answers too: the caller decides whether to trust the answer.
func Answers(ctx context.Context, iface string, target netip.Addr, patience time.Duration) (bool, error) {
	ifi, err := carrier(iface)
	if err != nil {
		return false, err
	}
	if len(ifi.HardwareAddr) != macLen {
		return false, fmt.Errorf("%s has no hardware addresses", iface)
	}
	p, err := open(ifi)
	if err != nil {
		return false, err
	}
	defer p.conn.Close()
	p.asked[target] = true
	for end := time.Now().Add(patience); time.Now().Before(end); {
		frame, to, err := question(p.own, target)
		if err != nil {
			return false, err
		}
		if _, err := p.conn.WriteTo(frame, &packet.Addr{HardwareAddr: to}); err != nil {
			if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOBUFS) {
				return false, fmt.Errorf("asking for %s: %w", target, ErrNoCarrier)
			}
			return false, fmt.Errorf("asking for %s: %w", target, err)
		}
		until := time.Now().Add(askEvery)
		if until.After(end) {
			until = end
		}
		if err := p.hear(ctx, until, func() bool { return p.heard[target] != nil }); err != nil {
			return false, err
		}
		if p.heard[target] != nil {
			return true, nil
		}
	}
	return false, nil
}
