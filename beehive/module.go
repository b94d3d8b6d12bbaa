package beehive

import (
	"context"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
)

// A Module is one long-lived part of a process.
type Module interface {
	// Name is unique in the process and is the module's address on the bus.
	Name() message.Name
	// Run serves until ctx ends, then returns nil or ctx's error; any other return is a failure,
	// handled by the Restart policy of the module's Entry. Run calls port.Ready once it can
	// receive. A panic in Run itself is a failure like others; one in a goroutine that Run started
	// ends the process.
	Run(ctx context.Context, port *Port) error
}

// Topics may be implemented by a Module to tell, for the wiring table, which topics it handles.
type Topics interface {
	Topics() []message.Key
}

// DefaultMailbox is the bound of a mailbox whose Entry doesn't set one.
const DefaultMailbox = 256

// An Entry is one line of the wiring table.
type Entry struct {
	Module Module
	// Groups are the broadcast groups that the module joins.
	Groups []message.Group
	// Restart is the policy after a failure. The zero value is Never.
	Restart Restart
	// Mailbox is how many messages may wait for the module; 0 is DefaultMailbox. At the bound,
	// senders are held back (see message.Delivery).
	Mailbox int
	// StartTimeout is how long the next module waits for this one to be ready, 0 the Runner's.
	// StopTimeout is how long this module may take to stop, 0 the Runner's.
	StartTimeout time.Duration
	StopTimeout  time.Duration
}

func (e Entry) mailbox() int {
	if e.Mailbox == 0 {
		return DefaultMailbox
	}
	return e.Mailbox
}
