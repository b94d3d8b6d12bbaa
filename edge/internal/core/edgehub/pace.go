package edgehub

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/common/link"
)

// While a machine refuses connections and the failures began recently, the back-off is bounded by
// nearBackoffs BackoffMin: the mean wait is half of it, so that with the defaults a device dials
// every 2 s. For as long as the node's Lease may still be valid it is bounded by soonBackoffs if no
// process listens (ECONNREFUSED): as many attempts as without any answer, and none of them loads a
// cloudcore. A connection that is reset or closed may have been accepted by an overloaded
// cloudcore, and more attempts would only add to its handshakes.
const (
	soonBackoffs = 2
	soon         = 30 * time.Second
	nearBackoffs = 4
)

// worked bounds the wait after a session that carried messages of the cloud until the network ended
// it: on average a device begins no more than one such session in this time, as a session costs the
// cloud a handshake and a comparison of its sets. One that lasted for as long resets the back-off.
const worked = 10 * time.Second

// versionTries is how often in a row an address may answer with another protocol before it is
// skipped for SlowRetry: one name may have several replicas, and while they are upgraded one after
// another each attempt may reach another. The back-off applies between them.
const versionTries = 10

// pace decides which server to dial next and when. It has no clock and no goroutine; owned by the
// goroutine that dials.
type pace struct {
	config  Config
	random  func() float64 // in [0, 1)
	servers []string

	next       int                  // index of the server whose turn it is
	holds      map[string]time.Time // servers that asked for a delay, or that refuse us
	notBefore  time.Time            // for all of them
	tried      map[string]bool      // servers that failed in this round
	rounds     int                  // that failed, and let the back-off grow
	since      time.Time            // when the trouble began
	silent     bool                 // the last failure was no answer at all
	near       bool                 // the last failure was a machine's refusal of the connection
	portClosed bool                 // and no process listened there
	last       time.Time            // when a try was last started
	replaced   int                  // how often in a row another session of this node was preferred
	versions   map[string]int       // how often in a row a server's address was reached by another protocol
}

func newPace(config Config, random func() float64, now time.Time) *pace {
	return &pace{
		config: config, random: random, servers: config.Servers,
		next: int(random() * float64(len(config.Servers))), holds: map[string]time.Time{}, tried: map[string]bool{}, versions: map[string]int{}, since: now,
	}
}

// pick returns the server to dial next, and the time from which on that may happen.
func (p *pace) pick() (server string, at time.Time) {
	for i := range p.servers {
		s := p.servers[(p.next+i)%len(p.servers)]
		from := p.notBefore
		if hold := p.holds[s]; hold.After(from) {
			from = hold
		}
		if server == "" || from.Before(at) {
			server, at = s, from
		}
	}
	return server, at
}

// started notes that server is being dialled.
func (p *pace) started(server string, now time.Time) {
	p.last = now
	delete(p.holds, server)
	for i, s := range p.servers {
		if s == server {
			p.next = (i + 1) % len(p.servers)
		}
	}
	if p.eager(now) {
		// Not before: the tries of a network that does not answer come at a steady pace, however
		// soon each of them fails.
		p.notBefore = now.Add(p.spread(p.config.BackoffMin, 0.75, 1))
	}
}

// eager reports whether to hurry: no server answered, and for a short time only.
func (p *pace) eager(now time.Time) bool { return p.silent && p.early(now) }

// early reports whether the failures began recently.
func (p *pace) early(now time.Time) bool { return now.Sub(p.since) < p.config.Eager }

// failed notes that a try at server ended without a session.
func (p *pace) failed(server string, now time.Time, err error) {
	p.fail(server, now, err, p.config.BackoffMax)
}

// fail is failed, or the end of a session that did not last; most bounds the back-off.
func (p *pace) fail(server string, now time.Time, err error, most time.Duration) {
	p.hold(server, now, err)
	p.silent, p.near, p.portClosed = silence(err), link.Refused(err), errors.Is(err, syscall.ECONNREFUSED)
	if end, ok := errors.AsType[*link.CloseError](err); ok && end.Code == link.CloseReplaced {
		p.replaced++
	}
	p.tried[server] = true
	switch {
	case p.eager(now):
		clear(p.tried) // started has set the pace
	case p.untried(now):
		p.notBefore = now // another may be better
	default:
		clear(p.tried)
		p.rounds++
		// Full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
		p.notBefore = now.Add(time.Duration(p.random() * float64(p.ceiling(now, most))))
	}
}

// untried reports whether a server has not failed in this round and may be dialled now.
func (p *pace) untried(now time.Time) bool {
	return slices.ContainsFunc(p.servers, func(s string) bool { return !p.tried[s] && !p.holds[s].After(now) })
}

// ceiling is the longest back-off of this round, and at most most. Where connections are refused it
// stays low at first: a load balancer still sends some connections to a dead replica, and the next
// one may reach a live one. In that time the node's Lease must not run out.
func (p *pace) ceiling(now time.Time, most time.Duration) time.Duration {
	if p.near && p.early(now) {
		most = min(most, nearBackoffs*p.config.BackoffMin)
		if p.portClosed && now.Sub(p.since) < soon {
			most = min(most, soonBackoffs*p.config.BackoffMin)
		}
	}
	d := p.config.BackoffMin
	for range p.rounds - 1 {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(d, most)
}

// ended notes that a session with server ended after it had lasted for so long; carried: it brought
// messages of the cloud.
func (p *pace) ended(server string, now time.Time, lasted time.Duration, carried bool, err error) {
	p.since = now
	if end, ok := errors.AsType[*link.CloseError](err); lasted >= p.config.Steady || !ok || end.Code != link.CloseReplaced {
		p.replaced = 0
	}
	if lasted < p.config.Steady {
		most := p.config.BackoffMax
		if carried && networkEnded(err) {
			if lasted >= worked {
				p.rounds = 0
			}
			// The jitter halves it on average.
			most = min(most, max(p.config.BackoffMin, 2*(worked-lasted)))
		}
		p.fail(server, now, err, most)
		return
	}
	clear(p.tried)
	p.rounds, p.silent, p.near = 0, silence(err), false
	p.hold(server, now, err)
	p.notBefore = now
}

// networkEnded reports whether the network ended a session, and neither end closed it.
func networkEnded(err error) bool {
	end, ok := errors.AsType[*link.CloseError](err)
	return ok && (end.Code == link.CloseNetwork || end.Code == link.CloseTimeout)
}

// renewed notes that we ended a session ourselves because a new one is wanted.
func (p *pace) renewed(now time.Time) { p.notBefore = now }

// taken reports whether another device seems to use this node's name: its session repeatedly
// replaces ours. A single time may be our own earlier session whose end the cloud has not noticed
// yet.
func (p *pace) taken() bool { return p.replaced >= 2 }

// hold avoids a server that asked for a delay, or that refuses us until an administrator acts.
func (p *pace) hold(server string, now time.Time, err error) {
	end, ok := errors.AsType[*link.CloseError](err)
	if !ok || end.Code != link.CloseVersion {
		delete(p.versions, server)
	} else if p.versions[server]++; p.versions[server] < versionTries {
		return
	}
	switch {
	case !ok:
	case !end.Code.Reconnect():
		p.holds[server] = now.Add(p.spread(p.config.SlowRetry, 0.8, 1.2))
	case end.Code == link.CloseOverloaded:
		if after, ok := retryAfter(end.Reason); ok {
			p.holds[server] = now.Add(p.spread(after, 1, 1.25))
		}
	}
}

// wake resets the back-off: the network changed. A server's request remains in force: to wait, or
// not to dial before an administrator acts.
func (p *pace) wake(now time.Time) {
	const least = 250 * time.Millisecond // an interface that flaps shall not make us spin
	p.notBefore = now
	if soonest := p.last.Add(least); soonest.After(now) {
		p.notBefore = soonest
	}
	clear(p.tried)
	p.rounds = 0
	p.since = now
}

// spread returns a random part of d between the two factors.
func (p *pace) spread(d time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(d) * (from + (to-from)*p.random()))
}

// retryAfter reads "retry-after=SECONDS" in the reason of a refusal. No server can send us away for
// longer than an hour.
func retryAfter(reason string) (time.Duration, bool) {
	seconds, ok := numberAfter(reason, "retry-after=")
	return time.Duration(min(seconds, 3600)) * time.Second, ok
}

// numberAfter reads the number behind a word in the reason of a refusal.
func numberAfter(reason, word string) (uint64, bool) {
	_, rest, ok := strings.Cut(reason, word)
	if !ok {
		return 0, false
	}
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		rest = rest[:end]
	}
	n, err := strconv.ParseUint(rest, 10, 64)
	return n, err == nil
}

// silence reports whether err looks like a cut network: no server answered, or there was no route.
func silence(err error) bool {
	if end, ok := errors.AsType[*link.CloseError](err); ok && end.Remote {
		return false
	} else if ok && end.Code == link.CloseTimeout {
		return true
	}
	if errors.Is(err, syscall.ECONNREFUSED) { // an answer, though perhaps not of every transport that was tried
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	for _, errno := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.ETIMEDOUT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return !dns.IsNotFound
	}
	if timeout, ok := errors.AsType[net.Error](err); ok {
		return timeout.Timeout()
	}
	return false
}
