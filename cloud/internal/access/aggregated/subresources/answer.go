package subresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/skerry-io/skerry/cloud/internal/access/aggregated"
	"github.com/skerry-io/skerry/common/podstream"
)

// answer serves one request. Its error is one of package apierrors, and no answer was written
// then. serving ends with the server: the owner of a hijacked connection would outlive it.
func (s *Server) answer(serving context.Context, w http.ResponseWriter, r *http.Request, sub podstream.Subresource) error {
	// Browsers put it into every websocket that a page opens (RFC 6455, 4.1), and a page may open
	// one at an administrator's `kubectl proxy`, which refuses exec and attach at pods' own paths
	// only.
	if sub.Streams && r.Header.Get("Origin") != "" {
		return apierrors.NewForbidden(resource, r.PathValue("name"), errors.New("a web page may not open a stream: the request has the header Origin"))
	}
	ctx := r.Context()
	who, _ := ctx.Value(userKey{}).(user.Info)
	asked := subject{who: who, namespace: r.PathValue("namespace"), name: r.PathValue("name"), subresource: sub.Name}
	if err := s.judge(ctx, asked, sub, verbs[r.Method]); err != nil {
		return err
	}
	pod, err := s.pod(ctx, asked)
	if err != nil {
		return err
	}
	location, err := sub.Location(pod, r.URL.Query())
	if err != nil {
		return err
	}
	conn, err := s.config.Dial(ctx, types.NodeName(pod.Spec.NodeName))
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s/%s on node %s: %v", pod.Namespace, pod.Name, pod.Spec.NodeName, err))
	}
	defer conn.Close()
	defer context.AfterFunc(serving, func() { _ = conn.Close() })()
	return podstream.Serve(w, r, conn, location, sub, refusals{})
}

// judge asks whether the user may make the same request of the pod's own subresource.
// Whatever the method, a stream takes the right to create (kubernetes#133515: a websocket
// begins with GET).
func (s *Server) judge(ctx context.Context, asked subject, sub podstream.Subresource, verb string) error {
	if err := asked.review(ctx, s.config.Client, verb); err != nil {
		return err
	}
	if !sub.Streams {
		return nil
	}
	if verb != "create" {
		if err := asked.review(ctx, s.config.Client, "create"); err != nil {
			return err
		}
	}
	return asked.unjudged(ctx, s.config.Client)
}

// pod reads the pod as it is now: a cached copy may be from before it was bound. cloudcore may list
// pods, not get them.
func (s *Server) pod(ctx context.Context, asked subject) (*corev1.Pod, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, asked.name).String()
	l, err := s.config.Client.CoreV1().Pods(asked.namespace).List(ctx, metav1.ListOptions{FieldSelector: only})
	switch {
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("reading the pod: %v", err))
	case len(l.Items) != 1:
		return nil, apierrors.NewNotFound(resource, asked.name)
	case l.Items[0].Spec.NodeName == "":
		return nil, apierrors.NewBadRequest("pod " + asked.name + " does not have a host assigned")
	}
	return &l.Items[0], nil
}

// refusals answers for a stream that can't be.
type refusals struct{}

// Error implements proxy.ErrorResponder.
func (refusals) Error(w http.ResponseWriter, _ *http.Request, err error) {
	if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
		err = apierrors.NewServiceUnavailable(err.Error())
	}
	aggregated.Fail(w, err)
}
