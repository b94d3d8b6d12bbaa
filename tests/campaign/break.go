package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/campaign/line"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// breakThings plays a schedule. Everything is whole again when it returns.
func (s *system) breakThings(ctx context.Context, steps []Step) error {
	began := time.Now()
	s.ends = began.Add(s.options.Length)
	var all sync.WaitGroup
	errs := make(chan error, len(steps))
	for _, step := range steps {
		pause(ctx, time.Until(began.Add(step.At)))
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(s.options.Out, "%6.1fs %v\n", time.Since(began).Seconds(), step)
		all.Go(func() {
			r := history.Record{Kind: history.Fault, Who: fmt.Sprintf("%s %d", step.Fault, step.Target+1), At: s.recorder.Now()}
			if err := s.break1(ctx, step); err != nil {
				errs <- fmt.Errorf("%v: %w", step, err)
			}
			r.End = s.recorder.Now()
			s.recorder.Add(r)
		})
	}
	pause(ctx, time.Until(began.Add(s.options.Length)))
	all.Wait()
	close(errs)
	var failed []error
	for err := range errs {
		failed = append(failed, err)
	}
	return errors.Join(append(failed, context.Cause(ctx))...)
}

// break1 breaks something and mends it.
func (s *system) break1(ctx context.Context, step Step) error {
	if s.real != nil {
		if done, err := s.real.break1(ctx, step); done {
			return err
		}
	}
	switch step.Fault {
	case KillCloud:
		return restart(ctx, &s.clouds[step.Target].daemon, step.For)
	case KillEdge:
		return restart(ctx, &s.edges[step.Target].daemon, step.For)
	case BadPage:
		return s.damage(ctx, s.edges[step.Target], step.For)
	case BadRecord:
		return s.badRecord(ctx, s.edges[step.Target], step.For)
	case Full:
		return fill(ctx, s.edges[step.Target], step.For)
	case Rot:
		return s.rot(ctx, s.edges[step.Target])
	case Clock:
		return s.wrongClock(ctx, s.edges[step.Target], step)
	case PauseCloud:
		return stand(ctx, &s.clouds[step.Target].daemon, step.For)
	case PauseEdge:
		return stand(ctx, &s.edges[step.Target].daemon, step.For)
	case DeleteNode:
		return s.deleteNode(ctx, s.edges[step.Target], step.For)
	case Cut, Silent, Thin:
		state := map[Fault]line.State{Cut: {Cut: true}, Silent: {Silent: true}, Thin: {Rate: 4 << 10}}[step.Fault]
		l := s.edges[step.Target].line
		l.Set(state)
		pause(ctx, step.For)
		l.Set(line.State{})
	case Flap:
		s.edges[step.Target].flap(ctx, step.For)
	case Refuse, Deny, Down, Isolate:
		c := s.clouds[step.Target]
		c.decide(decide(step))
		pause(ctx, step.For)
		c.decide(nil)
	case Lag:
		p := s.clouds[step.Target].proxy
		p.SetLag(func(*http.Request) faultproxy.Lag { return faultproxy.Lag{By: step.For} })
		pause(ctx, step.For*3/2)
		p.SetLag(nil)
	case Late:
		return s.holdBack(ctx, s.clouds[step.Target], step.For)
	case KillPlane:
		if !s.planeMu.TryLock() {
			return nil // it is still being started for an earlier step, on a slow machine: steps would pile up behind each other
		}
		defer s.planeMu.Unlock()
		if err := s.plane.Kill(ctx); err != nil {
			return err
		}
		pause(ctx, step.For)
		return s.plane.Start(ctx)
	case OlderCopy:
		return s.goBack(ctx, step.For)
	}
	return nil
}

// deleteNode deletes the Node of an edge without a link, unless kube-apiserver is away. The device
// must register it again.
func (s *system) deleteNode(ctx context.Context, e *edge, length time.Duration) error {
	e.line.Set(line.State{Cut: true})
	defer e.line.Set(line.State{})
	once, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_ = s.client.CoreV1().Nodes().Delete(once, e.name, metav1.DeleteOptions{})
	pause(ctx, length)
	return nil
}

// flap lets an edge's line carry connections for moments only: they end while a session begins, or
// during the comparison of the device's set.
func (e *edge) flap(ctx context.Context, length time.Duration) {
	defer e.line.Set(line.State{})
	for end := time.Now().Add(length); ctx.Err() == nil && time.Now().Before(end); {
		e.line.Set(line.State{Cut: true})
		pause(ctx, time.Duration(700+rand.IntN(600))*time.Millisecond)
		sessions := e.count(sessionOpened)
		e.line.Set(line.State{})
		for up := time.Now().Add(3 * time.Second); e.count(sessionOpened) == sessions && ctx.Err() == nil && time.Now().Before(up); {
			pause(ctx, 20*time.Millisecond)
		}
		pause(ctx, time.Duration(rand.IntN(200))*time.Millisecond)
	}
}

func restart(ctx context.Context, d *daemon, after time.Duration) error {
	if err := d.kill(ctx); err != nil {
		return err
	}
	pause(ctx, after)
	return d.startIn(ctx, againPatience)
}

// wrongClock runs an edgecore with another time of day than all others.
func (s *system) wrongClock(ctx context.Context, e *edge, step Step) error {
	const hour = 3600
	offsets := []int64{-time.Now().Unix(), -24 * hour, hour, 24 * hour} // the first is a device that boots in 1970
	offset := offsets[int(step.At)%len(offsets)]
	if err := e.kill(ctx); err != nil {
		return err
	}
	right := e.spec
	e.spec.Path = s.programs["wrongclock"]
	e.spec.Args = append([]string{strconv.FormatInt(offset, 10), s.programs["asking"]}, right.Args...)
	err := e.start(ctx)
	if err == nil {
		pause(ctx, step.For)
	}
	err = errors.Join(err, e.kill(ctx))
	e.spec = right
	return errors.Join(err, e.start(ctx))
}

// damage flips a bit of a device's store while no process has it open.
func (s *system) damage(ctx context.Context, e *edge, after time.Duration) error {
	over := s.excuse(history.Damage, e.name)
	if err := e.kill(ctx); err != nil {
		return err
	}
	if err := flip(e.store); err != nil {
		return err
	}
	pause(ctx, after)
	err := e.start(ctx)
	over()
	return err
}

// rot flips a bit of a store that is in use. It is unknown whether and when edgecore reads that
// page, so the device counts as damaged until all faults are over. An edgecore that ends because of
// it is started again.
func (s *system) rot(ctx context.Context, e *edge) error {
	over := s.excuse(history.Damage, e.name)
	if err := flip(e.store); err != nil {
		return err
	}
	s.serve(ctx, e.supervise)
	pause(ctx, time.Until(s.ends))
	over()
	return nil
}

func flip(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening a store: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("looking at a store: %w", err)
	}
	at, b := rand.Int64N(info.Size()), make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return fmt.Errorf("reading a store: %w", err)
	}
	b[0] ^= 1 << rand.IntN(8)
	if _, err := f.WriteAt(b, at); err != nil && !errors.Is(err, syscall.ENOSPC) { // a hole in the file, on a full disk: there are no bytes to damage
		return fmt.Errorf("damaging a store: %w", err)
	}
	return f.Close()
}

func stand(ctx context.Context, d *daemon, length time.Duration) error {
	child := d.running()
	if err := child.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, length)
	return child.Signal(syscall.SIGCONT)
}

// holdBack stops a cloudcore whose writes are on their way, and lets them arrive when its edges
// have gone to another one and have written there.
func (s *system) holdBack(ctx context.Context, c *cloudcore, length time.Duration) error {
	arrive := make(chan struct{})
	c.decide(func(r *http.Request) faultproxy.Fault {
		if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/leases") || strings.Contains(r.URL.Path, "reviews") {
			return faultproxy.Fault{}
		}
		return faultproxy.Fault{Until: arrive}
	})
	pause(ctx, time.Second)
	child := c.running()
	for _, e := range s.edges {
		e.line.Avoid(c.websocket) // else some would wait there for an answer all the time
		defer e.line.Avoid("")
	}
	err := child.Signal(syscall.SIGSTOP)
	pause(ctx, length)
	c.decide(nil)
	close(arrive)
	pause(ctx, 500*time.Millisecond) // they land before it can take anything back
	return errors.Join(err, child.Signal(syscall.SIGCONT))
}

// decide returns a proxy's decisions on requests while a step lasts.
func decide(step Step) func(*http.Request) faultproxy.Fault {
	switch step.Fault {
	case Isolate:
		return func(*http.Request) faultproxy.Fault { return faultproxy.Fault{Hang: true} }
	case Down:
		return func(*http.Request) faultproxy.Fault {
			return []faultproxy.Fault{{Code: http.StatusServiceUnavailable}, {Break: true}}[rand.IntN(2)]
		}
	case Deny:
		return func(r *http.Request) faultproxy.Fault {
			if r.Header.Get("Impersonate-User") == "" {
				return faultproxy.Fault{}
			}
			return faultproxy.Fault{Code: http.StatusForbidden}
		}
	}
	kinds := []faultproxy.Fault{{Code: http.StatusTooManyRequests, RetryAfter: 1}, {Code: http.StatusInternalServerError}, {Code: http.StatusConflict}, {Hang: true}, {Lose: true}}
	return func(r *http.Request) faultproxy.Fault {
		kind := kinds[rand.IntN(len(kinds))]
		switch {
		case rand.IntN(3) > 0:
			return faultproxy.Fault{}
		case r.Method == http.MethodGet && kind.Lose:
			return faultproxy.Fault{}
		case kind.Code == http.StatusConflict && r.Method != http.MethodPut && r.Method != http.MethodPatch:
			return faultproxy.Fault{} // to other writers it would report that the object exists, which would be a lie
		}
		return kind
	}
}

// goBack makes a copy of etcd's data, lets some time pass, and puts the copy back.
func (s *system) goBack(ctx context.Context, after time.Duration) error {
	if !s.planeMu.TryLock() {
		return nil // see KillPlane
	}
	defer s.planeMu.Unlock()
	over := s.excuse(history.Restore, history.Cloud)
	some := s.edges[:min(len(s.edges), 4)]
	report := s.makeOnce(ctx, some)
	b, err := s.plane.Backup(ctx)
	if err != nil {
		return err
	}
	report(ctx)
	s.makeLost(ctx, some)
	pause(ctx, after)
	if err := s.plane.Restore(ctx, b); err != nil {
		return err
	}
	over()
	return cluster.RemoveBackup(b)
}
