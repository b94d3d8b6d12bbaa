package edgeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// maxBody is kube-apiserver's own bound for the body of a request.
	maxBody = 3 << 20
	// requestTimeout bounds a request that isn't a watch where it names no bound of its own;
	// kube-apiserver's --request-timeout has the same default.
	requestTimeout = time.Minute
	// retryAfter is the delay in seconds for a client that has to wait for the link or for a sync.
	retryAfter = 1
)

// codecs never convert: the edge serves each object in the version in which it was asked
// for and held.
var codecs = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()

// jsonCodecs serve the kinds that no Go type is known for. Those have no protobuf, and YAML
// has no streams.
var jsonCodecs = jsonOnly{codecs}

type jsonOnly struct{ runtime.NegotiatedSerializer }

func (s jsonOnly) SupportedMediaTypes() []runtime.SerializerInfo {
	var infos []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType == runtime.ContentTypeJSON || info.MediaType == runtime.ContentTypeYAML {
			infos = append(infos, info)
		}
	}
	return infos
}

func isWatch(info *request.RequestInfo) bool { return info.IsResourceRequest && info.Verb == "watch" }

// writeError answers err as a Status in JSON or protobuf, whichever the client accepts.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(statusOf(err), codecs, schema.GroupVersion{Version: "v1"}, w, r)
}

// statusOf converts every error to a Status, so that no client gets bare text.
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

// unavailable is the answer to a request that can't be answered now: the client should retry, and
// never gets a wrong answer.
func unavailable(message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
		Message: message,
	}}
}

// response records whether the body was started: an error after that can't be sent.
type response struct {
	http.ResponseWriter
	person bool
	begun  bool
	code   int // once begun
}

// WriteHeader sends interactive clients Retry-After as a date. It may be a date or seconds (RFC
// 9110, 10.2.3), and kubectl sleeps through seconds ten times before it prints the error: a user
// who asks an offline device for a missing object wants the error at once.
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
