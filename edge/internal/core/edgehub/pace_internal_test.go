package edgehub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/link"
)

func testPace(random float64, servers ...string) *pace {
	return newPace(Config{Servers: servers}.withDefaults(), func() float64 { return random }, epochZero)
}

var epochZero = time.Unix(1_000_000, 0)

// after returns the delay from now to the next attempt.
func (p *pace) after(now time.Time) time.Duration {
	_, at := p.pick()
	return max(0, at.Sub(now))
}

var (
	errRefused = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	errNoRoute = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	errStrange = fmt.Errorf("dialling: %w", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
)

func TestPace_BacksOffWithFullJitter(t *testing.T) {
	ceilings := []float64{1, 2, 4, 8, 16, 30, 30, 30} // seconds
	for _, random := range []float64{0, 0.25, 0.5, 0.999} {
		p := testPace(random, "a:1")
		now := epochZero
		for i, c := range ceilings {
			p.started("a:1", now)
			p.failed("a:1", now, errStrange)
			want := time.Duration(random * c * float64(time.Second))
			if got := p.after(now); got != want {
				t.Errorf("random %v, failure %d: next after %v, want %v", random, i+1, got, want)
			}
			now = now.Add(want)
		}
	}
}

// A load balancer still sends connections to a dead replica: one of the next may reach another.
func TestPace_StaysNearWhereConnectionsAreRefused(t *testing.T) {
	dialling := func(err error) error { return fmt.Errorf("dialling websocket a:1: %w", err) }
	reset := &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for name, c := range map[string]struct {
		err           error
		config        Config
		soon, ceiling time.Duration // of a wait that begins in the first 30 s, and of a later one
	}{
		"refused":                {dialling(errRefused), Config{}, 2 * time.Second, 4 * time.Second},
		"refused by one of both": {errors.Join(context.DeadlineExceeded, dialling(errRefused)), Config{}, 2 * time.Second, 4 * time.Second},
		"reset":                  {dialling(reset), Config{}, 4 * time.Second, 4 * time.Second},
		"ended":                  {dialling(io.EOF), Config{}, 4 * time.Second, 4 * time.Second},
		"ended within a word":    {dialling(io.ErrUnexpectedEOF), Config{}, 4 * time.Second, 4 * time.Second},
		"other bounds":           {dialling(errRefused), Config{BackoffMin: 5 * time.Second, BackoffMax: time.Minute}, 10 * time.Second, 20 * time.Second},
		"a low bound":            {dialling(errRefused), Config{BackoffMin: 5 * time.Second, BackoffMax: 10 * time.Second}, 10 * time.Second, 10 * time.Second},

		"not trusted":             {errStrange, Config{}, 30 * time.Second, 30 * time.Second},
		"refused by a cloudcore":  {dialling(&link.CloseError{Code: link.CloseOverloaded, Remote: true}), Config{}, 30 * time.Second, 30 * time.Second},
		"ended after a handshake": {&link.CloseError{Code: link.CloseNetwork, Err: io.EOF}, Config{}, 30 * time.Second, 30 * time.Second},
		"reset after a handshake": {&link.CloseError{Code: link.CloseNetwork, Err: reset}, Config{}, 30 * time.Second, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			for _, random := range []float64{0.25, 0.5, 0.999} {
				c.config.Servers = []string{"a:1"}
				p := newPace(c.config.withDefaults(), func() float64 { return random }, epochZero)
				now := epochZero
				p.ended("a:1", now, time.Hour, true, &link.CloseError{Code: link.CloseNetwork, Err: io.EOF})
				try := func() time.Duration {
					p.started("a:1", now)
					p.failed("a:1", now, c.err)
					return p.after(now)
				}
				of := func(ceiling time.Duration) time.Duration { return time.Duration(random * float64(ceiling)) }
				longest := func(until time.Duration) (longest time.Duration) {
					for now.Sub(epochZero) < until {
						wait := try()
						longest, now = max(longest, wait), now.Add(wait)
					}
					return longest
				}
				if got, want := longest(soon), of(c.soon); got > want {
					t.Errorf("random %v: in the first %v the longest wait is %v, want %v at most", random, soon, got, want)
				}
				if got, want := longest(p.config.Eager), of(c.ceiling); got != want {
					t.Errorf("random %v: in the first %v the longest wait is %v, want %v", random, p.config.Eager, got, want)
				}
				// A refusal for so long is not a single dead replica.
				if got, want := try(), of(p.config.BackoffMax); got != want {
					t.Errorf("random %v: after %v the wait is %v, want %v", random, p.config.Eager, got, want)
				}
			}
		})
	}
}

func TestPace_TriesEveryServerBeforeItBacksOff(t *testing.T) {
	p := testPace(0.5, "a:1", "b:1", "c:1") // starts with b
	var got []string
	now := epochZero
	for range 6 {
		server, at := p.pick()
		if at.After(now) {
			got = append(got, at.Sub(now).String())
			now = at
		}
		got = append(got, server)
		p.started(server, now)
		p.failed(server, now, errRefused)
	}
	if diff := cmp.Diff([]string{"b:1", "c:1", "a:1", "500ms", "b:1", "c:1", "a:1"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestPace_StartsAnywhere(t *testing.T) {
	for random, want := range map[float64]string{0: "a:1", 0.4: "b:1", 0.999: "c:1"} {
		if got, _ := testPace(random, "a:1", "b:1", "c:1").pick(); got != want {
			t.Errorf("random %v starts with %s, want %s", random, got, want)
		}
	}
}

func TestPace_HonoursWhatServersAsk(t *testing.T) {
	overloaded := func(reason string) error {
		return fmt.Errorf("hello: %w", &link.CloseError{Code: link.CloseOverloaded, Reason: reason, Remote: true})
	}
	for name, c := range map[string]struct {
		err         error
		least, most time.Duration
	}{
		"later":         {overloaded("retry-after=60: all sessions are taken"), 60 * time.Second, 75 * time.Second},
		"much later":    {overloaded("retry-after=999999"), time.Hour, 75 * time.Minute},
		"no number":     {overloaded("retry-after=soon"), 0, time.Second},
		"no time":       {overloaded("go away"), 0, time.Second},
		"forbidden":     {&link.CloseError{Code: link.CloseForbidden, Remote: true}, 4 * time.Minute, 6 * time.Minute},
		"wrong version": {&link.CloseError{Code: link.CloseVersion}, 0, time.Second},
		"gone":          {&link.CloseError{Code: link.CloseGone, Remote: true}, 4 * time.Minute, 6 * time.Minute},
		"replaced":      {&link.CloseError{Code: link.CloseReplaced, Remote: true}, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			for _, random := range []float64{0, 0.5, 0.999} {
				p := testPace(random, "a:1")
				p.started("a:1", epochZero)
				p.failed("a:1", epochZero, c.err)
				if got := p.after(epochZero); got < c.least || got > c.most {
					t.Errorf("random %v: next after %v, want %v to %v", random, got, c.least, c.most)
				}
				// A change of the network does not make the server think otherwise.
				p.wake(epochZero.Add(time.Second))
				if got := p.after(epochZero); c.least > time.Second && got < c.least {
					t.Errorf("random %v: after a wake: %v", random, got)
				}
			}
		})
	}
	p := testPace(0, "a:1", "b:1")
	p.started("a:1", epochZero)
	p.failed("a:1", epochZero, overloaded("retry-after=60"))
	if server, at := p.pick(); server != "b:1" || at.After(epochZero) {
		t.Errorf("next is %s at %v, want the other at once", server, at)
	}
	p.started("b:1", epochZero)
	p.failed("b:1", epochZero, errRefused)
	p.notBefore = p.notBefore.Add(time.Second) // a back-off, had the dice been otherwise
	if server, at := p.pick(); server != "b:1" || at != epochZero.Add(time.Second) {
		t.Errorf("next is %s at %v, want b:1 alone after its back-off", server, at)
	}
}

// A balancer's name has replicas of two protocols while they are upgraded: the name is retried
// soon. If all have another one, it is skipped.
func TestPace_AnotherReplicaMayBeBehindTheSameAddress(t *testing.T) {
	other := &link.CloseError{Code: link.CloseVersion, Remote: true}
	p := testPace(0.999, "balancer:1")
	now := epochZero
	for i := range 40 {
		p.started("balancer:1", now)
		p.failed("balancer:1", now, other)
		wait := p.after(now)
		if i < versionTries-1 && wait > 30*time.Second {
			t.Fatalf("after %d refusals the next try comes after %v", i+1, wait)
		}
		if i >= versionTries-1 && wait < 4*time.Minute {
			t.Fatalf("after %d refusals the next try comes after %v", i+1, wait)
		}
		now = now.Add(wait)
	}
	p.started("balancer:1", now)
	p.ended("balancer:1", now, time.Hour, true, errRefused)
	p.failed("balancer:1", now, other)
	if wait := p.after(now); wait > 30*time.Second {
		t.Errorf("after a session the next try comes after %v", wait)
	}
}

func TestPace_SilentNetworkIsTriedEagerly_ThenLessAndLess(t *testing.T) {
	p := testPace(0.5, "a:1")
	now := epochZero
	p.ended("a:1", now, time.Hour, true, &link.CloseError{Code: link.CloseTimeout})
	if got := p.after(now); got != 0 {
		t.Errorf("the first try comes after %v", got)
	}
	var longest time.Duration
	for now.Sub(epochZero) < 2*time.Minute {
		p.started("a:1", now)
		p.failed("a:1", now, errNoRoute)
		d := p.after(now)
		if d < 500*time.Millisecond || d > time.Second {
			t.Fatalf("%v after the loss the next try comes after %v", now.Sub(epochZero), d)
		}
		now = now.Add(d)
	}
	for range 10 {
		p.started("a:1", now)
		p.failed("a:1", now, errNoRoute)
		longest = p.after(now)
		now = now.Add(longest)
	}
	if longest != 15*time.Second { // half of the bound
		t.Errorf("after ten more tries the next comes after %v", longest)
	}
	p.wake(now)
	if got := p.after(now); got > 250*time.Millisecond {
		t.Errorf("when the network changed the next try comes after %v", got)
	}
}

func TestPace_EndOfASession(t *testing.T) {
	gone := &link.CloseError{Code: link.CloseShutdown, Remote: true}
	lost := &link.CloseError{Code: link.CloseNetwork, Err: io.EOF}
	silent := &link.CloseError{Code: link.CloseTimeout, Remote: true}
	for name, c := range map[string]struct {
		lasted   time.Duration
		carried  bool
		failures int
		err      error
		want     time.Duration
	}{
		"lasted":                     {time.Minute, true, 0, gone, 0},
		"lasted, after much trouble": {time.Minute, true, 6, gone, 0},
		"short":                      {59 * time.Second, true, 0, gone, 500 * time.Millisecond},
		"short, after much trouble":  {59 * time.Second, true, 6, gone, 15 * time.Second},

		"lost":                             {10 * time.Second, true, 6, lost, 500 * time.Millisecond},
		"given up by the cloud":            {40 * time.Second, true, 6, silent, 500 * time.Millisecond},
		"lost soon":                        {4 * time.Second, true, 6, lost, 6 * time.Second},
		"lost soon, the first time":        {4 * time.Second, true, 0, lost, 500 * time.Millisecond},
		"lost at once":                     {0, true, 6, lost, 10 * time.Second},
		"lost, with answers of heartbeats": {59 * time.Second, false, 6, lost, 15 * time.Second},
		"not understood":                   {59 * time.Second, true, 6, &link.CloseError{Code: link.CloseProtocol}, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPace(0.5, "a:1")
			for range c.failures {
				p.started("a:1", epochZero)
				p.failed("a:1", epochZero, errRefused)
			}
			p.ended("a:1", epochZero, c.lasted, c.carried, c.err)
			if got := p.after(epochZero); got != c.want {
				t.Errorf("next after %v, want %v", got, c.want)
			}
		})
	}
}

// A replica that ends a session so that another one gets it, or that is full while another is not,
// sends CloseShutdown: another address is dialled at once, and a single address for all replicas is
// dialled again soon.
func TestPace_AnotherReplicaHasRoom(t *testing.T) {
	leave := &link.CloseError{Code: link.CloseShutdown, Remote: true}
	for _, random := range []float64{0, 0.5, 0.999} {
		p := testPace(random, "a:1", "b:1", "c:1")
		first, _ := p.pick()
		p.started(first, epochZero)
		p.ended(first, epochZero, 3*time.Minute, true, leave)
		second, at := p.pick()
		if second == first || at.After(epochZero) {
			t.Errorf("after a session with %s: %s at %v", first, second, at)
		}
		p.started(second, epochZero)
		p.failed(second, epochZero, leave) // reports that it is full
		if third, at := p.pick(); third == first || third == second || at.After(epochZero) {
			t.Errorf("after %s and %s: %s at %v", first, second, third, at)
		}

		p = testPace(random, "balancer:1")
		p.started("balancer:1", epochZero)
		p.ended("balancer:1", epochZero, 3*time.Minute, true, leave)
		if got := p.after(epochZero); got != 0 {
			t.Errorf("after a session: %v", got)
		}
		p.started("balancer:1", epochZero)
		p.failed("balancer:1", epochZero, leave)
		if got := p.after(epochZero); got > time.Second {
			t.Errorf("after a replica that is full: %v", got)
		}
	}
}

func TestPace_KnowsANameThatIsTaken(t *testing.T) {
	replaced := &link.CloseError{Code: link.CloseReplaced, Remote: true}
	p := testPace(0.5, "a:1")
	p.ended("a:1", epochZero, time.Second, true, replaced)
	if p.taken() {
		t.Error("once may be our own earlier session")
	}
	p.failed("a:1", epochZero, errNoRoute) // no information
	p.ended("a:1", epochZero, time.Second, true, replaced)
	if !p.taken() {
		t.Error("twice in a row is another device")
	}
	p.ended("a:1", epochZero, time.Hour, true, replaced)
	if p.taken() {
		t.Error("a session that lasted ends the suspicion")
	}
}

func TestRetryAfter(t *testing.T) {
	for reason, want := range map[string]time.Duration{
		"retry-after=0":                       0,
		"retry-after=12":                      12 * time.Second,
		"busy; retry-after=7, please":         7 * time.Second,
		"retry-after=4000000000":              time.Hour,
		"retry-after=":                        -1,
		"retry-after=-5":                      -1,
		"retry-after=99999999999999999999999": -1,
		"":                                    -1,
	} {
		got, ok := retryAfter(reason)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %v, want %v", reason, got, want)
		}
	}
}

func TestSilence(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"deadline":      {fmt.Errorf("dialling: %w", context.DeadlineExceeded), true},
		"no route":      {errNoRoute, true},
		"refused":       {errRefused, false},
		"one refused":   {errors.Join(context.DeadlineExceeded, errRefused), false},
		"link timeout":  {&link.CloseError{Code: link.CloseTimeout}, true},
		"sent timeout":  {&link.CloseError{Code: link.CloseTimeout, Remote: true}, false},
		"network":       {&link.CloseError{Code: link.CloseNetwork, Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}, true},
		"reset":         {&link.CloseError{Code: link.CloseNetwork, Err: os.NewSyscallError("read", syscall.ECONNRESET)}, false},
		"no resolver":   {&net.DNSError{IsTemporary: true}, true},
		"no such name":  {&net.DNSError{IsNotFound: true}, false},
		"anything else": {errors.New("x509: certificate signed by unknown authority"), false},
	} {
		if got := silence(c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("retry-after=12: all sessions are taken")
	for _, n := range []string{"-1", "99999999999999999999", "1e9", "0x7fffffff", "9223372036854775807"} {
		f.Add("retry-after=" + n + ": x")
	}
	f.Fuzz(func(t *testing.T, reason string) {
		if d, ok := retryAfter(reason); ok && (d < 0 || d > time.Hour) {
			t.Errorf("%q: %v", reason, d)
		}
	})
}
