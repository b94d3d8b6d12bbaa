package linkstate

import (
	"errors"

	"github.com/skerry-io/skerry/beehive/message"
)

// ErrNoLink is the answer to a request for the cloud while no session is open, and to requests that
// were on their way when one ended.
var ErrNoLink = errors.New("no link to the cloud")

// Renew asks edgehub to end the open session, if there is one, and to start another at once. A
// module that was restarted within a session sends it: the session's earlier messages to the module
// are lost, and only a new session repeats them.
var Renew = message.NewTopic[struct{}](Kind, message.Update, message.Latest)
