// Package webui is the page of `kubectl skerry ui`: the fleet, one device's timeline, virtual IPs
// and routes.
//
// It owns the page's files, its server, and the order of a timeline. It refuses every request that
// changes something, that does not bear the token of this run, or that names another host than
// loopback; it holds no credential, and shows what its Config gives it, which asks the cluster as
// the person (docs/dev/decisions/0148-a-page-on-loopback.md). A Server may be used by many
// goroutines at once.
package webui

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
)

//go:embed page.html page.css page.js
var files embed.FS

const (
	maxConnections = 32               // one more waits until another ends
	maxQuestions   = 4                // about one device at once; one more is refused with 429
	poll           = 20 * time.Second // for how long a page waits for a change
	askTimeout     = 30 * time.Second // of a device, over its link
)

// Fleet is the state of all devices.
type Fleet struct {
	Summary string       `json:"summary"`
	Nodes   []fleet.Node `json:"nodes"`
	VIPs    []VIP        `json:"vips"`
	Routes  []Route      `json:"routes"`
	Notes   []string     `json:"notes"` // what could not be read, and why
}

// VIP is a virtual IP.
type VIP struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Pool    string `json:"pool"`
	Service string `json:"service"`
	Holder  string `json:"holder"`
	Ready   int32  `json:"ready"`
	Problem string `json:"problem"`
}

// Route is a StaticRoute.
type Route struct {
	Name    string `json:"name"`
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"`
	Desired int32  `json:"desired"`
	Applied int32  `json:"applied"`
	Failed  int32  `json:"failed"`
	Problem string `json:"problem"`
}

// Timeline is what happened on a device, the newest first.
type Timeline struct {
	Entries []Entry  `json:"entries"`
	Notes   []string `json:"notes,omitempty"` // what could not be read, and why
}

// Config configures a Server.
type Config struct {
	Token string // each request for data has it as a header
	// Device asks the cluster about a device, Recorder the device itself, over its link. An error
	// is for people to read.
	Device, Recorder func(ctx context.Context, name string) (Timeline, error)
}

// Server serves the page.
type Server struct {
	config    Config
	questions chan struct{}

	mu      sync.Mutex
	version uint64 // of state
	state   json.RawMessage
	at      time.Time     // by the cluster's clock
	changed chan struct{} // closed when the version changes
}

// New returns a server. Set gives it the first state.
func New(config Config) *Server {
	return &Server{config: config, questions: make(chan struct{}, maxQuestions), changed: make(chan struct{})}
}

// Set replaces the state; pages that wait for a change get it at once.
func (s *Server) Set(f Fleet, now time.Time) error {
	f.Nodes, f.VIPs, f.Routes, f.Notes = some(f.Nodes), some(f.VIPs), some(f.Routes), some(f.Notes)
	state, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encoding the fleet: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = now
	if slices.Equal(s.state, state) {
		return nil
	}
	s.state = state
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// some is never null in JSON.
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(netutil.LimitListener(l, maxConnections)); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the page: %w", err)
	}
	return nil
}

// Handler serves the page and its data.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", file("page.html", "text/html; charset=utf-8"))
	mux.Handle("GET /page.css", file("page.css", "text/css; charset=utf-8"))
	mux.Handle("GET /page.js", file("page.js", "text/javascript; charset=utf-8"))
	mux.Handle("GET /api/fleet", s.guarded(s.fleet))
	mux.Handle("GET /api/device/{name}", s.guarded(s.ask(s.config.Device)))
	mux.Handle("GET /api/recorder/{name}", s.guarded(s.ask(s.config.Recorder)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, errors.New("this page only reads"))
		case !loopback(r.Host): // a name that another site had resolved to this address
			fail(w, http.StatusMisdirectedRequest, errors.New("this page is for loopback alone"))
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// loopback reports whether a Host header names loopback. The port may be that of a tunnel (ssh -L).
func loopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if name == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return ip != nil && ip.IsLoopback()
}

func file(name, kind string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := files.ReadFile(name)
		if err != nil {
			fail(w, http.StatusInternalServerError, err)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(body) // the browser may be gone
	})
}

// guarded refuses requests without the token: other users of this machine reach the port too.
func (s *Server) guarded(next http.HandlerFunc) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + s.config.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if s.config.Token == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			fail(w, http.StatusUnauthorized, errors.New("the token of kubectl skerry ui is missing"))
			return
		}
		next(w, r)
	})
}

// fleet answers with the state once it is another than the page has; 204 after a while without a
// change.
func (s *Server) fleet(w http.ResponseWriter, r *http.Request) {
	after := r.URL.Query().Get("after")
	limit := time.NewTimer(poll)
	defer limit.Stop()
	for {
		s.mu.Lock()
		version, state, at, changed := strconv.FormatUint(s.version, 10), s.state, s.at, s.changed
		s.mu.Unlock()
		if state != nil && version != after {
			answer(w, http.StatusOK, map[string]any{"version": version, "at": at.UTC(), "fleet": state})
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			w.WriteHeader(http.StatusNoContent)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// ask answers a question about one device.
func (s *Server) ask(question func(context.Context, string) (Timeline, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
			fail(w, http.StatusBadRequest, fmt.Errorf("name: %.100q is no name of a node", name))
			return
		}
		select {
		case s.questions <- struct{}{}:
			defer func() { <-s.questions }()
		default:
			fail(w, http.StatusTooManyRequests, fmt.Errorf("%d devices are being asked already", maxQuestions))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		t, err := question(ctx, name)
		if err != nil {
			fail(w, http.StatusBadGateway, err)
			return
		}
		t.Entries = some(t.Entries)
		answer(w, http.StatusOK, t)
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the browser may be gone
}

func fail(w http.ResponseWriter, code int, err error) {
	answer(w, code, map[string]string{"error": fleet.Printable(err.Error(), 1000)})
}
