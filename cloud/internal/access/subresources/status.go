package subresources

import (
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resource is that of errors: the pods, as users see them.
var resource = schema.GroupResource{Resource: "pods"}

func write(w http.ResponseWriter, code int, o any) {
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
	write(w, int(status.Code), status)
}
