package quiclink_test

import (
	"crypto/tls"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
)

// An idle link that was accepted has the goroutines that the library needs for it, and no further
// one of ours: its run loop and its queue of packets to send.
func TestListener_IdleCost(t *testing.T) {
	bytes, goroutines := linktest.Idle(t,
		func(t testing.TB, c *tls.Config) link.Listener { return listen(t, quiclink.ListenConfig{TLS: c}) },
		func(t testing.TB, c *tls.Config) link.Dialer { return newDialer(t, quiclink.DialConfig{TLS: c}) })
	t.Logf("%d bytes and %d goroutines a link", bytes, goroutines)
	if goroutines > 2 {
		t.Errorf("%d goroutines a link, want the library's 2", goroutines)
	}
	if bytes > idleBytes && !raced() {
		t.Errorf("%d bytes a link, want at most %d", bytes, idleBytes)
	}
}

// idleBytes is some more than was measured (docs/dev/decisions/0016).
const idleBytes = 58_000

// raced reports whether the race detector is built in, whose stacks are larger.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
