// Package reply makes metamanager's Status errors for clients, each with its retry delay. It is
// stateless.
package reply

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// ErrStopped is returned while metamanager does not run.
var ErrStopped = errors.New("metamanager is not running")

// Unavailable returns a 503 with a retry delay in seconds.
func Unavailable(why string, retryAfter int32) *apierrors.StatusError {
	return Status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, why, retryAfter)
}

// Offline returns a 503 for a request that only the cloud could answer.
func Offline(what string) *apierrors.StatusError {
	return Unavailable(what+": this node has no link to the cloud at the moment", 5)
}

// TooMany is a 429.
func TooMany(why string) *apierrors.StatusError {
	return Status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, why, 1)
}

// Status returns a failure; retryAfter is in seconds, 0 omits it.
func Status(code int32, reason metav1.StatusReason, why string, retryAfter int32) *apierrors.StatusError {
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: why,
	}
	if retryAfter > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	return &apierrors.StatusError{ErrStatus: s}
}

// Success is the answer to a deletion.
func Success() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
}

// NotFound is a 404.
func NotFound(ref object.Ref) *apierrors.StatusError {
	return apierrors.NewNotFound(ref.Resource.GroupResource(), ref.Name)
}

// Conflict is a 409.
func Conflict(ref object.Ref, format string, args ...any) *apierrors.StatusError {
	return apierrors.NewConflict(ref.Resource.GroupResource(), ref.Name, fmt.Errorf(format, args...))
}

// From converts a commit's error to a Status.
func From(err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsTimeout(err) || errors.As(err, new(*apierrors.StatusError)) {
		return err
	}
	switch {
	case errors.Is(err, store.ErrFull):
		return Status(http.StatusInsufficientStorage, metav1.StatusReasonInternalError, "the disk of this node is full: "+err.Error(), 5)
	case errors.Is(err, store.ErrDamaged):
		return Unavailable("the store of this node is damaged; restart edgecore to replace it", 30)
	case errors.Is(err, ErrStopped), errors.Is(err, store.ErrClosed):
		return Unavailable("edgecore is starting or stopping", 1)
	}
	return Unavailable(err.Error(), 1)
}
