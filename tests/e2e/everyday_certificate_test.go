package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// signPods plays a signer of pod certificates, for the pods of a namespace, until the test ends.
func (s *system) signPods(namespace, signer string) {
	s.T.Helper()
	requests := s.Client.CertificatesV1().PodCertificateRequests(namespace)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.Check(err)
	w, err := requests.Watch(s.T.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.signerName", signer).String()})
	s.Check(err)
	s.T.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			r, ok := e.Object.(*certificatesv1.PodCertificateRequest)
			if !ok || len(r.Status.Conditions) > 0 || e.Type == "DELETED" {
				continue
			}
			err := issue(r, key)
			if err == nil {
				_, err = requests.UpdateStatus(context.WithoutCancel(s.T.Context()), r, metav1.UpdateOptions{})
			}
			if err != nil && s.T.Context().Err() == nil {
				s.T.Errorf("signing %s: %v", r.Name, err)
			}
		}
	}()
}

// issue adds a certificate of a day to a request. The signer is its own authority.
func issue(r *certificatesv1.PodCertificateRequest, key *ecdsa.PrivateKey) error {
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: r.Spec.PodName},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(20 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: r.Spec.SignerName}}
	raw, err := x509.CreateCertificate(rand.Reader, leaf, authority, request.PublicKey, key)
	if err != nil {
		return fmt.Errorf("making the certificate: %w", err)
	}
	at := func(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
	r.Status.CertificateChain = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	r.Status.NotBefore, r.Status.BeginRefreshAt, r.Status.NotAfter = at(leaf.NotBefore), at(now.Add(10*time.Hour)), at(leaf.NotAfter)
	r.Status.Conditions = []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Issued", LastTransitionTime: metav1.Time{Time: now}}}
	return nil
}
