// Package podstream leads log, exec, attach and port-forward of a pod to the kubelet's server on
// the pod's node: cloudcore's subresources.skerry.io does so through the link, the edge API on the
// device.
//
// It owns which parameters of the API become which of the kubelet's, and how a connection is handed
// over. It refuses a container that the pod does not have. It judges no user: the caller has.
// Values are immutable; Serve may be called by many goroutines at once.
package podstream

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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// maxRefusal bounds a kubelet's refusal, in bytes.
const maxRefusal = 16 << 10

// Serve answers a request with the answer of the kubelet at the other end of conn for location. Its
// error is one of package apierrors, and no answer was written then; failed answers for a stream
// that can't be.
func Serve(w http.ResponseWriter, r *http.Request, conn net.Conn, location *url.URL, sub Subresource, failed proxy.ErrorResponder) error {
	client := &hijacking{ResponseWriter: w}
	transport := &http.Transport{
		DialContext: Once(&breaking{conn, client.abort}), DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
	}
	if !sub.Streams {
		return relay(r.Context(), w, transport, location)
	}
	stream(client, bare(r), transport, location, sub, failed)
	return nil
}

// Once gives out one connection: an answer takes no more.
func Once(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
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
		refusal, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // as much of it as there is
		return apierrors.NewGenericServerResponse(res.StatusCode, "get", schema.GroupResource{Resource: "pods"}, "", strings.TrimSpace(string(refusal)), 0, true)
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
func stream(w http.ResponseWriter, r *http.Request, transport http.RoundTripper, location *url.URL, sub Subresource, failed proxy.ErrorResponder) {
	// An upgrade is required; the kubelet's own refusals are handed on.
	direct := proxy.NewUpgradeAwareHandler(location, transport, false, true, failed)
	if sub.Name == "portforward" {
		translate.NewTranslatingHandler(direct, translate.NewTunnelingHandler(direct), wsstream.IsWebSocketRequestWithTunnelingProtocol).ServeHTTP(w, r)
		return
	}
	q := location.Query()
	options := translate.Options{Stdin: q.Get("input") == "1", Stdout: q.Get("output") == "1", Stderr: q.Get("error") == "1", Tty: q.Get("tty") == "1"}
	spoken := translate.NewStreamTranslatorHandler(location, transport, 0, options)
	translate.NewTranslatingHandler(direct, spoken, wsstream.IsWebSocketRequestWithStreamCloseProtocol).ServeHTTP(w, r)
}

// bare is the request with only the headers of an upgrade: the device must not see the user's
// headers.
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
