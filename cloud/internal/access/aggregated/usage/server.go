package usage

import (
	"context"
	"net"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/skerry-io/skerry/cloud/internal/access/aggregated"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// maxRequests bounds the requests that are served at once.
const maxRequests = 64

// Serve answers on a listener whose connections have shown a certificate of kube-apiserver's front
// proxy, whose name allowed approves. It returns when ctx has ended.
func (u *Usage) Serve(ctx context.Context, listener net.Listener, allowed func(commonName string) bool) error {
	defer u.begin(ctx)()
	return u.api(allowed).Serve(ctx, listener)
}

func (u *Usage) api(allowed func(commonName string) bool) *aggregated.Server {
	s := aggregated.New(aggregated.Config{
		GroupVersion: metrics.SchemeGroupVersion, MaxRequests: maxRequests, Resource: schema.GroupResource{Group: metrics.GroupName},
		Enter: func(r *http.Request) (*http.Request, bool) {
			return r, r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && allowed(r.TLS.PeerCertificates[0].Subject.CommonName)
		},
	})
	verbs := metav1.Verbs{"get", "list"}
	s.Discover(metav1.APIResource{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs}, metav1.APIResource{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: verbs})
	s.Handle("GET", "/nodes", u.listNodes)
	s.Handle("GET", "/nodes/{name}", u.getNode)
	s.Handle("GET", "/pods", u.listPods)
	s.Handle("GET", "/namespaces/{namespace}/pods", u.listPods)
	s.Handle("GET", "/namespaces/{namespace}/pods/{name}", u.getPod)
	return s
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

func (u *Usage) listNodes(w http.ResponseWriter, r *http.Request) error {
	sel, err := u.selection(r, nodesResource, u.config.Nodes)
	if err != nil {
		return err
	}
	return aggregated.Answer(w, metrics.NodeMetricsList{
		TypeMeta: metav1.TypeMeta{Kind: "NodeMetricsList", APIVersion: metrics.SchemeGroupVersion.String()}, Items: u.nodes(r.Context(), sel),
	})
}

// getNode gives the reason where there is no answer: a list leaves such a node out.
func (u *Usage) getNode(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if _, err := u.selection(r, nodesResource, u.config.Nodes); err != nil {
		return err
	}
	o := u.config.Nodes.Get(kube.Key{Name: name})
	if o == nil {
		return apierrors.NewNotFound(metrics.Resource("nodes"), name)
	}
	summary, err := u.of(r.Context(), types.NodeName(name))
	if err != nil {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	n, ok := nodeMetrics(types.NodeName(name), o.Labels, summary)
	if !ok {
		return apierrors.NewServiceUnavailable("the kubelet of " + name + " has no figures yet")
	}
	return aggregated.Answer(w, n)
}

func (u *Usage) listPods(w http.ResponseWriter, r *http.Request) error {
	sel, err := u.selection(r, podsResource, u.config.Pods)
	if err != nil {
		return err
	}
	return aggregated.Answer(w, metrics.PodMetricsList{
		TypeMeta: metav1.TypeMeta{Kind: "PodMetricsList", APIVersion: metrics.SchemeGroupVersion.String()}, Items: u.pods(r.Context(), sel),
	})
}

func (u *Usage) getPod(w http.ResponseWriter, r *http.Request) error {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	sel, err := u.selection(r, podsResource, u.config.Pods)
	if err != nil {
		return err
	}
	o := u.config.Pods.Get(kube.Key{Namespace: namespace, Name: name})
	if o == nil {
		return apierrors.NewNotFound(metrics.Resource("pods"), name)
	}
	if node := types.NodeName(o.Node()); node != "" {
		if _, err := u.of(r.Context(), node); err != nil {
			return apierrors.NewServiceUnavailable(err.Error())
		}
	}
	sel.Name = name
	if items := u.pods(r.Context(), sel); len(items) == 1 {
		return aggregated.Answer(w, items[0])
	}
	return apierrors.NewNotFound(metrics.Resource("pods"), name) // it does not run, or has only just begun to
}
