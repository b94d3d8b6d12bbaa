package subresources

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/podstream"
)

// maxStatus bounds the status that a device sends, in bytes.
const maxStatus = 4 << 20

// status serves the status of edgecore on a node. kube-apiserver has checked the user's right to
// nodes/status of this API; Kubernetes has no equivalent subresource to check besides.
func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	node := r.PathValue("name")
	fault := func(err error) error { return apierrors.NewServiceUnavailable(fmt.Sprintf("node %s: %v", node, err)) }
	conn, err := s.config.DialStatus(r.Context(), types.NodeName(node))
	if err != nil {
		return fault(err)
	}
	defer conn.Close()
	transport := &http.Transport{DialContext: podstream.Once(conn), DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10}
	question, err := http.NewRequestWithContext(r.Context(), http.MethodGet, (&url.URL{Scheme: "http", Host: "edgecore", Path: "/"}).String(), http.NoBody)
	if err != nil {
		return fault(err)
	}
	kind := "application/json"
	if r.URL.Query().Get("format") == "text" {
		kind = "text/plain"
	}
	question.Header.Set("Accept", kind)
	answer, err := transport.RoundTrip(question)
	if err != nil {
		return fault(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxStatus+1))
	switch {
	case err != nil:
		return fault(err)
	case len(body) > maxStatus:
		return fault(fmt.Errorf("the status has more than %d bytes", maxStatus))
	case answer.StatusCode != http.StatusOK:
		return fault(fmt.Errorf("edgecore answered %s: %.200s", answer.Status, body))
	}
	// A browser must not interpret a device's text.
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // the client may be gone
	return nil
}
