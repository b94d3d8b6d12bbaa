package trial

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A wait for something that takes long asks seldom; at a fixed 20 ms it was 500 questions in 10 s,
// each of them two lists of kube-apiserver's or a thread that enters a host.
func TestPoll_asksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, most = 10 * time.Second, 50
		began, tries := time.Now(), 0
		err := poll(t.Context(), time.Minute, func(context.Context) (bool, error) {
			tries++
			return time.Since(began) >= takes, nil
		})
		if late := time.Since(began) - takes; err != nil || tries > most || late > pollMost {
			t.Errorf("%v after %d questions, %v late", err, tries, late)
		}
		last := errors.New("the last reason")
		if err := poll(t.Context(), time.Minute, func(context.Context) (bool, error) { return false, last }); !errors.Is(err, last) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of patience: %v", err)
		}
	})
}
