package edgeapi

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
