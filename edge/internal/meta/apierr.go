package meta

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// ErrPassThrough is returned by Get and List for what is not held here and can be asked of the cloud: send it with Request. It is only ever
// returned while there is a link.
var ErrPassThrough = errors.New("not held here: ask the cloud")

// unavailable is a 503 that says when to come back, in seconds.
func unavailable(why string, retryAfter int32) *apierrors.StatusError {
	return status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, why, retryAfter)
}

func offline(what string) *apierrors.StatusError {
	return unavailable(what+": this node has no link to the cloud at the moment", 5)
}

func tooMany(why string) *apierrors.StatusError {
	return status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, why, 1)
}

func status(code int32, reason metav1.StatusReason, why string, retryAfter int32) *apierrors.StatusError {
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: why,
	}
	if retryAfter > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	return &apierrors.StatusError{ErrStatus: s}
}

func success() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
}

func notFound(ref object.Ref) *apierrors.StatusError {
	return apierrors.NewNotFound(ref.Resource.GroupResource(), ref.Name)
}

func conflict(ref object.Ref, format string, args ...any) *apierrors.StatusError {
	return apierrors.NewConflict(ref.Resource.GroupResource(), ref.Name, fmt.Errorf(format, args...))
}

// asStatus makes a Status of what a commit returned.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsTimeout(err) || errors.As(err, new(*apierrors.StatusError)) {
		return err
	}
	switch {
	case errors.Is(err, store.ErrFull):
		return status(http.StatusInsufficientStorage, metav1.StatusReasonInternalError, "the disk of this node is full: "+err.Error(), 5)
	case errors.Is(err, store.ErrDamaged):
		return unavailable("the store of this node is damaged; restart edgecore to replace it", 30)
	case errors.Is(err, errStopped), errors.Is(err, store.ErrClosed):
		return unavailable("edgecore is starting or stopping", 1)
	}
	return unavailable(err.Error(), 1)
}
