// Package campaign runs a whole system under faults, with clients on both of its sides, and records
// their actions and observations: a real control plane, cloudcores behind one address, and edges
// that are edgecore without a kubelet, each a process on loopback; or a trial, whose edges have
// kubelet and containers (OnTrial). Package history judges the records.
//
// It owns the processes and one directory, and ends the processes with its own. A seed gives the
// same schedule and the same clients again, though not the same moments: the system under test has
// a clock of its own. Run is called once for each campaign; several may run side by side.
//
// It is above 2,500 lines because faults, clients and the stand-ins for kubelets and agents work on
// one system, whose parts they all need.
package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/skerry-io/skerry/tests/campaign/history"
)

// Result is the outcome of a campaign.
type Result struct {
	History    history.History
	Violations []history.Violation
	// Settled is how long it took after the last fault until all had the same; 0 if they never did.
	Settled time.Duration
	// Played is how long the schedule was played.
	Played time.Duration
}

// Run runs a campaign. Its error is that of the campaign itself: failures of the system are in the
// result.
func Run(ctx context.Context, o Options) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := start(ctx, o)
	if s != nil {
		defer s.stop()
	}
	if err != nil {
		return Result{}, err
	}
	return s.run(ctx)
}

// run lets viewers and clients work, plays the schedule, and judges.
func (s *system) run(ctx context.Context) (Result, error) {
	o := s.options
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, quiet := context.WithCancel(ctx)
	defer quiet()
	var clients, viewers sync.WaitGroup
	viewers.Go(func() { s.watchCloud(ctx) })
	for _, e := range s.edges {
		if e.device != nil {
			viewers.Go(func() { e.device.run(ctx, work) })
			continue
		}
		k := s.newKubelet(e)
		viewers.Go(func() { k.run(ctx, work) })
	}
	if err := s.awaitEdges(ctx); err != nil {
		cancel()
		viewers.Wait()
		return Result{}, err
	}
	s.populate(ctx, work, &clients, &viewers)
	playing, found := context.WithCancel(ctx)
	defer found()
	looking, enough := context.WithCancel(ctx)
	defer enough()
	var until history.History // something was found in it
	var looks sync.WaitGroup
	if o.UntilFound {
		looks.Go(func() { until = s.look(looking, found) })
	}
	began := time.Now()
	err := s.breakThings(playing, Plan(o))
	played := time.Since(began)
	enough()
	looks.Wait()
	if until != nil && ctx.Err() == nil {
		quiet()
		clients.Wait()
		cancel()
		viewers.Wait()
		return Result{History: until, Violations: until.SoFar(), Played: played}, nil
	}
	quiet()
	clients.Wait()
	result, unsettled := s.settle(ctx) // also where a fault could not be played: the records are judged all the same
	result.Played = played
	cancel()
	viewers.Wait()
	if err := errors.Join(err, unsettled); err != nil {
		return result, errors.Join(err, s.keep(result))
	}
	return result, s.keep(result)
}

// populate starts the clients, which end with work, and the reporting and watching ones, which end
// with ctx.
func (s *system) populate(ctx, work context.Context, clients, viewers *sync.WaitGroup) {
	for _, e := range s.edges {
		for n := range s.options.Pods {
			slot := newSlot(s, e.name, n)
			clients.Go(func() { slot.run(work) })
		}
		if e.device != nil {
			continue // it has agents of its own, which carry out a NodeOperation
		}
		a := &agent{s: s, edge: e}
		viewers.Go(func() { a.run(ctx, work) })
	}
	for _, e := range s.edges[len(s.edges)-s.options.Calm:] {
		viewers.Go(func() { s.watchReady(ctx, e) })
	}
}

// look ends the schedule once a violation is found, and returns the history that shows it. It does
// not judge while a cluster goes back or a store is damaged: that is recorded when it is over.
func (s *system) look(ctx context.Context, found func()) history.History {
	for ; ctx.Err() == nil; pause(ctx, 5*time.Second) {
		before := s.excuses.Load()
		h := s.recorder.History()
		if before+s.excuses.Load() == 0 && len(h.SoFar()) > 0 {
			found()
			return h
		}
	}
	return nil
}

// keep writes the history and the violations into the campaign's directory.
func (s *system) keep(r Result) error {
	f, err := os.Create(filepath.Join(s.options.Dir, "history.jsonl"))
	if err != nil {
		return fmt.Errorf("keeping the history: %w", err)
	}
	defer f.Close()
	if err := r.History.Write(f); err != nil {
		return err
	}
	return f.Close()
}

// settle waits until all have the same, at most for the bound, and judges.
func (s *system) settle(ctx context.Context) (Result, error) {
	began := time.Now()
	for {
		finals, err := s.finals(ctx)
		if err == nil {
			read := time.Since(began) // to judge a long history takes some time
			h := append(s.recorder.History(), finals...)
			if len(h.Unsettled()) == 0 {
				return Result{History: h, Violations: h.Check(), Settled: read}, nil
			}
			if read > s.options.Bound {
				return Result{History: h, Violations: h.Check()}, nil
			}
		} else if time.Since(began) > s.options.Bound {
			return Result{}, fmt.Errorf("reading what all have at the end: %w", err)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
	}
}
