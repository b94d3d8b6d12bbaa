package edgehub

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Report is a device's state in its heartbeats. A zero field costs no byte.
type Report struct {
	Backlog        int           // writes that kube-apiserver has not accepted
	BacklogAge     time.Duration // of the oldest of them
	CertificateEnd time.Time     // of the device's newest certificate
}

// Config configures a Hub. Every zero duration and bound means its default.
type Config struct {
	// Servers are the addresses of cloudcores, "host:port". They are tried in turn from a
	// random start.
	Servers []string
	Dialer  link.Dialer
	Epochs  Epochs
	// Alive reports whether the kubelet renewed its Lease within the lease duration. It must be
	// quick.
	Alive func() bool
	// AliveChanged, if not nil, signals that Alive may have changed. Without it Alive is called
	// every second.
	AliveChanged <-chan struct{}
	// Report returns the other fields of heartbeats; may be nil. It must be quick.
	Report func() Report
	// Wake signals that the network changed (a carrier, a new route or address): dial at once. May
	// be nil.
	Wake <-chan struct{}

	// Trust stores the trusted certificates of this device; nil: changes are ignored.
	Trust Trust

	Version string // of edgecore
	// Protocols are the versions of the contract that are spoken; default protocol.Ours.
	Protocols protocol.Window
	BootID    string
	Machine   string // a digest of the hardware; "": unknown

	// Rescued is called when a rescue session begins, and when it has ended; nil: unsupported. It
	// must be quick.
	Rescued func(open bool)
	// RescueFor bounds a rescue session: 15 min. Afterwards another replica may support this end's
	// protocol.
	RescueFor time.Duration

	// Parts serve their kinds for each session themselves, past the bus.
	Parts map[message.Kind]Part
	// Routes maps kinds of messages from the cloud to modules. Other kinds go to Module.
	Routes map[message.Kind]message.Name
	Module message.Name // default "metamanager"

	// Keepalive is the time between two heartbeats: 10 s. A link is closed three of them after the
	// last heartbeat that was followed by a sign of the cloud.
	Keepalive time.Duration
	// BackoffMin and BackoffMax bound the exponential back-off between rounds of dialling:
	// 1 s and 30 s.
	BackoffMin, BackoffMax time.Duration
	// Eager is the time during which a network without any answer is tried about every BackoffMin
	// before the back-off begins to grow: 2 min. Such attempts don't load the cloud, and the end of
	// a silent cut is noticed within a second. Where connections are refused, the back-off stays
	// below four times BackoffMin for as long.
	Eager time.Duration
	// SlowRetry is the time between two tries at a server whose refusal won't pass by
	// itself: 5 min.
	SlowRetry time.Duration
	// Steady is how long a link must have lasted for its end to be no sign of trouble: 1 min. The
	// back-off after a shorter one grows, unless it worked until the network ended it.
	Steady time.Duration
	// DialTimeout is for a transport to connect, with all handshakes: 15 s. WelcomeTimeout is
	// for the cloud's answer to Hello: 25 s, because a cloud may first have to end an earlier
	// session of ours.
	DialTimeout, WelcomeTimeout time.Duration
	// MaxPending bounds the requests that wait for an answer of the cloud: 1024. At the bound a
	// request is refused with ErrBusy.
	MaxPending int
	// PendingFor is for how long a request may wait: 5 min. The caller has a shorter deadline of
	// its own.
	PendingFor time.Duration
}

// Part serves one kind of message within the sessions, and not over the bus: for messages that a
// busy module must not delay, and that must not delay a module.
type Part interface {
	// Attach is called for each session before its first message. up is the session, and send of
	// it; send holds its caller back while the link's queue is full. handle is called by the
	// session's read loop, in order, and must not block; its error ends the link, with the code of
	// a *link.CloseError in it. run lives for as long as the session; the hub dials again only when
	// it has returned.
	Attach(up linkstate.Link, send func(context.Context, message.Message) error) (
		handle func(context.Context, message.Message) error, run func(context.Context))
}

// Trust has the certificates that this device trusts, which the cloud may change over a trusted
// link.
type Trust interface {
	// TrustSum is of pki.TrustSum.
	TrustSum() []byte
	// Renew is called with the cloud's new trust, and the certificate that the cloud has presented.
	Renew(teller *x509.Certificate, ca, clientCA []byte) error
}

// Epochs gives each session its number.
type Epochs interface {
	// NextEpoch returns a number above all that it returned before, in this process or an
	// earlier one.
	NextEpoch(ctx context.Context) (uint64, error)
}

func (c Config) withDefaults() Config {
	c.Protocols = cmp.Or(c.Protocols, protocol.Ours())
	c.Module = cmp.Or(c.Module, "metamanager")
	c.Keepalive = cmp.Or(c.Keepalive, 10*time.Second)
	c.BackoffMin = cmp.Or(c.BackoffMin, time.Second)
	c.BackoffMax = cmp.Or(c.BackoffMax, 30*time.Second)
	c.Eager = cmp.Or(c.Eager, 2*time.Minute)
	c.SlowRetry = cmp.Or(c.SlowRetry, 5*time.Minute)
	c.Steady = cmp.Or(c.Steady, time.Minute)
	c.DialTimeout = cmp.Or(c.DialTimeout, 15*time.Second)
	c.WelcomeTimeout = cmp.Or(c.WelcomeTimeout, 25*time.Second)
	c.MaxPending = cmp.Or(c.MaxPending, 1024)
	c.RescueFor = cmp.Or(c.RescueFor, 15*time.Minute)
	c.PendingFor = cmp.Or(c.PendingFor, 5*time.Minute)
	return c
}

// Validate reports every value that makes no sense.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if len(c.Servers) == 0 {
		errs = append(errs, errors.New("servers: name at least one cloudcore"))
	}
	for i, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			errs = append(errs, fmt.Errorf("servers[%d]: %w", i, err))
		}
	}
	if c.Dialer == nil || c.Epochs == nil || c.Alive == nil {
		errs = append(errs, errors.New("dialer, epochs and alive must be set"))
	}
	if c.Keepalive < time.Second || c.Keepalive > 10*time.Minute {
		errs = append(errs, fmt.Errorf("keepalive: %v is not between 1s and 10m", c.Keepalive))
	}
	if c.BackoffMin < 0 || c.BackoffMax < c.BackoffMin {
		errs = append(errs, fmt.Errorf("backoffMax: %v is below backoffMin (%v)", c.BackoffMax, c.BackoffMin))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"eager", c.Eager}, {"slowRetry", c.SlowRetry}, {"steady", c.Steady}, {"dialTimeout", c.DialTimeout},
		{"welcomeTimeout", c.WelcomeTimeout}, {"pendingFor", c.PendingFor}, {"rescueFor", c.RescueFor},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is below 0", d.name, d.value))
		}
	}
	if c.MaxPending < 0 {
		errs = append(errs, fmt.Errorf("maxPending: %d is below 0", c.MaxPending))
	}
	return errors.Join(errs...)
}
