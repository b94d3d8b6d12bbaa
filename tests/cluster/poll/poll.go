// Package poll asks until something is so.
//
// It owns the pauses between two questions, and refuses to make a busy machine busier: a question
// that takes long, as one that starts a program does, is asked less often. Every function may be
// called from any goroutine.
package poll

import (
	"context"
	"time"
)

const (
	first = 10 * time.Millisecond
	// share bounds the part of the time that is spent on questions: a fifth.
	share = 4
	// longest bounds a pause after a question that hung, so that what it waits for isn't missed.
	longest = 2 * time.Second
)

// Until repeats try, with pauses that grow to most, or to four times what try took, until it
// returns nil. When ctx ends first it returns the last error of a try that ended before; that
// of one that was cut off explains less.
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
