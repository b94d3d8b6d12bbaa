package logging

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Path is where a running program changes its verbosity: PUT with the parameters v, and module for
// one module. The one who serves it decides who may ask.
const Path = "/skerry/v1/log"

// Handler changes the verbosity of the program or of one of its modules; any other name is
// refused, with these. A nil Log refuses all.
func (l *Log) Handler(modules []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := l.set(modules, r.URL.Query().Get("module"), r.URL.Query().Get("v")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}\n")) // the client may be gone
	}
}

func (l *Log) set(modules []string, module, v string) error {
	verbosity, err := strconv.Atoi(v)
	switch {
	case err != nil:
		return fmt.Errorf("verbosity: %q is not a number, 0 to %d", v, MaxVerbosity)
	case l == nil:
		return fmt.Errorf("this program has no log of its own")
	case module != "" && !slices.Contains(modules, module):
		sorted := slices.Sorted(slices.Values(modules))
		return fmt.Errorf("module: unknown module %q; the modules are %s", module, strings.Join(sorted, ", "))
	}
	return l.Set(module, verbosity)
}
