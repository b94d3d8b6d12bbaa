package api

import (
	"context"
	"encoding/json"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The documents by which pods verify each other's ServiceAccount tokens (KEP-1393; OpenID Connect
// Discovery 1.0, 4).
const (
	issuerPath = "/.well-known/openid-configuration"
	keysPath   = "/openid/v1/jwks"
	keysType   = "application/jwk-set+json"
)

// serveIssuer answers the issuer's documents: kube-apiserver's own, or without it those that are kept. The
// keys' address in the first is one of the central cluster's network, which a device can't dial: pods get
// the one under which they have just reached this API.
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

// learnIssuer asks for the discovery document once, so that it is there without a link.
func (s *Server) learnIssuer(ctx context.Context, bearer string) {
	if _, there := s.grants.issuer(issuerPath); there {
		return
	}
	answer, err := s.backend.Request(ctx, &topicpb.APIRequest{Method: http.MethodGet, Path: issuerPath, Accept: runtime.ContentTypeJSON, BearerToken: bearer})
	if err == nil && answer.GetCode() == http.StatusOK {
		s.grants.keepIssuer(ctx, answer.GetBody())
	}
}

// issuer is a kept document.
func (g *grants) issuer(path string) (*topicpb.APIResponse, bool) {
	g.load.Do(g.read)
	g.mu.Lock()
	defer g.mu.Unlock()
	answer := &topicpb.APIResponse{Code: http.StatusOK, ContentType: runtime.ContentTypeJSON, Body: g.kept.Discovery}
	if path == keysPath {
		if len(g.kept.Keys.Keys) == 0 {
			return nil, false
		}
		body, err := json.Marshal(g.kept.Keys)
		if err != nil {
			return nil, false
		}
		answer.ContentType, answer.Body = keysType, body
	}
	return answer, len(answer.GetBody()) > 0
}

// maxDiscovery bounds the document that is kept, in bytes; kube-apiserver's has some 200.
const maxDiscovery = 16 << 10

// keepIssuer keeps the discovery document.
func (g *grants) keepIssuer(ctx context.Context, document []byte) {
	g.load.Do(g.read)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(document) > maxDiscovery || !json.Valid(document) || string(g.kept.Discovery) == string(document) {
		return
	}
	g.kept.Discovery = document
	g.write(ctx)
}
