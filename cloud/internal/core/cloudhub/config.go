package cloudhub

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Config configures a Hub. Every zero duration and bound means its default.
type Config struct {
	// Instance names this replica of cloudcore, for its edges.
	Instance string
	// Version of cloudcore, for its edges.
	Version string
	// Protocols are the supported protocol versions; default protocol.Ours.
	Protocols protocol.Window
	// Admission has the last word on each link; nil admits every certificate that names a node.
	Admission Admission
	// SameMachine returns an error if a new session of a node comes from another machine than the
	// open one, which then stays; nil: that is not looked at.
	SameMachine func(open, fresh Session) error
	// Trust returns the correction for a device whose trust bundle has this sum (pki.TrustSum);
	// nil: it is right as it is. A nil function sends no corrections.
	Trust func(sum []byte) *topicpb.Trust

	// Streams is set where one of the parts takes streams that edges open; it is announced in their
	// Welcome.
	Streams bool
	// Metrics is set where one of the parts takes samples of the devices' metrics.
	Metrics bool

	// Rescue are the parts of the sessions of nodes without a common protocol version, which
	// support protocol.FeatureRescue; nil: such nodes are refused.
	Rescue []Part

	// History returns the name of the cluster's history (package history); nil for no name.
	History func(ctx context.Context) string

	// HelloTimeout is how long a new link may take for its Hello, and an Admission for its
	// answer: 15 s.
	HelloTimeout time.Duration
	// MaxSessions bounds the open sessions: 10,000. At the bound a node without a session is sent
	// away, with a time to come back or, where Elsewhere is true, to dial again.
	MaxSessions int
	// Elsewhere reports whether another replica takes a session; nil: it is not known. It
	// must not block.
	Elsewhere func() bool
	// MaxHandshakes bounds the links that are open and not yet a session: 512. At the bound a new
	// link is asked to retry later.
	MaxHandshakes int
	// RetryAfter is the least time after which a link that was refused for overload may come back:
	// 10 s. Each gets a time between this and twice it.
	RetryAfter time.Duration
	// ReplaceWait is how long a newer session waits for an older one of its node to end, parts
	// included: 10 s.
	ReplaceWait time.Duration
	// DrainSpread is the time over which the sessions are closed at the end: at most 5 s, and 1 ms
	// for each session where that is less.
	DrainSpread time.Duration
	// DrainWait is how long the end then waits for the parts: 10 s.
	DrainWait time.Duration
}

// Admission is asked for each link whose certificate names a node. An error refuses the link, with
// CloseForbidden or with the code of the *link.CloseError in it; its text is sent to the node.
// Admit is called by many goroutines at once, twice for each link: before its Hello, and when Kick
// can find its session.
type Admission interface {
	Admit(ctx context.Context, node types.NodeName, cert *x509.Certificate) error
}

func (c Config) withDefaults() Config {
	c.Protocols = cmp.Or(c.Protocols, protocol.Ours())
	c.HelloTimeout = cmp.Or(c.HelloTimeout, 15*time.Second)
	c.MaxSessions = cmp.Or(c.MaxSessions, 10_000)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 512)
	c.RetryAfter = cmp.Or(c.RetryAfter, 10*time.Second)
	c.ReplaceWait = cmp.Or(c.ReplaceWait, 10*time.Second)
	c.DrainSpread = cmp.Or(c.DrainSpread, 5*time.Second)
	c.DrainWait = cmp.Or(c.DrainWait, 10*time.Second)
	return c
}

// Validate reports every value that makes no sense.
func (c Config) Validate() error {
	var errs []error
	if c.MaxSessions < 0 {
		errs = append(errs, fmt.Errorf("maxSessions: %d is below 0", c.MaxSessions))
	}
	if c.MaxHandshakes < 0 {
		errs = append(errs, fmt.Errorf("maxHandshakes: %d is below 0", c.MaxHandshakes))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"helloTimeout", c.HelloTimeout}, {"retryAfter", c.RetryAfter}, {"replaceWait", c.ReplaceWait},
		{"drainSpread", c.DrainSpread}, {"drainWait", c.DrainWait},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is below 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}
