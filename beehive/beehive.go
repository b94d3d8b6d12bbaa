// Package beehive runs the modules of a process and carries their messages.
//
// It owns the bus (one bounded mailbox a module), the life of the modules (started in order,
// restarted with back-off, stopped in reverse order) their health, and one message
// for each group: its newest state, for modules that start later. It refuses messages for modules
// that don't exist, and requests to modules that don't run: a sender gets an error and is never
// left hanging. It does not know the messages' meaning and has no state on disk.
//
// A Port's methods may be called by many goroutines of its module at once; so may a Runner's,
// except that Run is called once. Messages of one goroutine to one module arrive in the order in
// which they were sent. The bus starts no goroutine; the Runner starts one a module.
package beehive

import "errors"

// Errors that callers branch on.
var (
	// ErrNoModule is returned for a message to a name that is not in the wiring.
	ErrNoModule = errors.New("no such module")
	// ErrNoGroup is returned for a message to a group that no module joins.
	ErrNoGroup = errors.New("no module is in this group")
	// ErrNotRunning is returned for a request to a module that does not run at this moment,
	// for every message to one that won't run again, and to a module that uses the port of
	// an earlier run.
	ErrNotRunning = errors.New("module is not running")
	// ErrLate is returned for an answer that no caller waits for (any more). The bus has dropped
	// and counted it.
	ErrLate = errors.New("no caller waits for this answer")
)
