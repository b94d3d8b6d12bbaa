package edgeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/skerry-io/skerry/common/podstream"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// podStream returns the subresource that a request of the device's root has the kubelet here
// answer: log, exec, attach or port-forward of a pod.
func (s *Server) podStream(r *http.Request, info *request.RequestInfo) (podstream.Subresource, bool) {
	if s.config.DialKubelet == nil || !identityFrom(r.Context()).Device || !info.IsResourceRequest || info.APIGroup != "" || info.Resource != "pods" {
		return podstream.Subresource{}, false
	}
	for _, sub := range podstream.Subresources() {
		if sub.Name == info.Subresource && (info.Verb == "get" || sub.Streams && info.Verb == "create") {
			return sub, true
		}
	}
	return podstream.Subresource{}, false
}

// serveStream answers by this device's kubelet. Streams have no bound of time; they end
// with the server.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, sub podstream.Subresource) {
	ctx := request.WithRequestInfo(r.Context(), info)
	r = r.WithContext(ctx)
	if err := s.stream(w, r, info, sub); err != nil {
		writeError(w, r, err)
	}
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, sub podstream.Subresource) error {
	ctx, resource := r.Context(), schema.GroupResource{Resource: "pods"}
	if sub.Streams && r.Header.Get("Origin") != "" {
		return apierrors.NewForbidden(resource, info.Name, errors.New("a web page may not open a stream: the request has the header Origin"))
	}
	pod, err := s.ownPod(ctx, info)
	if err != nil {
		return err
	}
	location, err := sub.Location(pod, r.URL.Query())
	if err != nil {
		return err
	}
	conn, err := s.config.DialKubelet(ctx)
	if err != nil {
		return unavailable(fmt.Sprintf("pod %s/%s: %v", pod.Namespace, pod.Name, err))
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	return podstream.Serve(w, r, conn, location, sub, streamError{})
}

// ownPod reads a pod of this device.
func (s *Server) ownPod(ctx context.Context, info *request.RequestInfo) (*corev1.Pod, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	items, _, err := s.backend.List(ctx, object.Selection{
		Resource: resource, Namespace: info.Namespace, Labels: labels.Everything(), Fields: fields.OneTermEqualSelector("metadata.name", info.Name),
	}, metamanager.ListOptions{Held: true})
	if err != nil {
		return nil, statusOf(err)
	}
	if len(items) != 1 {
		return nil, apierrors.NewNotFound(resource.GroupResource(), info.Name)
	}
	decoded, err := object.Decode(items[0])
	if err != nil {
		return nil, err
	}
	pod, ok := decoded.(*corev1.Pod)
	if !ok || pod.Spec.NodeName != s.config.NodeName {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s is not on node %s: ask the cluster's API", info.Name, s.config.NodeName))
	}
	return pod, nil
}

// streamError answers for a stream that can't be.
type streamError struct{}

// Error implements proxy.ErrorResponder.
func (streamError) Error(w http.ResponseWriter, r *http.Request, err error) {
	if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
		err = unavailable(err.Error())
	}
	writeError(w, r, err)
}
