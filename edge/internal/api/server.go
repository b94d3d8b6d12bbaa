// Package api is the Kubernetes API of the device: what the kubelet, kubectl and everything else on the device see of the cluster.
//
// It owns HTTP: parsing, content negotiation, watch streams, tables, discovery, authentication, and Status errors with Retry-After. What is held it
// reads from the Backend and serves exactly as a real API server would, resource versions included; what isn't held passes through to kube-apiserver,
// while there is a link, as whoever asked. It refuses what it can't answer truly: never an empty list for something that has not been synced, a 503
// with Retry-After instead. It keeps no objects. A Server serves any number of requests at once; its parts are made by New and never change, but for
// discovery and the grants of service accounts, which have their own locks.
//
// It is above 2,500 lines because HTTP, who may ask for what, and what is answered are one API, of which
// nothing else uses a part.
package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/meta"
)

const (
	// maxBody is kube-apiserver's own bound for the body of a request.
	maxBody = 3 << 20
	// requestTimeout bounds a request that isn't a watch where it names no bound of its own; kube-apiserver's --request-timeout has the same default.
	requestTimeout = time.Minute
	// retryAfter is what a client that has to wait for the link or for a sync is told.
	retryAfter = 1
)

// Config is what a Server needs.
type Config struct {
	NodeName string
	Backend  Backend
	// State keeps the certificate authority, what service accounts may do, and discovery documents. nil keeps nothing over a restart.
	State State
	// DataDir is where the admin's kubeconfig is written for the TLS listener.
	DataDir string
	// Socket is the path of the unix socket; Listen the address of the TLS listener. An empty one isn't opened.
	Socket string
	Listen string
	// Pods is the address at which pods are served that were led here; "": none are. The device need not have it yet. Where it is set, the kubelet gets the
	// authority of the API's certificates together with the cluster's, in the ConfigMaps kube-root-ca.crt that pods verify their API server by.
	Pods string
	// Registering is called with each create of a Node by the kubelet, before anything becomes of it. May be nil.
	Registering func(meta.Write)
	// Local answers paths below LocalPrefix for root of the device: what edgecore's own commands ask the running process. May be nil.
	Local http.Handler
	// MaxRequests and MaxWatches bound what the clients of one listener may have open at once, and one
	// client (an address) a quarter of that; the excess is told to come back. 0: the defaults.
	MaxRequests int
	MaxWatches  int
}

// LocalPrefix is what Config.Local answers.
const LocalPrefix = "/skerry/"

const (
	defaultMaxRequests = 64
	defaultMaxWatches  = 512
)

// Server answers requests.
type Server struct {
	config    Config
	backend   Backend
	resolver  *request.RequestInfoFactory
	scopes    scopes
	discovery *discovery
	grants    *grants
	pods      podsCertificate
	metrics   *Metrics
	podBytes  *rate.Limiter // of what pods send over the link
}

// New makes a Server. It opens nothing and starts nothing.
func New(config Config) *Server {
	if config.State == nil {
		config.State = forgetful{}
	}
	if config.MaxRequests == 0 {
		config.MaxRequests = defaultMaxRequests
	}
	if config.MaxWatches == 0 {
		config.MaxWatches = defaultMaxWatches
	}
	s := &Server{
		config:  config,
		backend: config.Backend,
		metrics: newMetrics(),
		resolver: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		podBytes: rate.NewLimiter(podBytesRate, podBytesBurst),
	}
	s.discovery = newDiscovery(config.Backend, config.State)
	s.scopes = newScopes(s.discovery)
	s.grants = newGrants(config.Backend, config.State)
	return s
}

// Handler answers requests from outside the process: authenticate says who each comes from, before
// anything of its body is read. Each Handler has slots of its own: the clients of one listener can't
// keep those of another waiting.
func (s *Server) Handler(authenticate Authenticator) http.Handler {
	requests, watches := newSlots(s.config.MaxRequests), newSlots(s.config.MaxWatches)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identity, err := authenticate(r)
		if err != nil {
			if r.Body != nil && r.Body != http.NoBody { // what it still wants to send is not waited for
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
		slots := requests
		if isWatch(info) {
			slots = watches
		}
		client := clientOf(r)
		if !slots.take(client) {
			s.metrics.overload.Inc()
			writeError(w, r, apierrors.NewTooManyRequests("the device's API has too many requests open", retryAfter))
			return
		}
		defer slots.give(client)
		limitBody(w, r)
		s.serve(w, r, info)
	})
}

func isWatch(info *request.RequestInfo) bool { return info.IsResourceRequest && info.Verb == "watch" }

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

// timeoutOf is the client's own bound (?timeout=30s, the parameter that kube-apiserver knows) where it is shorter than ours.
func timeoutOf(r *http.Request) time.Duration {
	if d, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && d > 0 && d < requestTimeout {
		return d
	}
	return requestTimeout
}

// servePath answers what isn't a resource.
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
		s.discovery.serve(s, w, r, path)
	default:
		s.pass(w, r)
	}
}

// writeError answers err as a Status in JSON or protobuf, whichever the client accepts.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(statusOf(err), codecs, schema.GroupVersion{Version: "v1"}, w, r)
}

// statusOf makes a Status of every error, so that none reaches a client as bare text.
func statusOf(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		if e, ok := status.(error); ok {
			return e // responsewriters doesn't unwrap
		}
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", tooLarge.Limit))
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("the request was not answered in time", retryAfter)
	case errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("the request was given up", retryAfter)
	}
	return apierrors.NewInternalError(err)
}

// unavailable is the answer to what can't be answered now: the client is asked to come back, never told something wrong.
func unavailable(message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
		Message: message,
	}}
}

// response remembers whether anything was written, for an error after that can't be told any more.
type response struct {
	http.ResponseWriter
	person bool
	begun  bool
	code   int // once begun
}

// WriteHeader tells people when to come back as a date. Retry-After may be a date or seconds (RFC 9110, 10.2.3), and kubectl sleeps through seconds,
// ten times over, before it says anything: a person who asks an offline device for something that isn't there wants to hear so at once.
func (r *response) WriteHeader(code int) {
	if h := r.Header(); r.person && !r.begun && code == http.StatusServiceUnavailable {
		if seconds, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
			h.Set("Retry-After", time.Now().Add(time.Duration(seconds)*time.Second).UTC().Format(http.TimeFormat))
		}
	}
	if !r.begun {
		r.begun, r.code = true, code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *response) Write(p []byte) (int, error) {
	if !r.begun {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(p)
}

func (r *response) Flush() {
	if f, ok := r.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }
