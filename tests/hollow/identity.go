package hollow

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster/ca"
)

// FromCA makes identities with the key of the cluster's CA, in two PEM files.
func FromCA(certFile, keyFile string) func(context.Context, string) (*tls.Certificate, error) {
	return func(_ context.Context, node string) (*tls.Certificate, error) {
		cert, key, err := ca.Client(certFile, keyFile, pkix.Name{CommonName: pki.NodeUserPrefix + node, Organization: []string{pki.NodesGroup}})
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("reading a certificate: %w", err)
		}
		return &pair, nil
	}
}

// FromCSR asks the cluster for each identity, and approves the request itself: client must be an
// administrator's. The cluster's controller manager signs, at its own pace.
func FromCSR(client kubernetes.Interface) func(context.Context, string) (*tls.Certificate, error) {
	return func(ctx context.Context, node string) (*tls.Certificate, error) {
		key, err := pki.NewKey()
		if err != nil {
			return nil, err
		}
		request, err := pki.NewNodeCSR(key, types.NodeName(node))
		if err != nil {
			return nil, err
		}
		signed, err := sign(ctx, client.CertificatesV1().CertificateSigningRequests(), request)
		if err != nil {
			return nil, err
		}
		chain, err := pki.ParseCertificates(signed)
		if err != nil {
			return nil, err
		}
		cert := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
		for _, c := range chain {
			cert.Certificate = append(cert.Certificate, c.Raw)
		}
		return cert, nil
	}
}

// requests is the part of the API that sign needs.
type requests interface {
	Create(context.Context, *certificatesv1.CertificateSigningRequest, metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error)
	UpdateApproval(context.Context, string, *certificatesv1.CertificateSigningRequest, metav1.UpdateOptions) (*certificatesv1.CertificateSigningRequest, error)
	Get(context.Context, string, metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

func sign(ctx context.Context, csrs requests, request []byte) ([]byte, error) {
	seconds := int32((7 * 24 * time.Hour).Seconds())
	csr, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "hollow-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, ExpirationSeconds: &seconds,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking for a certificate: %w", err)
	}
	approve := func() error {
		if slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved
		}) {
			return nil // by the cluster's own approver: an administrator may ask for any node
		}
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "HollowNode", Message: "made by the hollow command",
		})
		_, err := csrs.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) { // the approver was quicker, as a rule
			if now, getErr := csrs.Get(ctx, csr.Name, metav1.GetOptions{}); getErr == nil {
				csr = now
			}
		}
		return err
	}
	if err := retry.RetryOnConflict(retry.DefaultBackoff, approve); err != nil {
		return nil, fmt.Errorf("approving a certificate: %w", err)
	}
	var signed []byte
	err = wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, err := csrs.Get(ctx, csr.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == certificatesv1.CertificateFailed || c.Type == certificatesv1.CertificateDenied {
				return false, fmt.Errorf("the cluster did not sign: %s", c.Message)
			}
		}
		signed = now.Status.Certificate
		return len(signed) > 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for a certificate: %w", err)
	}
	if err := csrs.Delete(ctx, csr.Name, metav1.DeleteOptions{}); err != nil {
		return nil, fmt.Errorf("removing a request: %w", err)
	}
	return signed, nil
}

// Roots reads cloudcore's own CA from the cluster.
func Roots(ctx context.Context, client kubernetes.Interface) (*x509.CertPool, error) {
	secret, err := client.CoreV1().Secrets(v1alpha1.SystemNamespace).Get(ctx, "skerry-ca", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading cloudcore's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey]) {
		return nil, errors.New("reading cloudcore's CA: Secret skerry-system/skerry-ca holds no certificate")
	}
	return pool, nil
}
