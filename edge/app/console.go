package app

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/optional/console"
)

// ConsolesPath is where the running edgecore is asked, on its unix socket, for a console of a
// virtual machine: POST with a console.Request. The answer begins with the console's state, as one
// line of JSON, and ends, with a ConsoleEnd, when the console does. A client that disconnects ends
// it.
const ConsolesPath = "/skerry/v1/consoles"

// ConsoleEnd is the last line of an answer.
type ConsoleEnd struct {
	Ended string `json:"ended"`
}

func (a *App) handleConsoles(mux *http.ServeMux) {
	mux.HandleFunc("POST "+ConsolesPath, func(w http.ResponseWriter, r *http.Request) {
		if a.link.consoles == nil {
			http.Error(w, "modules.console is switched off on this device, or it has no link to the cloud (modules.edgeHub)", http.StatusConflict)
			return
		}
		var q console.Request
		if err := order(w, r, &q); err != nil {
			http.Error(w, err.Error(), codeOf(err))
			return
		}
		k, err := a.link.consoles.Open(r.Context(), q)
		if err != nil {
			code, text := consoleError(err)
			http.Error(w, text, code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		_ = out.Encode(k.State()) // a client that has gone ends the console by the request's context
		_ = http.NewResponseController(w).Flush()
		_ = out.Encode(ConsoleEnd{k.Serve(r.Context())})
	})
}

// consoleError returns the status and the message for the caller.
func consoleError(err error) (code int, text string) {
	if refused, ok := errors.AsType[*tunnel.Refused](err); ok {
		text = refused.Reason
		if strings.HasPrefix(text, "no virtual machine ") {
			text += "; only virtual machines of KubeVirt have such a console, an application of containers has `kubectl attach` and `kubectl exec`"
		}
		return http.StatusNotFound, text
	}
	switch {
	case errors.Is(err, console.ErrInvalid):
		return http.StatusBadRequest, err.Error()
	case errors.Is(err, console.ErrOffline):
		return http.StatusServiceUnavailable, err.Error()
	}
	return http.StatusServiceUnavailable, err.Error()
}
