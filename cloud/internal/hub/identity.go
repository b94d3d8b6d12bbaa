package hub

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The subject of a node's certificate, as Kubernetes' Node authorizer wants it.
// https://kubernetes.io/docs/reference/access-authn-authz/node/
const (
	nodesGroup     = "system:nodes"
	nodeUserPrefix = "system:node:"
)

// NodeOf returns the node that a verified certificate names.
func NodeOf(cert *x509.Certificate) (types.NodeName, error) {
	if cert == nil {
		return "", errors.New("no client certificate")
	}
	if !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return "", errors.New("the certificate is not for client authentication")
	}
	if !slices.Contains(cert.Subject.Organization, nodesGroup) {
		return "", fmt.Errorf("the certificate's organization is %q, want %q", cert.Subject.Organization, nodesGroup)
	}
	name, ok := strings.CutPrefix(cert.Subject.CommonName, nodeUserPrefix)
	if !ok {
		return "", fmt.Errorf("the certificate's common name is %q, want %qNAME", cert.Subject.CommonName, nodeUserPrefix)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("%q is no node name: %s", name, strings.Join(problems, "; "))
	}
	return types.NodeName(name), nil
}
