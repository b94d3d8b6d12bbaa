// Package aggregated is the frame of cloudcore's own APIs behind kube-apiserver's aggregator: the
// server, discovery, answers, and the CA in their APIServices.
//
// It owns a Server's bound of requests and spec.caBundle of the APIServices (Bundles), and no
// resource: those are of the packages below it. It refuses every client but kube-apiserver's front
// proxy, which Config.Enter recognizes, and every request above the bound. It changes no APIService
// that leads anywhere but to cloudcore's own Service, such as that of a metrics-server, and creates
// none; an admission policy in manifests/cloudcore holds cloudcore to the same. A Server may be
// used by many goroutines at once, Bundles by one.
package aggregated

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/httpserver"
)

// Config describes an API.
type Config struct {
	schema.GroupVersion
	// Enter returns the request as handlers get it; false where its client is not kube-apiserver's
	// front proxy. kube-apiserver has authorized the user: resources of an aggregated API go
	// through its authorizer as all others do.
	Enter func(*http.Request) (*http.Request, bool)
	// MaxRequests bounds the requests that are served at once, with open streams among them. One
	// more is refused with 429.
	MaxRequests int
	// Resource is that of errors which concern no resource in particular.
	Resource schema.GroupResource
}

// Server serves an API.
type Server struct {
	// Set by New, never changed.
	config Config
	mux    *http.ServeMux
	slots  chan struct{} // one for each request

	resources []metav1.APIResource // before Serve
}

// New returns a Server of an API without resources.
func New(config Config) *Server {
	s := &Server{config: config, mux: http.NewServeMux(), slots: make(chan struct{}, config.MaxRequests)}
	version := metav1.GroupVersionForDiscovery{GroupVersion: config.String(), Version: config.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: config.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	s.handle("GET /apis", func(w http.ResponseWriter, _ *http.Request) error {
		return Answer(w, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}})
	})
	s.handle("GET /apis/"+config.Group, func(w http.ResponseWriter, _ *http.Request) error { return Answer(w, group) })
	s.Handle("GET", "", func(w http.ResponseWriter, _ *http.Request) error {
		return Answer(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion, APIResources: s.resources})
	})
	s.handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, config.Resource, "", "there is no such path", 0, true)
	})
	return s
}

// Discover adds resources to those that clients discover. It is called before Serve.
func (s *Server) Discover(resources ...metav1.APIResource) {
	s.resources = append(s.resources, resources...)
}

// Handle has a function answer the requests of a method for a path below the version, a pattern of
// http.ServeMux. Its error is one of package apierrors, and no answer was written then. It is
// called before Serve.
func (s *Server) Handle(method, path string, answer func(http.ResponseWriter, *http.Request) error) {
	s.handle(method+" /apis/"+s.config.String()+path, answer)
}

func (s *Server) handle(pattern string, answer func(http.ResponseWriter, *http.Request) error) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := answer(w, r); err != nil {
			Fail(w, err)
		}
	})
}

// ServeHTTP lets kube-apiserver's front proxy in, within the bound.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r, ok := s.config.Enter(r)
	if !ok {
		Fail(w, apierrors.NewForbidden(s.config.Resource, "", errors.New("this is for kube-apiserver's front proxy")))
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		s.mux.ServeHTTP(w, r)
	default:
		Fail(w, apierrors.NewTooManyRequests("cloudcore answers too many requests of this kind already", 1))
	}
}

// Serve answers on a listener whose connections have shown a certificate of kube-apiserver's front
// proxy. It returns when ctx has ended, and every handler with it. It is called once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		Protocols:   new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true) // for upgrades, exec above all
	server.Protocols.SetHTTP2(true)
	err := httpserver.Serve(ctx, server, listener, s.config.String())
	for range cap(s.slots) { // handlers that have taken their connection over, for which the server does not wait
		s.slots <- struct{}{}
	}
	return err
}

// Answer writes an object.
func Answer(w http.ResponseWriter, o any) error {
	write(w, http.StatusOK, o)
	return nil
}

func write(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // the client may be gone
}

// Fail answers with a Status. err is one of package apierrors.
func Fail(w http.ResponseWriter, err error) {
	status := metav1.Status{Code: http.StatusInternalServerError, Message: err.Error(), Reason: metav1.StatusReasonInternalError, Status: metav1.StatusFailure}
	if s, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status = s.ErrStatus
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	write(w, int(status.Code), status)
}
