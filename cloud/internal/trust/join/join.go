// Package join lets devices into the cluster and throws them out: the serving CA that devices
// trust, join tokens, the bootstrap server, the approver of certificate requests, and the list of
// revoked certificates.
//
// It owns skerry-system's objects about identity: the Secret skerry-ca, the ConfigMaps
// skerry-token-ID (the parts of a token that cloudcore needs, without a right to the Secrets of
// kube-system) and the ConfigMap skerry-revoked. It refuses every certificate that Kubernetes' own
// authenticator and signer would not stand behind: it signs no node certificate itself. Every
// exported method may be called by many goroutines at once; replicas agree through resourceVersions
// alone.
//
// It is above 2,500 lines because joining, approving and revoking judge the same requests by the
// same lists; apart, each would have to export functions that must not be called in another order.
package join

import (
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// Namespace holds all objects of this package but the bootstrap tokens themselves, which
	// Kubernetes wants in kube-system.
	Namespace = v1alpha1.SystemNamespace

	// BootstrapGroup is the group of devices that hold a token. Its only right is to create
	// certificate requests.
	BootstrapGroup = "system:bootstrappers:skerry"

	// Signer is Kubernetes' signer of node client certificates.
	Signer = certificatesv1.KubeAPIServerClientKubeletSignerName

	caSecret        = "skerry-ca"
	revokedMap      = "skerry-revoked"
	tokenMapPrefix  = "skerry-token-"
	tokenLabel      = "skerry.io/join-token"
	bootstrapPrefix = "system:bootstrap:" // of the user names that Kubernetes gives to the holders of tokens

	// csrPrefix begins the names of the certificate requests that the bootstrap server makes.
	csrPrefix = "skerry-join-"
)
