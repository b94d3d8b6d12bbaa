// Package poll asks until something is so.
//
// It owns the pauses between two questions, and refuses to make a busy machine busier: a question
// that takes long, as one that starts a program does, is asked less often. Until may be called from
// any goroutine; Eventually and True end the test, so they are for the test's own.
package poll

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Patience is how long Eventually and True wait: long enough for a machine that is busy with other
// tests. It is no measure of anything.
const Patience = 3 * time.Minute

// Long is how long a wait is that is worth a line of the test's log, which the runner's tables of
// costs collect.
const Long = 3 * time.Second

const (
	first = 10 * time.Millisecond
	// share bounds the part of the time that is spent on questions: a fifth.
	share = 4
	// longest bounds a pause after a question that hung, so that the condition isn't missed.
	longest = 2 * time.Second
)

// Until repeats try, with pauses that grow to most, or to four times the duration of try, until it
// returns nil. When ctx ends first it returns the last error of a try that ended before; that of
// one that was cut off explains less.
func Until(ctx context.Context, most time.Duration, try func(context.Context) error) error {
	var last error
	for pause := first; ; pause = min(2*pause, most) {
		began := time.Now()
		err := try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(max(pause, min(share*time.Since(began), longest))):
		case <-ctx.Done():
			return last
		}
	}
}

// Eventually waits until try returns nil. At the end of Patience the test fails with its last
// error.
func Eventually(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	wait(t, what, 250*time.Millisecond, try)
}

// True waits until is reports true, which has to be cheap. At the end of Patience the test fails.
func True(t testing.TB, what string, is func() bool) {
	t.Helper()
	wait(t, what, 100*time.Millisecond, func(context.Context) error {
		if !is() {
			return errNotTrue
		}
		return nil
	})
}

var errNotTrue = errors.New("it is not so")

func wait(t testing.TB, what string, most time.Duration, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	began := time.Now()
	if err := Until(ctx, most, try); err != nil {
		t.Fatalf("waited %v for %s: %v", Patience, what, err)
	}
	if took := time.Since(began); took > Long {
		t.Logf("waited %v for %s", took.Round(time.Second), what)
	}
}
