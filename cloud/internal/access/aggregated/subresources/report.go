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

// report is one of edgecore's on a node: for people, for programs, or an archive.
type report struct {
	name, kind string
	target     string // its name on the link
	archive    bool
	most       int64 // bytes that a device may send
}

// reports are the subresources of nodes. The bundle is called log: kube-apiserver ends every
// request after a minute but those of a few names, and a thin link needs longer.
func reports() []report {
	return []report{
		{name: "status", kind: "NodeStatus", target: "status", most: 4 << 20},
		{name: "rehearsal", kind: "NodeRehearsal", target: "rehearsal", most: 4 << 20},
		{name: "recorder", kind: "NodeRecorder", target: "recorder", most: 1 << 20},
		{name: "log", kind: "NodeBundle", target: "bundle", archive: true, most: 64 << 20},
	}
}

// report serves a report of edgecore on a node. kube-apiserver has checked the user's right to that
// subresource of this API; Kubernetes has no equivalent subresource to check besides.
func (s *Server) report(w http.ResponseWriter, r *http.Request, report report) error {
	node := r.PathValue("name")
	fault := func(err error) error { return apierrors.NewServiceUnavailable(fmt.Sprintf("node %s: %v", node, err)) }
	conn, err := s.config.DialReport(r.Context(), types.NodeName(node), report.target)
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
	switch {
	case report.archive:
		kind = "application/gzip"
	case r.URL.Query().Get("format") == "text":
		kind = "text/plain"
	}
	question.Header.Set("Accept", kind)
	answer, err := transport.RoundTrip(question)
	if err != nil {
		return fault(err)
	}
	defer answer.Body.Close()
	// A browser must not interpret a device's text.
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if report.archive && answer.StatusCode == http.StatusOK {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Disposition", "attachment")
		n, err := io.Copy(w, io.LimitReader(answer.Body, report.most+1))
		if err != nil || n > report.most {
			panic(http.ErrAbortHandler) // so that half of an archive does not look whole
		}
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, report.most+1))
	switch {
	case err != nil:
		return fault(err)
	case int64(len(body)) > report.most:
		return fault(fmt.Errorf("the %s has more than %d bytes", report.target, report.most))
	case answer.StatusCode != http.StatusOK:
		return fault(fmt.Errorf("edgecore answered %s: %.200s", answer.Status, body))
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(body) // the client may be gone
	return nil
}
