package subresources

import (
	"context"
	"net"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/access/aggregated"
	"github.com/skerry-io/skerry/common/podstream"
)

// Serve answers on a listener whose connections have shown a certificate of kube-apiserver's front
// proxy. It returns when ctx has ended, and every stream with it. It is called once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	return s.api(ctx).Serve(ctx, listener)
}

// api is the API, whose streams end with ctx.
func (s *Server) api(ctx context.Context) *aggregated.Server {
	api := aggregated.New(aggregated.Config{
		GroupVersion: schema.GroupVersion{Group: Group, Version: Version}, MaxRequests: s.config.MaxRequests, Resource: resource,
		Enter: func(r *http.Request) (*http.Request, bool) {
			who, ok := s.config.User(r)
			return r.WithContext(context.WithValue(r.Context(), userKey{}, who)), ok
		},
	})
	for _, sub := range podstream.Subresources() {
		r := metav1.APIResource{Name: "pods/" + sub.Name, Kind: sub.Kind, Namespaced: true}
		methods := []string{http.MethodGet}
		if sub.Streams {
			methods = append(methods, http.MethodPost)
		}
		for _, method := range methods {
			r.Verbs = append(r.Verbs, verbs[method])
			api.Handle(method, "/namespaces/{namespace}/pods/{name}/"+sub.Name, func(w http.ResponseWriter, r *http.Request) error {
				return s.answer(ctx, w, r, sub)
			})
		}
		api.Discover(r)
	}
	for _, report := range reports() {
		api.Discover(metav1.APIResource{Name: "nodes/" + report.name, Kind: report.kind, Verbs: []string{"get"}})
		api.Handle(http.MethodGet, "/nodes/{name}/"+report.name, func(w http.ResponseWriter, r *http.Request) error { return s.report(w, r, report) })
	}
	return api
}
