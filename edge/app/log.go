package app

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/skerry-io/skerry/common/logging"
)

// LogPath is where the running edgecore is given another verbosity, on its unix socket.
const LogPath = "/skerry/v1/log"

// LogsTo lets root of the device change the verbosity while edgecore runs. It is called before Run.
func (a *App) LogsTo(log *logging.Log) { a.log = log }

func (a *App) handleLog(w http.ResponseWriter, r *http.Request) {
	v, err := strconv.Atoi(r.URL.Query().Get("v"))
	switch {
	case err != nil:
		err = errors.New("v: must be a number, 0 to 10")
	case a.log == nil:
		err = errors.New("this program has no log of its own")
	default:
		err = a.log.Set(r.URL.Query().Get("module"), v)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = answer(w, http.StatusOK, struct{}{}) // the client may be gone
}
