package app

import (
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// restarted is a module that is started again after a failure.
func restarted(m beehive.Module, groups ...message.Group) beehive.Entry {
	return beehive.Entry{Module: m, Groups: groups, Restart: beehive.OnFailure(beehive.Backoff{})}
}

// slow is an entry whose module may take longer to stop.
func slow(e beehive.Entry, stop time.Duration) beehive.Entry {
	e.StopTimeout = stop
	return e
}
