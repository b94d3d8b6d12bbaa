package join

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/version"
)

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	answerTimeout    = 75 * time.Second // cloudcore itself stops waiting for the cluster's signer before that
	retryMin         = time.Second
	retryMax         = 15 * time.Second
)

// ask finds the CA that the token pins at the server, then asks for the certificate, and again
// where that may help.
func ask(ctx context.Context, o Options, key crypto.Signer) (*pki.JoinAnswer, error) {
	base, host, err := serverURL(o.Server)
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewNodeCSR(key, o.Node)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(pki.JoinRequest{NodeName: o.Node, CSR: string(csr), Version: version.Skerry(), Protocol: protocol.Current, ProtocolMin: protocol.Oldest, Kubernetes: version.Kubernetes()})
	if err != nil {
		return nil, fmt.Errorf("encoding the join: %w", err)
	}
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		answer, after, err := try(ctx, o, base, host, body)
		if err == nil {
			return answer, nil
		}
		var refusal *pki.Refusal
		if !errors.Is(err, ErrUnreachable) && (!errors.As(err, &refusal) || !refusal.Reason.Temporary()) {
			return nil, err
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, fmt.Errorf("joining: %w", context.Cause(ctx))
		}
		// Half to one and a half, so that the devices of a site don't retry in step after a power
		// cut.
		wait := max(after, pause/2+rand.N(pause))
		klog.FromContext(ctx).Info("Not joined yet, trying again", "server", o.Server, "in", wait.Round(time.Millisecond), "why", err.Error())
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("giving up after %v: %w", o.Timeout, err)
		case <-time.After(wait):
		}
	}
}

// serverURL is the address of a server, HOST or HOST:PORT; the port is 443 if none is named.
func serverURL(server string) (base, host string, err error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = strings.Trim(server, "[]"), strconv.Itoa(pki.JoinPort)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || host == "" || strings.ContainsAny(host, "/?#@ ") {
		return "", "", fmt.Errorf("%q is no server: it must be HOST or HOST:PORT", server)
	}
	return "https://" + net.JoinHostPort(host, port), host, nil
}

// protocols are the offered ALPN protocols: the second is the one in use, the first names its
// purpose.
func protocols() []string { return []string{pki.JoinProtocol, "http/1.1"} }

func try(ctx context.Context, o Options, base, host string, body []byte) (*pki.JoinAnswer, time.Duration, error) {
	ca, err := findCA(ctx, o, base, host)
	if err != nil {
		return nil, 0, err
	}
	return post(ctx, o, pki.Pool(ca), host, base+pki.JoinPath, http.Header{"Authorization": {"Bearer " + o.Token.Bearer()}}, body)
}

// post asks a cloudcore whose certificate roots have signed for a certificate.
func post(ctx context.Context, o Options, roots *x509.CertPool, host, url string, header http.Header, body []byte) (*pki.JoinAnswer, time.Duration, error) {
	transport := newTransport(pki.ClientTLS(pki.Client{Roots: roots, Now: o.Clock.Now, Protocols: protocols()}))
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("making the request: %w", err)
	}
	request.Header = header
	request.Header.Set("Content-Type", "application/json")
	response, err := client(transport, answerTimeout).Do(request)
	if err != nil {
		return nil, 0, explain(err, o, host)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, pki.MaxJoinBody+1))
	if err != nil {
		return nil, 0, fmt.Errorf("%w: reading the answer of %s: %w", ErrUnreachable, o.Server, err)
	}
	if len(data) > pki.MaxJoinBody {
		return nil, 0, fmt.Errorf("%w: the answer of %s has more than %d bytes", ErrNotCloudcore, o.Server, pki.MaxJoinBody)
	}
	return parseAnswer(response.StatusCode, response.Header, data, o.Server)
}

func parseAnswer(status int, header http.Header, data []byte, server string) (*pki.JoinAnswer, time.Duration, error) {
	if status != http.StatusOK {
		var refusal pki.Refusal
		if err := json.Unmarshal(data, &refusal); err != nil || refusal.Reason == "" {
			return nil, 0, fmt.Errorf("%w: %s answered with HTTP status %d and no reason", ErrNotCloudcore, server, status)
		}
		after, _ := strconv.Atoi(header.Get("Retry-After")) // absent or strange: our own pause
		return nil, time.Duration(min(max(after, 0), 600)) * time.Second, &refusal
	}
	var answer pki.JoinAnswer
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, 0, fmt.Errorf("%w: its answer is no JSON of a join: %w", ErrNotCloudcore, err)
	}
	return &answer, 0, nil
}

// findCA learns the server's certificates without trusting any: the handshake fails, as it must
// with no CA to trust, and the error has them. The one whose key the token pins is then the only
// one that is trusted.
func findCA(ctx context.Context, o Options, base, host string) (*x509.Certificate, error) {
	transport := newTransport(pki.ClientTLS(pki.Client{Roots: x509.NewCertPool(), Now: o.Clock.Now, Protocols: protocols()}))
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", nil)
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	response, err := client(transport, dialTimeout+handshakeTimeout).Do(request)
	if err == nil {
		response.Body.Close()
		return nil, fmt.Errorf("%w: %s was verified although nothing is trusted", ErrNotCloudcore, o.Server)
	}
	var unverified *tls.CertificateVerificationError
	if !errors.As(err, &unverified) || len(unverified.UnverifiedCertificates) == 0 {
		return nil, explain(err, o, host)
	}
	shown := unverified.UnverifiedCertificates
	ca := pinned(shown, o.Token.CA)
	if top := shown[len(shown)-1]; ca == nil && top.Issuer.CommonName != servingCA {
		return nil, fmt.Errorf("%w: %s shows a certificate of %q, not cloudcore's own: %w; let TLS to this host through untouched, for edgecore and cloudcore know each other by their certificates",
			ErrProxy, o.Server, issuer(top), ErrWrongCA)
	}
	if ca == nil {
		return nil, fmt.Errorf("%w: the token pins the CA %s, and %s shows %s; is this the right host, and the token of this cluster?",
			ErrWrongCA, o.Token.CA, o.Server, pki.PinOf(shown[len(shown)-1]))
	}
	// Statements signed by the pinned key are true, times included: those have passed, regardless
	// of this device's clock.
	if err := ca.CheckSignatureFrom(ca); err != nil {
		return nil, fmt.Errorf("%w: the CA that the token pins is not signed by itself: %w", ErrWrongCA, err)
	}
	o.Clock.AtLeast(ca.NotBefore)
	if leaf := shown[0]; leaf.CheckSignatureFrom(ca) == nil {
		o.Clock.AtLeast(leaf.NotBefore)
	}
	return ca, nil
}

// servingCA is the name of the CA that cloudcore makes.
const servingCA = "skerry serving CA"

// issuer returns a certificate's issuer for messages.
func issuer(c *x509.Certificate) string {
	if c.Issuer.CommonName != "" {
		return c.Issuer.CommonName
	}
	return c.Issuer.String()
}

func newTransport(cfg *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        cfg,
		TLSHandshakeTimeout:    handshakeTimeout,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 16 << 10,
	}
}

func client(transport *http.Transport, timeout time.Duration) *http.Client {
	return &http.Client{
		Transport: transport,
		Timeout:   timeout,
		// A redirect could send the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// explain returns the error of a failed request for the user of the command.
func explain(err error, o Options, host string) error {
	var (
		name   x509.HostnameError
		bad    x509.CertificateInvalidError
		record tls.RecordHeaderError
		alert  tls.AlertError
		op     *net.OpError
		timer  interface{ Timeout() bool }
	)
	switch {
	case errors.As(err, &name):
		return fmt.Errorf("%w: it is not valid for %s: add that to `advertise` in cloudcore.yaml, or use a name that is there (%w)",
			ErrWrongName, host, name)
	case errors.As(err, &bad) && bad.Reason == x509.Expired:
		return fmt.Errorf("%w: at %s the certificate of %s is not valid; set the clock, or check the one of cloudcore (%w)",
			ErrClock, o.Clock.Now().UTC().Format(time.RFC3339), o.Server, err)
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return fmt.Errorf("%w: %s does not speak TLS; cloudcore's bootstrap server listens on port %d unless configured otherwise (%w)",
			ErrNotCloudcore, o.Server, pki.JoinPort, err)
	case errors.As(err, &alert), errors.As(err, new(*tls.CertificateVerificationError)), strings.Contains(err.Error(), "tls: "):
		return fmt.Errorf("%w: %s does not complete a TLS 1.3 handshake as cloudcore does (%w)", ErrNotCloudcore, o.Server, err)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("%w: check the name, the port and the firewalls between here and %s (%w)", ErrUnreachable, o.Server, err)
	case errors.As(err, &timer) && timer.Timeout():
		return fmt.Errorf("%w: %s does not answer in time; if it is no cloudcore it may wait for something else (%w)", ErrUnreachable, o.Server, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnreachable, o.Server, err)
}
