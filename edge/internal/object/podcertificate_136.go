//go:build kubernetes1.36

package object

import (
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
)

// podCertificateRequest takes what a selector may ask for out of a PodCertificateRequest, of the
// versions that this Kubernetes knows.
func podCertificateRequest(obj runtime.Object) (signer, pod, node string, ok bool) {
	switch r := obj.(type) {
	case *certificatesv1beta1.PodCertificateRequest:
		return r.Spec.SignerName, r.Spec.PodName, string(r.Spec.NodeName), true
	}
	return "", "", "", false
}
