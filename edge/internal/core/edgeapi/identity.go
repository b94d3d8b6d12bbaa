package edgeapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// Identity is the user that a request is answered for. The zero value is an in-process caller
// without a user: it acts as the node.
type Identity struct {
	Kubelet bool   // the kubelet in this process: its lists and watches are cached for the next start without a link
	Device  bool   // root of the device: may read all cached objects, and acts as the node otherwise
	Token   string // a pod's ServiceAccount: has the permissions that kube-apiserver grants it
}

func (i Identity) caller() metamanager.Caller {
	return metamanager.Caller{Kubelet: i.Kubelet, BearerToken: i.Token}
}

type identityKey struct{}

func withIdentity(ctx context.Context, i Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, i)
}

func identityFrom(ctx context.Context) Identity {
	i, _ := ctx.Value(identityKey{}).(Identity)
	return i
}

// An Authenticator returns the user of a request; its error is sent to the client.
type Authenticator func(*http.Request) (Identity, error)

// AsDevice authenticates every request as root of the device: for a listener that only root can
// reach. A client with a token is authenticated by the token.
func AsDevice(r *http.Request) (Identity, error) {
	if token, ok := bearer(r); ok {
		return Identity{Token: token}, nil
	}
	return Identity{Device: true}, nil
}

func bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != ""
}
