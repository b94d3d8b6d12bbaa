package logging_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/logging"
)

// A module that the program does not have is refused, with the names of those that it has.
func TestLog_Handler(t *testing.T) {
	l, logger := logging.New(logging.Config{Output: io.Discard})
	serve := l.Handler([]string{"relay", "cloudhub"})
	for _, tc := range []struct{ module, v, want string }{
		{"", "x", `verbosity: "x" is not a number, 0 to 10`},
		{"", "11", "verbosity: 11 is not 0 to 10"},
		{"cloudhup", "5", `module: unknown module "cloudhup"; the modules are cloudhub, relay`},
		{"cloudhub", "5", ""},
	} {
		w := httptest.NewRecorder()
		serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, logging.Path+"?"+url.Values{"module": {tc.module}, "v": {tc.v}}.Encode(), http.NoBody))
		if got := strings.TrimSpace(w.Body.String()); tc.want == "" && w.Code != http.StatusOK || tc.want != "" && (w.Code != http.StatusBadRequest || got != tc.want) {
			t.Errorf("%v: %d %s", tc, w.Code, got)
		}
	}
	if !logger.WithValues("module", "cloudhub").V(5).Enabled() || logger.WithValues("module", "relay").V(5).Enabled() {
		t.Error("the verbosity of cloudhub, and of it alone, is not 5")
	}
	w := httptest.NewRecorder()
	(*logging.Log)(nil).Handler(nil)(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, logging.Path+"?v=1", http.NoBody))
	if w.Code != http.StatusBadRequest {
		t.Errorf("without a log: %d", w.Code)
	}
}
