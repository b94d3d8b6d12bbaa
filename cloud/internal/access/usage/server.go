package usage

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/httpserver"
)

// maxAsking bounds the requests that are served at once; one more is asked to retry.
const maxAsking = 64

// Serve answers on a listener whose connections have shown a certificate of kube-apiserver's front
// proxy, whose name allowed approves. It returns when ctx has ended.
func (u *Usage) Serve(ctx context.Context, listener net.Listener, allowed func(commonName string) bool) error {
	defer u.begin(ctx)()
	server := &http.Server{
		Handler:           u.guard(u.routes(), allowed),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		Protocols:   new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	return httpserver.Serve(ctx, server, listener, metrics.SchemeGroupVersion.String())
}

// guard lets in kube-apiserver alone, which has authorized the user itself: resources of an
// aggregated API go through its authorizer as all others do.
func (u *Usage) guard(next http.Handler, allowed func(string) bool) http.Handler {
	asking := make(chan struct{}, maxAsking)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || !allowed(r.TLS.PeerCertificates[0].Subject.CommonName) {
			fail(w, apierrors.NewForbidden(schema.GroupResource{Group: metrics.GroupName}, "", errors.New("this is for kube-apiserver's front proxy")))
			return
		}
		select {
		case asking <- struct{}{}:
			defer func() { <-asking }()
			next.ServeHTTP(w, r)
		default:
			fail(w, apierrors.NewTooManyRequests("too many questions at once", 1))
		}
	})
}

func (u *Usage) routes() http.Handler {
	const root = "/apis/" + metrics.GroupName + "/v1beta1"
	version := metav1.GroupVersionForDiscovery{GroupVersion: metrics.SchemeGroupVersion.String(), Version: metrics.SchemeGroupVersion.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: metrics.GroupName,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	verbs := metav1.Verbs{"get", "list"}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}})
	})
	mux.HandleFunc("GET /apis/"+metrics.GroupName, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, group) })
	mux.HandleFunc("GET "+root, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion,
			APIResources: []metav1.APIResource{
				{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs}, {Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: verbs},
			},
		})
	})
	mux.HandleFunc("GET "+root+"/nodes", u.listNodes)
	mux.HandleFunc("GET "+root+"/nodes/{name}", u.getNode)
	mux.HandleFunc("GET "+root+"/pods", u.listPods)
	mux.HandleFunc("GET "+root+"/namespaces/{namespace}/pods", u.listPods)
	mux.HandleFunc("GET "+root+"/namespaces/{namespace}/pods/{name}", u.getPod)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{Group: metrics.GroupName}, "", "there is no such path", 0, true))
	})
	return mux
}

var (
	nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")
	podsResource  = corev1.SchemeGroupVersion.WithResource("pods")
)

// selection reads the requested objects. They can't be watched: a sample is of the moment.
func (u *Usage) selection(r *http.Request, resource schema.GroupVersionResource, store *kube.Store) (*kube.Selection, error) {
	q := r.URL.Query()
	if q.Get("watch") == "true" || q.Get("watch") == "1" {
		return nil, apierrors.NewMethodNotSupported(metrics.Resource(resource.Resource), "watch")
	}
	sel, err := kube.Select(resource, kube.Source{Namespace: r.PathValue("namespace"), Labels: q.Get("labelSelector"), Fields: q.Get("fieldSelector")})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !store.HasSynced() {
		return nil, apierrors.NewServiceUnavailable("cloudcore has not read the " + resource.Resource + " yet")
	}
	return sel, nil
}

func (u *Usage) listNodes(w http.ResponseWriter, r *http.Request) {
	sel, err := u.selection(r, nodesResource, u.config.Nodes)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, metrics.NodeMetricsList{
		TypeMeta: metav1.TypeMeta{Kind: "NodeMetricsList", APIVersion: metrics.SchemeGroupVersion.String()}, Items: u.nodes(r.Context(), sel),
	})
}

// getNode gives the reason where there is no answer: a list leaves such a node out.
func (u *Usage) getNode(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if _, err := u.selection(r, nodesResource, u.config.Nodes); err != nil {
		fail(w, err)
		return
	}
	o := u.config.Nodes.Get(kube.Key{Name: name})
	if o == nil {
		fail(w, apierrors.NewNotFound(metrics.Resource("nodes"), name))
		return
	}
	summary, err := u.of(r.Context(), types.NodeName(name))
	if err != nil {
		fail(w, apierrors.NewServiceUnavailable(err.Error()))
		return
	}
	n, ok := nodeMetrics(types.NodeName(name), o.Labels, summary)
	if !ok {
		fail(w, apierrors.NewServiceUnavailable("the kubelet of "+name+" has no figures yet"))
		return
	}
	answer(w, http.StatusOK, n)
}

func (u *Usage) listPods(w http.ResponseWriter, r *http.Request) {
	sel, err := u.selection(r, podsResource, u.config.Pods)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, metrics.PodMetricsList{
		TypeMeta: metav1.TypeMeta{Kind: "PodMetricsList", APIVersion: metrics.SchemeGroupVersion.String()}, Items: u.pods(r.Context(), sel),
	})
}

func (u *Usage) getPod(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	sel, err := u.selection(r, podsResource, u.config.Pods)
	if err != nil {
		fail(w, err)
		return
	}
	o := u.config.Pods.Get(kube.Key{Namespace: namespace, Name: name})
	if o == nil {
		fail(w, apierrors.NewNotFound(metrics.Resource("pods"), name))
		return
	}
	if node := types.NodeName(o.Node()); node != "" {
		if _, err := u.of(r.Context(), node); err != nil {
			fail(w, apierrors.NewServiceUnavailable(err.Error()))
			return
		}
	}
	sel.Name = name
	if items := u.pods(r.Context(), sel); len(items) == 1 {
		answer(w, http.StatusOK, items[0])
		return
	}
	fail(w, apierrors.NewNotFound(metrics.Resource("pods"), name)) // it does not run, or has only just begun to
}

func answer(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // the client may be gone
}

// fail answers with a Status. err is one of package apierrors.
func fail(w http.ResponseWriter, err error) {
	status := metav1.Status{Code: http.StatusInternalServerError, Message: err.Error(), Reason: metav1.StatusReasonInternalError, Status: metav1.StatusFailure}
	if s, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status = s.ErrStatus
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	answer(w, int(status.Code), status)
}
