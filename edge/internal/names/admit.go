package names

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// admits reports whether a query of an address is answered.
func (m *Module) admits(ctx context.Context, from net.Addr) bool {
	at, err := netip.ParseAddrPort(from.String())
	if m.config.Admits == nil || err == nil && m.config.Admits(ctx, at.Addr().Unmap()) {
		return true
	}
	if err != nil {
		return false
	}
	select {
	case m.waiting <- struct{}{}:
		defer func() { <-m.waiting }()
	default:
		return false
	}
	for end := time.Now().Add(admitWait); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(admitPoll):
		}
		if m.config.Admits(ctx, at.Addr().Unmap()) {
			return true
		}
	}
	return false
}
