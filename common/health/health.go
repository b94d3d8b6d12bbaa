// Package health is the listener of a process for its supervisors: /healthz, /readyz and /metrics.
//
// It owns the listener. Its caller defines healthy and ready. It refuses everything but GET and
// HEAD. Checks are called for each request, by many goroutines at once.
package health

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/skerry-io/skerry/common/httpserver"
)

// Check returns the failure, or nil. It must not block.
type Check func() error

// Server serves the three pages.
type Server struct {
	listen  string
	live    map[string]Check
	ready   map[string]Check
	metrics prometheus.Gatherer
	guarded bool
	token   string
}

// GuardMetrics makes /metrics require the token (Authorization: Bearer); "" admits no client. It is
// called before Run: on a loopback address every local user could read it otherwise.
func (s *Server) GuardMetrics(token string) { s.guarded, s.token = true, token }

// New returns a server for an address ("127.0.0.1:10551"). live are the checks of /healthz: a
// process that fails one should be restarted. ready are those of /readyz, in addition to the live
// ones.
func New(listen string, live, ready map[string]Check, metrics prometheus.Gatherer) *Server {
	return &Server{listen: listen, live: live, ready: ready, metrics: metrics}
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("health.listen: %w", err)
	}
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 8 << 10,
	}
	return httpserver.Serve(ctx, server, listener, "health")
}

// Handler serves the pages, as Run does.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { answer(w, r, s.live) })
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) { answer(w, r, s.live) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, r, s.live, s.ready) })
	metrics := promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if s.guarded && !s.hasToken(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="metrics"`)
			http.Error(w, "metrics need the token of the file metrics.token in dataDir", http.StatusUnauthorized)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	return mux
}

func (s *Server) hasToken(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && s.token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// answer writes "ok", or with 503 the failures; ?verbose lists every check, as Kubernetes' own
// components do.
func answer(w http.ResponseWriter, r *http.Request, sets ...map[string]Check) {
	var lines []string
	failed := false
	for _, checks := range sets {
		for name, check := range checks {
			line := "[+]" + name + " ok"
			if err := check(); err != nil {
				failed = true
				line = "[-]" + name + " failed: " + err.Error()
			}
			lines = append(lines, line)
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[3:], b[3:]) })
	_, verbose := r.URL.Query()["verbose"]
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch {
	case failed:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	case verbose:
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	default:
		fmt.Fprint(w, "ok")
	}
}
