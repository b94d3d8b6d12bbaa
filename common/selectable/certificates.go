//go:build !kubernetes1.36

package selectable

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
)

// podCertificateRequest returns the selectable fields of a PodCertificateRequest, of the versions
// in this Kubernetes.
func podCertificateRequest(obj runtime.Object) (signer, pod, node string, ok bool) {
	switch r := obj.(type) {
	case *certificatesv1.PodCertificateRequest:
		return r.Spec.SignerName, r.Spec.PodName, string(r.Spec.NodeName), true
	case *certificatesv1beta1.PodCertificateRequest:
		return r.Spec.SignerName, r.Spec.PodName, string(r.Spec.NodeName), true
	}
	return "", "", "", false
}

// signerOfBundle is the signer of a ClusterTrustBundle, of the versions in this Kubernetes.
func signerOfBundle(obj runtime.Object) (signer string, ok bool) {
	switch b := obj.(type) {
	case *certificatesv1.ClusterTrustBundle:
		return b.Spec.SignerName, true
	case *certificatesv1beta1.ClusterTrustBundle:
		return b.Spec.SignerName, true
	case *certificatesv1alpha1.ClusterTrustBundle:
		return b.Spec.SignerName, true
	}
	return "", false
}
