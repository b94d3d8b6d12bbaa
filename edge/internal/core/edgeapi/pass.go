package edgeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// pass proxies a request to kube-apiserver, unchanged in both directions.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) {
	answer, err := s.forward(r)
	if err != nil {
		writeError(w, r, err)
		return
	}
	writeAnswer(w, answer)
}

// forward asks kube-apiserver: as the node, or as the service account of the request's token.
func (s *Server) forward(r *http.Request) (*topicpb.APIResponse, error) {
	// Only complete responses can be passed; bidirectional streams can't. kubectl exec and
	// port-forward reach the kubelet through the cloud.
	if httpstream.IsUpgradeRequest(r) {
		return nil, apierrors.NewMethodNotSupported(resourceOf(r), "connect")
	}
	request, err := apiRequest(r)
	if err != nil {
		return nil, err
	}
	if err := s.spend(r, len(request.GetBody())); err != nil {
		return nil, err
	}
	return s.backend.Request(r.Context(), request)
}

// spend charges a pod's request with a body of so many bytes to the pods' budget. Pods share the
// link with the statuses of the node, so they share one budget.
func (s *Server) spend(r *http.Request, body int) error {
	token := identityFrom(r.Context()).Token
	if size := body + len(r.URL.EscapedPath()) + len(r.URL.RawQuery) + len(token); token != "" && !s.podBytes.AllowN(time.Now(), size) {
		s.metrics.overload.Inc()
		return apierrors.NewTooManyRequests("the pods of this device have sent more than their share of the link", retryAfter)
	}
	return nil
}

// anyType is the media range of a request without Accept (RFC 9110, 12.5.1). It is sent explicitly,
// since the cloud's client would ask for JSON otherwise, which not every path of kube-apiserver
// has.
const anyType = "*/*"

// apiRequest makes the APIRequest for r. It reads r's body.
func apiRequest(r *http.Request) (*topicpb.APIRequest, error) {
	request := &topicpb.APIRequest{
		Method:      r.Method,
		Path:        r.URL.EscapedPath(),
		Query:       r.URL.RawQuery,
		Accept:      cmp.Or(r.Header.Get("Accept"), anyType),
		ContentType: r.Header.Get("Content-Type"),
		BearerToken: identityFrom(r.Context()).Token,
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	request.Body = body
	return request, nil
}

func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, bodyError(err)
	}
	return body, nil
}

// writeAnswer hands kube-apiserver's answer on.
func writeAnswer(w http.ResponseWriter, answer *topicpb.APIResponse) {
	h := w.Header()
	if t := answer.GetContentType(); t != "" {
		h.Set("Content-Type", t)
	}
	if after := answer.GetRetryAfter(); after != "" {
		h.Set("Retry-After", after)
	}
	for _, warning := range answer.GetWarnings() {
		h.Add("Warning", warning)
	}
	code := int(answer.GetCode())
	if code < 100 || code > 999 { // http.ResponseWriter panics on these
		code = http.StatusBadGateway
	}
	w.WriteHeader(code)
	_, _ = w.Write(answer.GetBody()) // a client that has gone is no trouble of ours
}

// serveIssuer answers the issuer's documents: kube-apiserver's own, or without it those that are
// kept. The keys' address in the first is one of the central cluster's network, which a device
// can't dial: pods get the one under which they have just reached this API.
func (s *Server) serveIssuer(w http.ResponseWriter, r *http.Request, path string) {
	identity := identityFrom(r.Context())
	answer, err := s.forward(r)
	if err != nil || unreachable(answer) {
		kept, there := s.grants.issuer(path)
		if there && identity.Token != "" {
			if _, denied := s.grants.account(r.Context(), identity.Token); denied != nil {
				writeError(w, r, denied)
				return
			}
		}
		switch {
		case there:
			answer = kept
		case err != nil:
			writeError(w, r, err)
			return
		}
	} else if answer.GetCode() == http.StatusOK && path == issuerPath {
		s.grants.keepIssuer(r.Context(), answer.GetBody())
	}
	if answer.GetCode() == http.StatusOK && path == issuerPath && identity.Token != "" {
		var document map[string]any
		if json.Unmarshal(answer.GetBody(), &document) == nil {
			document["jwks_uri"] = "https://" + r.Host + keysPath
			if body, err := json.Marshal(document); err == nil {
				answer = &topicpb.APIResponse{Code: http.StatusOK, ContentType: runtime.ContentTypeJSON, Body: body}
			}
		}
	}
	writeAnswer(w, answer)
}

// learnIssuer asks for the discovery document once, so that it is available without a link.
func (s *Server) learnIssuer(ctx context.Context, bearer string) {
	if _, there := s.grants.issuer(issuerPath); there {
		return
	}
	answer, err := s.backend.Request(ctx, &topicpb.APIRequest{Method: http.MethodGet, Path: issuerPath, Accept: runtime.ContentTypeJSON, BearerToken: bearer})
	if err == nil && answer.GetCode() == http.StatusOK {
		s.grants.keepIssuer(ctx, answer.GetBody())
	}
}

// unreachable reports whether an answer is not kube-apiserver's own, but of a proxy on the path to
// it.
func unreachable(answer *topicpb.APIResponse) bool {
	code := answer.GetCode()
	return code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
}

// bodyError distinguishes a body that is too long from an interrupted one.
func bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", tooLarge.Limit))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("reading the body: %v", err))
}

// resourceOf is the resource of a request, for error messages.
func resourceOf(r *http.Request) schema.GroupResource {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok {
		return schema.GroupResource{}
	}
	return schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
}
