package join

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/common/httpserver"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/version"
)

const (
	// joinWait bounds how long a device waits for approval and issue in one request; it may ask
	// again with the same key.
	joinWait = 45 * time.Second
	// joinsAtOnce bounds the requests that wait; more are asked to retry later.
	joinsAtOnce = 64
	// joinsOfAddress are those of one address; more are asked to retry later.
	joinsOfAddress = joinsAtOnce / 2
	// connsAtOnce bounds open connections; more wait in the kernel's backlog.
	connsAtOnce = 512
	// connsOfAddress are those of one address, such as a site behind a NAT; one more is closed at
	// once.
	connsOfAddress = connsAtOnce / 8
	stopWait       = 5 * time.Second
)

// csrObject is Kubernetes' own, as opposed to the JoinRequest that leads to it.
type csrObject = certificatesv1.CertificateSigningRequest

// Requester makes a certificate request as the holder of the bearer token, so that kube-apiserver
// judges the token itself.
type Requester func(ctx context.Context, bearer string, csr *csrObject) (*csrObject, error)

// RequesterFor connects to the kube-apiserver of cfg, without cfg's own credentials.
func RequesterFor(cfg *rest.Config) Requester {
	base := rest.AnonymousClientConfig(cfg)
	return func(ctx context.Context, bearer string, csr *csrObject) (*csrObject, error) {
		cfg := rest.CopyConfig(base)
		cfg.BearerToken = bearer
		client, err := certificatesclient.NewForConfig(cfg) // connections are shared: client-go keeps one transport for one TLS configuration
		if err != nil {
			return nil, fmt.Errorf("making a client for a token: %w", err)
		}
		return client.CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
	}
}

// Verifier asks kube-apiserver for the user of a bearer token. The error of a wrong one is
// Unauthorized.
type Verifier func(ctx context.Context, bearer string) error

// VerifierFor connects to the kube-apiserver of cfg, without cfg's own credentials.
func VerifierFor(cfg *rest.Config) Verifier {
	base := rest.AnonymousClientConfig(cfg)
	return func(ctx context.Context, bearer string) error {
		cfg := rest.CopyConfig(base)
		cfg.BearerToken = bearer
		client, err := authenticationclient.NewForConfig(cfg)
		if err != nil {
			return fmt.Errorf("making a client for a token: %w", err)
		}
		_, err = client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	}
}

// ServerConfig configures a Server.
type ServerConfig struct {
	Client    kubernetes.Interface // with cloudcore's own rights
	Requester Requester
	Verifier  Verifier
	Tokens    *Tokens
	CA        *CA
	Serving   *Serving
	ClientCA  *ClientCA
	WebSocket []string // "host:port", sent to devices
	QUIC      []string
	Limits    Limits

	// RenewEnded is how long after its expiry a certificate is renewed. AsNode creates a
	// certificate request as the node. Admit returns a *pki.Refusal for a revoked certificate.
	RenewEnded time.Duration
	AsNode     func(ctx context.Context, node types.NodeName, csr *csrObject) (*csrObject, error)
	Admit      func(ctx context.Context, node types.NodeName, cert *x509.Certificate) error
}

// Server is the bootstrap server: the one door that a device without a certificate can knock at.
type Server struct {
	cfg     ServerConfig
	limiter *limiter
	places  chan struct{}
	shares  *shares // of the places
	joins   *prometheus.CounterVec
	cluster clusterVersion
}

// NewServer makes a bootstrap server.
func NewServer(cfg ServerConfig) *Server {
	return &Server{
		cfg: cfg, limiter: newLimiter(cfg.Limits), places: make(chan struct{}, joinsAtOnce), shares: newShares(joinsOfAddress),
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skerry_joins_total", Help: "Joins by result: Joined, or the reason of the refusal.",
		}, []string{"result"}),
	}
}

// Metrics counts the joins.
func (s *Server) Metrics() prometheus.Collector { return s.joins }

// Run serves on the listeners, which it closes, until ctx ends. Requests that wait then get an
// answer that asks them to retry.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	server := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         pki.ServerTLS(pki.Server{Certificate: s.cfg.Serving.Certificate, Protocols: []string{"http/1.1"}}),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      joinWait + 15*time.Second,
		IdleTimeout:       10 * time.Second,
		MaxHeaderBytes:    8 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		// Handshakes that fail are mostly internet scanners: they are logged at level 2.
		ErrorLog: httpserver.Log(klog.FromContext(ctx), "joins"),
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, l := range listeners { // each with the bounds of connections; those of requests are of all together
		g.Go(func() error {
			err := server.Serve(tls.NewListener(netutil.LimitListener(newShareListener(l, connsOfAddress), connsAtOnce), server.TLSConfig))
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("serving joins on %s: %w", l.Addr(), err)
		})
	}
	g.Go(func() error {
		s.cluster.follow(gctx, s.cfg.Client.Discovery())
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
		defer cancel()
		if err := server.Shutdown(stop); err != nil {
			return server.Close()
		}
		return nil
	})
	return g.Wait()
}

// Handler is the server's interface without TLS, for tests and for callers with TLS of their own.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET "+pki.AboutPath, s.serveAbout)
	mux.HandleFunc("POST "+pki.JoinPath, s.serve("Joined", s.join))
	mux.HandleFunc("POST "+pki.RenewPath, s.serve("Renewed", s.renew))
	return mux
}

func (s *Server) serveAbout(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, pki.About{
		Version: version.Skerry(), Kubernetes: s.cluster.get(), Protocol: protocol.Current, ProtocolMin: protocol.Oldest, WebSocket: s.cfg.WebSocket, QUIC: s.cfg.QUIC,
		UnixMillis: time.Now().UnixMilli(),
	})
}

func (s *Server) serve(done string, do func(r *http.Request) (*pki.JoinAnswer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := do(r)
		if err == nil {
			s.joins.WithLabelValues(done).Inc()
			write(w, http.StatusOK, answer)
			return
		}
		s.refuse(w, r, err)
	}
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var refusal *pki.Refusal
	if !errors.As(err, &refusal) {
		// An internal error is not shown to the device, only that it may try again.
		klog.FromContext(r.Context()).Error(err, "Failed to answer a join request", "remote", r.RemoteAddr, "path", r.URL.Path)
		refusal = pki.Refuse(pki.ReasonUnavailable, "cloudcore can't reach the cluster's API at the moment; try again")
	}
	s.joins.WithLabelValues(string(refusal.Reason)).Inc()
	klog.FromContext(r.Context()).Info("Refused a join", "remote", r.RemoteAddr, "path", r.URL.Path, "reason", refusal.Reason, "why", refusal.Message)
	if refusal.Reason.Temporary() {
		w.Header().Set("Retry-After", "2")
	}
	write(w, refusal.Reason.Status(), refusal)
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a peer that went away has no use for it
}

func (s *Server) join(r *http.Request) (*pki.JoinAnswer, error) {
	if !s.limiter.allow(r.RemoteAddr) {
		return nil, pki.Refuse(pki.ReasonTooMany, "too many joins from this address or in all; try again in a moment")
	}
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return nil, pki.Refuse(pki.ReasonTokenShape, "no token: the request needs the header Authorization: Bearer ID.SECRET")
	}
	id, _, err := pki.ParseBearer(bearer)
	if err != nil {
		return nil, pki.Refuse(pki.ReasonTokenShape, "%v", err)
	}
	request, csr, err := readRequest(r)
	if err != nil {
		return nil, err
	}
	if err := version.KubeletFits(request.Kubernetes, s.cluster.get()); err != nil {
		return nil, pki.Refuse(pki.ReasonSkew, "%v", err)
	}
	leave, err := s.enter(r) // only now: a body that comes slowly takes no place
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), joinWait)
	defer cancel()
	made, err := s.request(ctx, id, bearer, request, csr)
	if err != nil {
		return nil, err
	}
	certificate, err := s.await(ctx, made)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("Joined a device", "node", request.NodeName, "remote", r.RemoteAddr, "token", id, "csr", made.Name,
		"version", request.Version)
	return s.answer(certificate), nil
}

// enter takes one of the places for requests in progress; leave gives it back.
func (s *Server) enter(r *http.Request) (leave func(), err error) {
	share, ok := s.shares.take(r.RemoteAddr)
	if !ok {
		return nil, pki.Refuse(pki.ReasonTooMany, "too many devices join from this address at the same time; try again in a moment")
	}
	select {
	case s.places <- struct{}{}:
		return func() { <-s.places; share() }, nil
	default:
		share()
		return nil, pki.Refuse(pki.ReasonTooMany, "too many devices join at the same time; try again in a moment")
	}
}

func (s *Server) answer(certificate []byte) *pki.JoinAnswer {
	return &pki.JoinAnswer{
		Certificate: string(certificate),
		CA:          string(s.cfg.CA.PEM()),
		ClientCA:    string(s.cfg.ClientCA.PEM()),
		WebSocket:   s.cfg.WebSocket,
		QUIC:        s.cfg.QUIC,
		Protocol:    protocol.Current,
		Version:     version.Skerry(),
		UnixMillis:  time.Now().UnixMilli(),
	}
}

// renew answers a device whose certificate ended while it was cut off: it has a Node that is not
// live, and is not revoked. The approver judges the request as it does one that comes by a link.
func (s *Server) renew(r *http.Request) (*pki.JoinAnswer, error) {
	if !s.limiter.allow(r.RemoteAddr) {
		return nil, pki.Refuse(pki.ReasonTooMany, "too many joins from this address or in all; try again in a moment")
	}
	if s.cfg.RenewEnded <= 0 || s.cfg.AsNode == nil {
		return nil, pki.Refuse(pki.ReasonEndedLongAgo, "cloudcore renews no certificate that has ended (join.renewEnded): join again with a token made with `cloudcore token create --node NAME`")
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	node, certs, request, err := pki.ParseRenewRequest(body, s.cfg.ClientCA.Pool(), time.Now(), s.cfg.RenewEnded)
	if err != nil {
		return nil, err
	}
	leave, err := s.enter(r)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), joinWait)
	defer cancel()
	if err := s.mayRenew(ctx, node, certs[0]); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(certs[0].Raw)
	want := wanted("skerry-renew-"+hex.EncodeToString(sum[:20]), request.CSR)
	made, err := s.cfg.AsNode(ctx, node, want)
	if apierrors.IsAlreadyExists(err) { // its answer was lost
		made, err = s.cfg.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, want.Name, metav1.GetOptions{})
		if err == nil && made.Spec.Username != pki.NodeUserPrefix+string(node) {
			return nil, pki.Refuse(pki.ReasonDenied, "another requester has the certificate request %s", made.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("making the certificate request: %w", err)
	}
	certificate, err := s.await(ctx, made)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("Renewed the expired certificate of a device", "node", node, "remote", r.RemoteAddr, "ended", certs[0].NotAfter.UTC().Format(time.RFC3339),
		"csr", made.Name, "version", request.Version)
	return s.answer(certificate), nil
}

// mayRenew returns the reason a node's expired certificate is not renewed. A node with a link has
// another certificate, so the one that was sent is a copy.
func (s *Server) mayRenew(ctx context.Context, node types.NodeName, cert *x509.Certificate) error {
	if err := s.cfg.Admit(ctx, node, cert); err != nil {
		return err
	}
	// cloudcore may list nodes, and not get one.
	nodes, err := s.cfg.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + string(node)})
	if err != nil {
		return fmt.Errorf("looking for the node %s: %w", node, err)
	}
	if !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == string(node) }) {
		return pki.Refuse(pki.ReasonNodeGone, "the node %s was removed from the cluster: join again, with a token of `cloudcore token create`", node)
	}
	return live(ctx, s.cfg.Client, node, time.Now())
}

func readRequest(r *http.Request) (pki.JoinRequest, *x509.CertificateRequest, error) {
	body, err := readBody(r)
	if err != nil {
		return pki.JoinRequest{}, nil, err
	}
	return pki.ParseJoinRequest(body, protocol.Ours())
}

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, pki.MaxJoinBody+1))
	if err != nil || len(body) > pki.MaxJoinBody {
		return nil, pki.Refuse(pki.ReasonBadRequest, "the request's body can't be read, or has more than %d bytes", pki.MaxJoinBody)
	}
	return body, nil
}

// wanted is the certificate request of a device.
func wanted(name, csr string) *csrObject {
	return &csrObject{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: []byte(csr), SignerName: Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// request makes the certificate request, or finds the one that the same device made with the same
// key and token before its connection broke.
func (s *Server) request(ctx context.Context, id, bearer string, request pki.JoinRequest, csr *x509.CertificateRequest) (
	*certificatesv1.CertificateSigningRequest, error) {
	csrs := s.cfg.Client.CertificatesV1().CertificateSigningRequests()
	want := wanted(requestName(id, request.NodeName, csr), request.CSR)
	if err := s.cfg.Tokens.Check(ctx, id, request.NodeName); err != nil {
		var refusal *pki.Refusal
		if !errors.As(err, &refusal) {
			return nil, err
		}
		if refusal.Reason == pki.ReasonTokenNode {
			return nil, s.tellNode(ctx, id, bearer, refusal)
		}
		if refusal.Reason != pki.ReasonTokenUsedUp {
			return nil, err
		}
		// Used up, perhaps by this very request. If no request has its name, the refusal stands.
		if _, errGet := csrs.Get(ctx, want.Name, metav1.GetOptions{}); errGet != nil {
			if apierrors.IsNotFound(errGet) {
				return nil, err
			}
			return nil, fmt.Errorf("looking for an earlier certificate request: %w", errGet)
		}
	}
	made, err := s.cfg.Requester(ctx, bearer, want)
	switch {
	case err == nil:
		return made, nil
	case apierrors.IsUnauthorized(err):
		// The record is fine, so it is the secret; or the Secret is gone and the record stayed.
		return nil, wrongSecret(id)
	case apierrors.IsForbidden(err):
		return nil, pki.Refuse(pki.ReasonDenied, "the token %s may not ask for certificates: is the ClusterRoleBinding skerry:bootstrapper there?", id)
	case !apierrors.IsAlreadyExists(err):
		return nil, fmt.Errorf("making the certificate request: %w", err)
	}
	made, err = csrs.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("looking for an earlier certificate request: %w", err)
	}
	if made.Spec.Username != bootstrapPrefix+id || !sameKey(made.Spec.Request, csr) {
		return nil, pki.Refuse(pki.ReasonDenied, "another requester has the certificate request %s", made.Name)
	}
	return made, nil
}

// tellNode is the refusal that names the token's node, for a caller that has its secret and not
// only its id.
func (s *Server) tellNode(ctx context.Context, id, bearer string, refusal *pki.Refusal) error {
	switch err := s.cfg.Verifier(ctx, bearer); {
	case err == nil || apierrors.IsForbidden(err): // a holder that may not create a SelfSubjectReview
		return refusal
	case apierrors.IsUnauthorized(err):
		return wrongSecret(id)
	default:
		return fmt.Errorf("verifying a token: %w", err)
	}
}

func wrongSecret(id string) error {
	return pki.Refuse(pki.ReasonTokenWrong, "the cluster does not accept the token %s: its secret is wrong, or it was revoked", id)
}

// requestName is the same for the same token, node and key, so that a join whose answer was lost
// can be asked again and costs one use.
func requestName(id string, node types.NodeName, csr *x509.CertificateRequest) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\x00%s\x00", id, node)
	sum.Write(csr.RawSubjectPublicKeyInfo)
	return csrPrefix + hex.EncodeToString(sum.Sum(nil)[:20])
}

func sameKey(request []byte, csr *x509.CertificateRequest) bool {
	other, _, err := pki.ParseNodeCSR(request)
	return err == nil && bytes.Equal(other.RawSubjectPublicKeyInfo, csr.RawSubjectPublicKeyInfo)
}

// await waits until the request is decided and its certificate issued.
func (s *Server) await(ctx context.Context, made *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	var certificate []byte
	err := until(ctx, func() (bool, error) {
		csr, err := s.cfg.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("waiting for the certificate: %w", err)
		}
		if csr.UID != made.UID {
			return false, pki.Refuse(pki.ReasonUnavailable, "the certificate request was deleted; try again")
		}
		certificate, err = decision(csr)
		return len(certificate) > 0, err
	})
	if ctx.Err() != nil {
		return nil, pki.Refuse(pki.ReasonUnavailable, "the certificate was not issued within %v; try again (the token loses no further use)", joinWait)
	}
	return certificate, err
}
