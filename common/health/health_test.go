package health_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/common/health"
)

func TestPages(t *testing.T) {
	fine := func() error { return nil }
	broken := func() error { return errors.New("no link") }
	tests := map[string]struct {
		live, ready  map[string]health.Check
		method, path string
		code         int
		body         string
	}{
		"live":               {map[string]health.Check{"store": fine}, map[string]health.Check{"link": broken}, "GET", "/healthz", 200, "ok"},
		"not ready":          {map[string]health.Check{"store": fine}, map[string]health.Check{"link": broken}, "GET", "/readyz", 503, "[-]link failed: no link\n[+]store ok\n"},
		"not live":           {map[string]health.Check{"store": broken}, nil, "GET", "/healthz", 503, "[-]store failed: no link\n"},
		"dead is not ready":  {map[string]health.Check{"store": broken}, map[string]health.Check{"link": fine}, "GET", "/readyz", 503, "[+]link ok\n[-]store failed: no link\n"},
		"verbose":            {map[string]health.Check{"b": fine, "a": fine}, nil, "GET", "/healthz?verbose", 200, "[+]a ok\n[+]b ok\n"},
		"no writes":          {nil, nil, "POST", "/healthz", 405, "Method Not Allowed\n"},
		"nothing else there": {nil, nil, "GET", "/debug/pprof", 404, "404 page not found\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			health.New("", tc.live, tc.ready, prometheus.NewRegistry()).Handler().ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, http.NoBody))
			if w.Code != tc.code || w.Body.String() != tc.body {
				t.Errorf("%d %q, want %d %q", w.Code, w.Body.String(), tc.code, tc.body)
			}
		})
	}
}

func TestGuardedMetrics(t *testing.T) {
	for name, tc := range map[string]struct {
		guard, header string
		code          int
	}{
		"no token":            {"secret", "", 401},
		"another":             {"secret", "Bearer other", 401},
		"the token":           {"secret", "Bearer secret", 200},
		"an empty token":      {"", "Bearer ", 401},
		"the pages need none": {"secret", "-", 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := health.New("", nil, nil, prometheus.NewRegistry())
			s.GuardMetrics(tc.guard)
			path := "/metrics"
			if tc.header == "-" {
				path = "/healthz"
			}
			r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
			r.Header.Set("Authorization", tc.header)
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			if w.Code != tc.code {
				t.Errorf("%d, want %d", w.Code, tc.code)
			}
		})
	}
}
