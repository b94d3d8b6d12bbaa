package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// headStart is how long the first choice of Auto dials alone. Its handshake takes two or three
	// round trips: where they last longer both are tried.
	headStart = 500 * time.Millisecond
	// remember is how long Auto keeps to websocket where that has won, before it tries QUIC first
	// again: networks change.
	remember = time.Hour
	// shortLived is the age below which a QUIC link that fell silent counts as one that only seemed
	// to work: some firewalls let only a handshake through.
	shortLived = 2 * time.Minute
	// afterRefusal is how long the other choice has once one was refused by a machine, and
	// refusals how many times as long as that took, if that is longer: where one round trip is
	// slow, so are the two or three of a handshake. A replica that died refuses TCP and is silent
	// by UDP; the dialer's own bound is many times as long.
	afterRefusal = 5 * time.Second
	refusals     = 8
)

// Auto returns a dialer that prefers quic, and takes ws where UDP is blocked. The second choice is
// dialled when the first fails or takes its time, and the first link that opens wins; the winner is
// the first choice for the next dial.
func Auto(quic, ws Dialer) Dialer { return &auto{quic: quic, ws: ws} }

type auto struct {
	// Set by Auto, never changed.
	quic, ws Dialer

	mu    sync.Mutex
	wsWon time.Time // when websocket was last the better; zero: QUIC is the first choice
	last  Conn      // that was opened last
}

// choose returns the dialers in order.
func (a *auto) choose() (first, second Dialer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.last; c != nil && c.Info().Transport == QUIC {
		why, ok := errors.AsType[*CloseError](c.Err())
		if ok && !why.Remote && (why.Code == CloseTimeout || why.Code == CloseNetwork) && time.Since(c.Info().Since) < shortLived {
			a.wsWon = time.Now()
		}
	}
	a.last = nil
	if a.wsWon.IsZero() || time.Since(a.wsWon) > remember {
		return a.quic, a.ws
	}
	return a.ws, a.quic
}

func (a *auto) won(by Dialer, c Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = c
	switch {
	case by == a.quic:
		a.wsWon = time.Time{}
	case a.wsWon.IsZero() || time.Since(a.wsWon) > remember: // an hour from the first time, not from each
		a.wsWon = time.Now()
	}
}

// Dial implements Dialer. It returns when both attempts have ended.
func (a *auto) Dial(ctx context.Context, address string) (Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type attempt struct {
		dialer Dialer
		conn   Conn
		err    error
		took   time.Duration
	}
	results := make(chan attempt, 2)
	dial := func(d Dialer) {
		began := time.Now()
		c, err := d.Dial(ctx, address)
		results <- attempt{d, c, err, time.Since(began)}
	}
	first, second := a.choose()
	go dial(first)
	running := 1
	wait := time.NewTimer(headStart)
	defer wait.Stop()
	startSecond := wait.C
	var winner attempt
	var errs []error
	for running > 0 {
		select {
		case <-startSecond:
			startSecond = nil
			running++
			go dial(second)
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				if Refused(r.err) {
					defer time.AfterFunc(max(afterRefusal, refusals*r.took), cancel).Stop()
				}
				if startSecond != nil && ctx.Err() == nil {
					startSecond = nil
					running++
					go dial(second)
				}
			case winner.conn == nil:
				winner, startSecond = r, nil
				cancel()
			default:
				// Both have opened at one moment. Closing is bounded, and the winner need
				// not wait for it.
				go func() { _ = r.conn.Close(CloseReplaced, "another transport was quicker") }()
			}
		}
	}
	if winner.conn == nil {
		return nil, fmt.Errorf("dialling by both transports: %w", several(errs...))
	}
	a.won(winner.dialer, winner.conn)
	return winner.conn, nil
}
