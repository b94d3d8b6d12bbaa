package edgeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
)

// Handler answers requests from outside the process: authenticate identifies the client before the
// body is read. Each Handler has shares of its own: the clients of one listener can't keep those of
// another waiting.
func (s *Server) Handler(authenticate Authenticator) http.Handler {
	requests, watches := requestShares(s.config.MaxRequests), requestShares(s.config.MaxWatches)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identity, err := authenticate(r)
		if err != nil {
			if r.Body != nil && r.Body != http.NoBody { // the rest of its body is not waited for
				w.Header().Set("Connection", "close")
				_ = http.NewResponseController(w).SetReadDeadline(time.Now())
			}
			writeError(w, r, err)
			return
		}
		r = r.WithContext(withIdentity(r.Context(), identity))
		info, err := s.resolver.NewRequestInfo(r)
		if err != nil {
			writeError(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		stream, isStream := s.podStream(r, info)
		shares := requests
		if isWatch(info) || isStream {
			shares = watches
		}
		client := clientOf(r)
		if !shares.Take(client) {
			s.metrics.overload.Inc()
			writeError(w, r, apierrors.NewTooManyRequests("the device's API has too many requests open", retryAfter))
			return
		}
		defer shares.Give(client)
		if isStream {
			s.serveStream(w, r, info, stream)
			return
		}
		limitBody(w, r)
		s.serve(w, r, info)
	})
}

// serve answers a request whose identity is in its context.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	identity := identityFrom(r.Context())
	out := &response{ResponseWriter: w, person: identity.Device}
	defer s.metrics.begin(identity, info)(out)
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler { //nolint:errorlint // a value that panic carries, as net/http compares it
			panic(p)
		}
		klog.FromContext(r.Context()).Error(fmt.Errorf("%v", p), "Request failed", "method", r.Method, "path", r.URL.Path, "stack", string(debug.Stack()))
		if !out.begun {
			writeError(out, r, apierrors.NewInternalError(errors.New("the device's API failed on this request")))
		}
	}()

	ctx := request.WithRequestInfo(r.Context(), info)
	ctx = request.WithReceivedTimestamp(ctx, time.Now()) // WatchServer measures the first set of a watch from it
	if !isWatch(info) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeoutOf(r))
		defer cancel()
	}
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(out, r.Body, maxBody)
	}
	w = out

	if !info.IsResourceRequest {
		s.servePath(w, r)
		return
	}
	switch info.Verb {
	case "get", "list", "watch":
		s.read(w, r, info)
	default:
		s.write(w, r, info)
	}
}

// timeoutOf is the client's own bound (?timeout=30s, a parameter of kube-apiserver) if it is
// shorter than ours.
func timeoutOf(r *http.Request) time.Duration {
	if d, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && d > 0 && d < requestTimeout {
		return d
	}
	return requestTimeout
}

// servePath answers paths that aren't resources.
func (s *Server) servePath(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch {
	case s.config.Local != nil && strings.HasPrefix(path, LocalPrefix):
		if !identityFrom(r.Context()).Device {
			writeError(w, r, apierrors.NewForbidden(schema.GroupResource{}, path, errors.New("only root of the device may ask this")))
			return
		}
		s.config.Local.ServeHTTP(w, r)
	case path == "/healthz" || path == "/livez" || path == "/readyz":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte("ok"))
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		s.pass(w, r)
	case path == "/version":
		s.serveVersion(w, r)
	case path == issuerPath || path == keysPath:
		s.serveIssuer(w, r, path)
	case path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/"):
		s.serveDiscovery(w, r, path)
	default:
		s.pass(w, r)
	}
}

// serveDiscovery answers a discovery path.
func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request, path string) {
	answer, err := s.forward(r)
	if err == nil && answer.GetCode() < http.StatusInternalServerError {
		s.discovery.see(r.Context(), path, answer)
		writeAnswer(w, answer)
		return
	}
	core, groups := s.discovery.lists()
	var document any
	switch {
	case (path == "/api" || path == "/apis") && strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList"):
		w.Header().Set("Content-Type", aggregatedJSON)
		document = groups
		if path == "/api" {
			document = core
		}
	default:
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		document = legacy(path, core, groups)
	}
	if document == nil {
		what := "the device knows nothing at " + path
		writeError(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", what, 0, true))
		return
	}
	raw, err := json.Marshal(document)
	if err != nil {
		writeError(w, r, err)
		return
	}
	_, _ = w.Write(raw)
}

// serveVersion answers the cluster's version, without a link that of the Kubernetes in this binary.
func (s *Server) serveVersion(w http.ResponseWriter, r *http.Request) {
	if answer, err := s.forward(r); err == nil && answer.GetCode() < http.StatusInternalServerError {
		writeAnswer(w, answer)
		return
	}
	raw, err := json.Marshal(version.Get())
	if err != nil {
		writeError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_, _ = w.Write(raw)
}
