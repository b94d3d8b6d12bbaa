package link

import (
	"context"
	"errors"
	"sync"
	"time"
)

// keepOlder is how long Either dials the older way first once that was the one that led somewhere:
// servers are upgraded some day.
const keepOlder = time.Hour

// Either returns a dialer that goes by now, and where that leads to no server by older: the ports
// of a release before. A refusal by a server itself is not tried again.
func Either(now, older Dialer) Dialer { return &either{now: now, older: older} }

type either struct {
	// Set by Either, never changed.
	now, older Dialer

	mu    sync.Mutex
	until time.Time // older comes first
}

// Dial implements Dialer.
func (d *either) Dial(ctx context.Context, address string) (Conn, error) {
	d.mu.Lock()
	first, second, swapped := d.now, d.older, time.Now().Before(d.until)
	d.mu.Unlock()
	if swapped {
		first, second = second, first
	}
	try, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok { // half of the time is the other's: a firewall may answer neither yes nor no
		try, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	conn, err := first.Dial(try, address)
	cancel()
	if why, ok := errors.AsType[*CloseError](err); err == nil || ctx.Err() != nil || ok && why.Remote {
		return conn, err
	}
	conn, again := second.Dial(ctx, address)
	if again != nil {
		return nil, several(err, again)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = time.Time{}
	if !swapped {
		d.until = time.Now().Add(keepOlder)
	}
	return conn, nil
}
