package join

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// FrontProxy verifies kube-apiserver as the client that forwards requests to an aggregated API. It
// follows the CA that kube-apiserver itself publishes.
type FrontProxy struct {
	ca    *ClientCA
	names *headerrequest.RequestHeaderAuthRequestController
	users authenticator.Request
}

// NewFrontProxy follows the ConfigMap kube-system/extension-apiserver-authentication.
func NewFrontProxy(client kubernetes.Interface) (*FrontProxy, error) {
	const published = "extension-apiserver-authentication"
	source, err := dynamiccertificates.NewDynamicCAFromConfigMapController("front-proxy", metav1.NamespaceSystem, published, "requestheader-client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("following the front proxy's CA: %w", err)
	}
	f := &FrontProxy{
		ca: newClientCA(source),
		names: headerrequest.NewRequestHeaderAuthRequestController(published, metav1.NamespaceSystem, client, "requestheader-username-headers",
			"requestheader-uid-headers", "requestheader-group-headers", "requestheader-extra-headers-prefix", "requestheader-allowed-names"),
	}
	f.users = headerrequest.NewDynamic(headerrequest.StringSliceProviderFunc(f.names.UsernameHeaders), headerrequest.StringSliceProviderFunc(f.names.UIDHeaders),
		headerrequest.StringSliceProviderFunc(f.names.GroupHeaders), headerrequest.StringSliceProviderFunc(f.names.ExtraHeaderPrefixes))
	return f, nil
}

// Run follows the source until ctx ends.
func (f *FrontProxy) Run(ctx context.Context) error {
	var both sync.WaitGroup
	both.Go(func() { f.names.Run(ctx, 1) })
	err := f.ca.Run(ctx)
	both.Wait()
	return err
}

// Pool is the CA now; nil until it is known, and where the cluster has no front proxy.
func (f *FrontProxy) Pool() *x509.CertPool { return f.ca.Pool() }

// Allowed reports whether a common name is the front proxy's. No names published means any that the
// CA has signed (--requestheader-allowed-names); no client is allowed before that is known.
func (f *FrontProxy) Allowed(commonName string) bool {
	if len(f.names.UsernameHeaders()) == 0 { // published wherever there is a front proxy
		return false
	}
	names := f.names.AllowedClientNames()
	return len(names) == 0 || slices.Contains(names, commonName)
}

// User is the user of a forwarded request; false where a request does not come from the front
// proxy, by a connection that has verified its certificate against Pool, or names no user. The
// headers that name the user are removed.
func (f *FrontProxy) User(r *http.Request) (user.Info, bool) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || !f.Allowed(r.TLS.PeerCertificates[0].Subject.CommonName) {
		return nil, false
	}
	answer, ok, err := f.users.AuthenticateRequest(r)
	if err != nil || !ok || answer.User.GetName() == "" {
		return nil, false
	}
	return answer.User, true
}
