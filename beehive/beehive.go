// Package beehive runs the modules of a process and carries their messages.
//
// It owns the bus (one bounded mailbox a module), the life of the modules (started in order, restarted with back-off, stopped in reverse order)
// and what is known of their health. It refuses messages for modules that don't exist, and requests to modules that don't run: a sender is told,
// never left hanging. It does not know what the messages mean and keeps nothing on disk.
//
// A Port's methods may be called by many goroutines of its module at once; so may a Runner's, except that Run is called once. Messages of one
// goroutine to one module arrive in the order in which they were sent. The bus starts no goroutine; the Runner starts one a module.
package beehive

import (
	"context"
	"errors"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
)

// Errors that callers branch on.
var (
	// ErrNoModule is returned for a message to a name that is not in the wiring.
	ErrNoModule = errors.New("no such module")
	// ErrNoGroup is returned for a message to a group that no module joins.
	ErrNoGroup = errors.New("no module is in this group")
	// ErrNotRunning is returned for a request to a module that does not run at this moment, for every message to one that won't run again, and
	// to a module that uses the port of an earlier run.
	ErrNotRunning = errors.New("module is not running")
	// ErrLate is returned for an answer that nobody waits for (any more). The bus has dropped and counted it.
	ErrLate = errors.New("nobody waits for this answer")
)

// A Module is one long-lived part of a process.
type Module interface {
	// Name is unique in the process and is the module's address on the bus.
	Name() message.Name
	// Run serves until ctx ends, then returns nil or ctx's error; any other return is a failure, handled by the Restart policy of the module's
	// Entry. Run calls port.Ready once it can receive. A panic in Run itself is a failure like others; one in a goroutine that Run started ends the process.
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
	// Restart says what follows a failure. The zero value is Never.
	Restart Restart
	// Mailbox is how many messages may wait for the module; 0 is DefaultMailbox. At the bound, senders are held back (see message.Delivery).
	Mailbox int
	// StartTimeout is how long the next module waits for this one to be ready, 0 the Runner's. StopTimeout is how long this module may take to
	// stop, 0 the Runner's.
	StartTimeout time.Duration
	StopTimeout  time.Duration
}

func (e Entry) mailbox() int {
	if e.Mailbox == 0 {
		return DefaultMailbox
	}
	return e.Mailbox
}
