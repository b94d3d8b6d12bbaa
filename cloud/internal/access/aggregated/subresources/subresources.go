// Package subresources serves subresources.skerry.io/v1alpha1: logs, exec, attach and port-forward
// of pods on edge nodes, and the status of edgecore there, wherever kube-apiserver can ask an
// aggregated API, as it asks metrics-server. `kubectl skerry` is made for it.
//
// It owns the API's server and the judgement of its users: kube-apiserver has judged the request to
// this API, and reviews the same user's right to the pod's own subresource; a request that would
// have passed an admission of CONNECT is refused. It refuses every client but kube-apiserver's
// front proxy and every node that is no edge. It holds no credential of a kubelet: a device asks
// its own (docs/dev/decisions/0068-subresources.md). It only reads. A Server may be used by many
// goroutines at once.
package subresources

import (
	"cmp"
	"context"
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// Group and Version are the API's.
const (
	Group   = "subresources.skerry.io"
	Version = "v1alpha1"
)

// Config configures a Server. Every zero bound means its default.
type Config struct {
	Client kubernetes.Interface
	// User is the user of a request by kube-apiserver's front proxy; false where the client is not
	// that proxy. It removes the headers of that.
	User func(r *http.Request) (user.Info, bool)
	// Dial connects to the kubelet of an edge node, as that device's own client; the connection is
	// HTTP/1.1. An error is for people to read.
	Dial func(ctx context.Context, node types.NodeName) (net.Conn, error)
	// DialReport connects to one of edgecore's reports on an edge node, by its name on the link:
	// HTTP/1.1, one question.
	DialReport func(ctx context.Context, node types.NodeName, report string) (net.Conn, error)
	// MaxRequests bounds concurrent requests, with open streams among them: 512. At the bound
	// one more is refused with 429.
	MaxRequests int
}

// Server answers for the subresources.
type Server struct {
	config Config // never changed
}

// New returns a Server.
func New(config Config) *Server {
	config.MaxRequests = cmp.Or(config.MaxRequests, 512)
	return &Server{config: config}
}

type userKey struct{}

// resource is that of errors: the pods, as users know them.
var resource = schema.GroupResource{Resource: "pods"}

// verbs are kube-apiserver's names of a method where the resource has a name.
var verbs = map[string]string{http.MethodGet: "get", http.MethodPost: "create"}
