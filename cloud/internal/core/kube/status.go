package kube

import (
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusOf is an error as it is sent to an edge: a Kubernetes Status as JSON. One that is a Status
// stays the same.
func StatusOf(err error) []byte {
	status := metav1.Status{Status: metav1.StatusFailure, Message: err.Error(), Reason: metav1.StatusReasonUnknown, Code: http.StatusInternalServerError}
	if s, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status = s.ErrStatus
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	b, err := json.Marshal(&status)
	if err != nil {
		return []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`)
	}
	return b
}
