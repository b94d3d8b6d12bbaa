package subresources

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/httpserver"
	"github.com/skerry-io/skerry/common/podstream"
)

// Serve answers on a listener whose connections have shown a certificate of kube-apiserver's front
// proxy. It returns when ctx has ended, and every stream with it. It is called once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s.guard(s.routes(ctx)),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		Protocols:   new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true) // for upgrades, exec above all
	server.Protocols.SetHTTP2(true)
	err := httpserver.Serve(ctx, server, listener, Group)
	for range cap(s.slots) { // handlers that have taken their connection over, for which the server does not wait
		s.slots <- struct{}{}
	}
	return err
}

// guard lets kube-apiserver's front proxy in, with the user that it speaks for.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := s.config.User(r)
		if !ok {
			fail(w, apierrors.NewForbidden(resource, "", errors.New("this is for kube-apiserver's front proxy")))
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, who)))
		default:
			fail(w, apierrors.NewTooManyRequests("cloudcore answers too many requests of this kind already", 1))
		}
	})
}

func (s *Server) routes(ctx context.Context) http.Handler {
	version := metav1.GroupVersionForDiscovery{GroupVersion: Group + "/" + Version, Version: Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion}
	mux := http.NewServeMux()
	for _, sub := range podstream.Subresources() {
		r := metav1.APIResource{Name: "pods/" + sub.Name, Kind: sub.Kind, Namespaced: true}
		methods := []string{http.MethodGet}
		if sub.Streams {
			methods = append(methods, http.MethodPost)
		}
		for _, method := range methods {
			r.Verbs = append(r.Verbs, verbs[method])
			mux.HandleFunc(method+" "+root+"/namespaces/{namespace}/pods/{name}/"+sub.Name, func(w http.ResponseWriter, r *http.Request) {
				if err := s.answer(ctx, w, r, sub); err != nil {
					fail(w, err)
				}
			})
		}
		list.APIResources = append(list.APIResources, r)
	}
	for _, report := range reports() {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: "nodes/" + report.name, Kind: report.kind, Verbs: []string{"get"}})
		mux.HandleFunc("GET "+root+"/nodes/{name}/"+report.name, func(w http.ResponseWriter, r *http.Request) {
			if err := s.report(w, r, report); err != nil {
				fail(w, err)
			}
		})
	}
	mux.HandleFunc("GET /apis", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}})
	})
	mux.HandleFunc("GET /apis/"+Group, func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, group) })
	mux.HandleFunc("GET "+root, func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, list) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, resource, "", "there is no such path", 0, true))
	})
	return mux
}
