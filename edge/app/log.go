package app

import (
	"net/http"

	"github.com/skerry-io/skerry/common/logging"
)

// LogsTo lets root of the device change the verbosity while edgecore runs, on the unix socket. It
// is called before Run.
func (a *App) LogsTo(log *logging.Log) { a.log = log }

func (a *App) handleLog(w http.ResponseWriter, r *http.Request) {
	a.log.Handler(a.runner.Wiring().Names())(w, r) // both are made after the socket's handlers
}
