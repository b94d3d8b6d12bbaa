package edged

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/server"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/sockdiag"
)

// localPaths are the allowed paths of the local client: the subresources of pods that people use.
var localPaths = []string{"/containerLogs/", "/exec/", "/attach/", "/portForward/"}

// localClient is edgecore as a client of its own kubelet. Its key is made when the process starts
// and is never written down; no CA has signed its certificate, which only this process' kubelet
// accepts, byte by byte. So it is useless anywhere else.
type localClient struct {
	certificate tls.Certificate
	user        *user.DefaultInfo // compared as a pointer: no certificate, token or header yields it
}

func newLocalClient() (*localClient, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key for the kubelet: %w", err)
	}
	// Its times are not checked: the kubelet compares the whole certificate.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "edgecore"}, NotAfter: time.Unix(1<<33, 0)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate for the kubelet: %w", err)
	}
	return &localClient{
		certificate: tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key},
		user:        &user.DefaultInfo{Name: "skerry:edgecore"},
	}, nil
}

// localAuth is the kubelet's own AuthInterface, extended by the local client.
type localAuth struct {
	server.AuthInterface
	local *localClient
}

// AuthenticateRequest implements authenticator.Request. The handshake has shown that the client
// holds the certificate's key.
func (a *localAuth) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && bytes.Equal(r.TLS.PeerCertificates[0].Raw, a.local.certificate.Certificate[0]) {
		return &authenticator.Response{User: a.local.user}, true, nil
	}
	return a.AuthInterface.AuthenticateRequest(r)
}

// Authorize implements authorizer.UnconditionalAuthorizer. The local client's permissions are not
// asked of the cluster.
func (a *localAuth) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if attributes.GetUser() != user.Info(a.local.user) {
		return a.AuthInterface.Authorize(ctx, attributes)
	}
	if at := attributes.GetPath(); path.Clean(at) == at {
		for _, prefix := range localPaths {
			if strings.HasPrefix(at, prefix) {
				return authorizer.DecisionAllow, "", nil
			}
		}
	}
	return authorizer.DecisionDeny, "edgecore asks its kubelet for logs, exec, attach and port-forward alone", nil
}

// dial connects to the kubelet's server, which must present the certificate in the kubelet's own
// folder: a pod on the host's network could listen at its port. The connection keeps its answer.
func (l *localClient) dial(ctx context.Context, kubelet *options.KubeletServer, address string) (net.Conn, error) {
	if address == "" {
		return nil, errors.New("the kubelet has no server: KubeletConfiguration enableServer")
	}
	if kubelet.Authentication.X509.ClientCAFile == "" {
		return nil, errors.New("the kubelet asks for no client certificates: KubeletConfiguration authentication.x509.clientCAFile")
	}
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &l.certificate, nil },
		// Compared with a file instead: the kubelet may serve with a certificate that it has signed
		// itself, and its name resolves nowhere here.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return verifyOwn(servingFile(kubelet), s.PeerCertificates) },
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the kubelet does not answer: %w", err)
	}
	return sockdiag.KeepAnswer(conn), nil
}

// servingFile is the certificate of the kubelet's server.
func servingFile(kubelet *options.KubeletServer) string {
	switch {
	case kubelet.TLSCertFile != "":
		return kubelet.TLSCertFile
	case kubelet.ServerTLSBootstrap:
		return filepath.Join(kubelet.CertDirectory, "kubelet-server-current.pem")
	}
	return filepath.Join(kubelet.CertDirectory, "kubelet.crt")
}

func verifyOwn(file string, shown []*x509.Certificate) error {
	if len(shown) == 0 {
		return errors.New("the kubelet's server shows no certificate")
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the kubelet's certificate: %w", err)
	}
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" && bytes.Equal(block.Bytes, shown[0].Raw) {
			return nil
		}
	}
	return errors.New("the server at the kubelet's port is not this kubelet")
}
