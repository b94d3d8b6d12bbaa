package join_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// away is a device that joined and was cut off until its certificate had ended by that much.
func away(t *testing.T, ended time.Duration) (c *cloud, id *join.Identity, dir string, clock *pki.Clock) {
	t.Helper()
	c = newCloud(t, cloudOptions{life: ended + 100*time.Hour})
	dir, clock = t.TempDir(), pki.NewClock(time.Time{}, nil)
	result, err := join.Join(logged(t), join.Options{Dir: dir, Server: c.address, Token: c.token, Node: edge1, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	clock.AtLeast(result.NotAfter.Add(ended))
	c.renews = clock.Now
	if id, err = join.Load(dir, nil, clock); err != nil {
		t.Fatal(err)
	}
	id.Servers = func() []string { return []string{c.address} }
	return c, id, dir, clock
}

// rotates runs the rotation of a device without a link, until the test ends.
func rotates(t *testing.T, id *join.Identity) {
	t.Helper()
	ctx, cancel := context.WithCancel(logged(t))
	done := make(chan error, 1)
	go func() { done <- id.Run(ctx, &signer{t: t, offline: true}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A device whose certificate ended while it was cut off gets another one for the same key, without
// anybody's help, and a link is dialled with it.
func TestClaims_37_EndedCertificateIsRenewedForTheSameKey(t *testing.T) {
	_, id, dir, clock := away(t, 24*time.Hour)
	before, _ := id.Certificate()
	var told atomic.Int32
	id.Renewed = func() { told.Add(1) }
	if !id.Status().Expired {
		t.Fatal("it has not ended")
	}
	rotates(t, id)
	poll.True(t, "the certificate is good again", func() bool { return !id.Status().Expired && told.Load() == 1 })
	after, _ := id.Certificate()
	if after == before || string(after.Leaf.RawSubjectPublicKeyInfo) != string(before.Leaf.RawSubjectPublicKeyInfo) {
		t.Error("it is not another certificate of the same key")
	}
	if again, err := join.Load(dir, nil, clock); err != nil || again.Status().Fingerprint != id.Status().Fingerprint {
		t.Errorf("a restart would use another one: %v", err)
	}
}

// One that ended too long ago is refused, and the status has the way out, which a running edgecore
// takes by itself.
func TestClaims_37_LongAgoNeedsAPersonAndNoRestart(t *testing.T) {
	c, id, dir, clock := away(t, 100*24*time.Hour)
	rotates(t, id)
	poll.True(t, "the status says what to do", func() bool {
		why := id.Status().LastError
		return strings.Contains(why, "cloudcore token create --node edge1") && strings.Contains(why, "edgecore join --force --token-file")
	})
	c.mu.Lock()
	c.uses, c.ahead = 1, time.Until(clock.Now())
	c.mu.Unlock()
	if _, err := join.Join(logged(t), join.Options{Dir: dir, Server: c.address, Token: c.token, Node: edge1, Clock: clock, Force: true}); err != nil {
		t.Fatal(err)
	}
	poll.True(t, "the running edgecore has the identity of the join", func() bool { s := id.Status(); return !s.Expired && s.LastError == "" })
}
