package subresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// maxRefusal bounds a kubelet's refusal, in bytes.
const maxRefusal = 16 << 10

// answer serves one request. Its error is one of package apierrors, and no answer was written
// then. serving ends with the server: the owner of a hijacked connection would outlive it.
func (s *Server) answer(serving context.Context, w http.ResponseWriter, r *http.Request, sub subresource) error {
	// Browsers put it into every websocket that a page opens (RFC 6455, 4.1), and a page may open
	// one at an administrator's `kubectl proxy`, which refuses exec and attach at pods' own paths
	// only.
	if sub.streams && r.Header.Get("Origin") != "" {
		return apierrors.NewForbidden(resource, r.PathValue("name"), errors.New("a web page may not open a stream: the request has the header Origin"))
	}
	ctx := r.Context()
	who, _ := ctx.Value(userKey{}).(user.Info)
	asked := subject{who: who, namespace: r.PathValue("namespace"), name: r.PathValue("name"), subresource: sub.name}
	if err := s.judge(ctx, asked, sub, verbs[r.Method]); err != nil {
		return err
	}
	pod, err := s.pod(ctx, asked)
	if err != nil {
		return err
	}
	location, err := sub.location(pod, r.URL.Query())
	if err != nil {
		return err
	}
	conn, err := s.config.Dial(ctx, types.NodeName(pod.Spec.NodeName))
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s/%s on node %s: %v", pod.Namespace, pod.Name, pod.Spec.NodeName, err))
	}
	defer conn.Close()
	defer context.AfterFunc(serving, func() { _ = conn.Close() })()
	transport := &http.Transport{DialContext: once(conn), DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10}
	if !sub.streams {
		return relay(ctx, w, transport, location)
	}
	stream(w, bare(r), transport, location, sub)
	return nil
}

// judge asks whether the user may make the same request of the pod's own subresource.
// Whatever the method, a stream takes the right to create (kubernetes#133515: a websocket
// begins with GET).
func (s *Server) judge(ctx context.Context, asked subject, sub subresource, verb string) error {
	if err := asked.review(ctx, s.config.Client, verb); err != nil {
		return err
	}
	if !sub.streams {
		return nil
	}
	if verb != "create" {
		if err := asked.review(ctx, s.config.Client, "create"); err != nil {
			return err
		}
	}
	return asked.unjudged(ctx, s.config.Client)
}

// pod reads the pod as it is now: a copy may not know yet where it runs. cloudcore may list
// pods, not get them.
func (s *Server) pod(ctx context.Context, asked subject) (*corev1.Pod, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, asked.name).String()
	l, err := s.config.Client.CoreV1().Pods(asked.namespace).List(ctx, metav1.ListOptions{FieldSelector: only})
	switch {
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("reading the pod: %v", err))
	case len(l.Items) != 1:
		return nil, apierrors.NewNotFound(resource, asked.name)
	case l.Items[0].Spec.NodeName == "":
		return nil, apierrors.NewBadRequest("pod " + asked.name + " does not have a host assigned")
	}
	return &l.Items[0], nil
}

// once gives out one connection: an answer takes no more.
func once(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var taken atomic.Bool
	return func(context.Context, string, string) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errors.New("the connection to the kubelet is in use")
		}
		return conn, nil
	}
}

// relay hands on a log as it comes.
func relay(ctx context.Context, w http.ResponseWriter, transport http.RoundTripper, location *url.URL) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the kubelet of %s: %v", location.Host, err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // as much of it as there is
		return apierrors.NewGenericServerResponse(res.StatusCode, "get", resource, "", strings.TrimSpace(string(said)), 0, true)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	b := make([]byte, 16<<10)
	for {
		n, err := res.Body.Read(b)
		if n > 0 {
			if _, err := w.Write(b[:n]); err != nil || out.Flush() != nil {
				return nil // the client is gone
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler) // so that it does not look like the end of the log
		}
	}
}

// stream leads a connection that is upgraded to the kubelet's, as kube-apiserver does it.
func stream(w http.ResponseWriter, r *http.Request, transport http.RoundTripper, location *url.URL, sub subresource) {
	// An upgrade is required; the kubelet's own refusals are handed on.
	direct := proxy.NewUpgradeAwareHandler(location, transport, false, true, refusals{})
	if sub.name == "portforward" {
		translate.NewTranslatingHandler(direct, translate.NewTunnelingHandler(direct), wsstream.IsWebSocketRequestWithTunnelingProtocol).ServeHTTP(w, r)
		return
	}
	q := location.Query()
	options := translate.Options{Stdin: q.Get("input") == "1", Stdout: q.Get("output") == "1", Stderr: q.Get("error") == "1", Tty: q.Get("tty") == "1"}
	spoken := translate.NewStreamTranslatorHandler(location, transport, 0, options)
	translate.NewTranslatingHandler(direct, spoken, wsstream.IsWebSocketRequestWithStreamCloseProtocol).ServeHTTP(w, r)
}

// refusals answers for a stream that can't be.
type refusals struct{}

// Error implements proxy.ErrorResponder.
func (refusals) Error(w http.ResponseWriter, _ *http.Request, err error) {
	if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
		err = apierrors.NewServiceUnavailable(err.Error())
	}
	fail(w, err)
}

// bare is the request with only the headers of an upgrade: the device has no business with the
// user's headers.
func bare(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	kept := http.Header{}
	for name, values := range r.Header {
		switch {
		case name == "Connection", name == "Upgrade", name == "X-Stream-Protocol-Version", strings.HasPrefix(name, "Sec-Websocket-"):
			kept[name] = values
		}
	}
	r.Header = kept
	return r
}
