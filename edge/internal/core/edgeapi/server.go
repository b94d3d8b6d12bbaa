// Package edgeapi is the Kubernetes API of the device: the cluster as seen by the kubelet, kubectl
// and all other clients on the device.
//
// It owns HTTP: parsing, content negotiation, watch streams, tables, discovery, authentication, and
// Status errors with Retry-After. It reads cached objects from the Backend and serves them exactly
// as a real API server would, resource versions included; other requests pass through to
// kube-apiserver, while there is a link, as the requesting user. It refuses requests without a true
// answer: never an empty list for a set that has not been synced, but a 503 with Retry-After. It
// keeps no objects. A Server serves any number of requests at once; its parts are made by New and
// never change, but for discovery and the grants of service accounts, which have their own locks.
//
// It is above 2,500 lines because HTTP, authorization and the answers are one API, and no other
// package uses a part of it.
package edgeapi

import (
	"context"
	"net"
	"net/http"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// Config configures a Server.
type Config struct {
	NodeName string
	Backend  Backend
	// State stores the certificate authority, the grants of service accounts, and discovery
	// documents. With nil they are lost at a restart.
	State State
	// DataDir is where the admin's kubeconfig is written for the TLS listener.
	DataDir string
	// Socket is the path of the unix socket; Listen the address of the TLS listener. An empty
	// one isn't opened.
	Socket string
	Listen string
	// Pods is the address at which redirected pods are served; "" disables it. The device need not
	// have it yet. Where it is set, the kubelet gets the authority of the API's certificates
	// together with the cluster's, in the ConfigMaps kube-root-ca.crt that pods verify their API
	// server by.
	Pods string
	// Register writes each create of a Node by the kubelet, in place of the Backend. May be nil.
	Register func(context.Context, metamanager.Write) (metamanager.Result, error)
	// Local answers paths below LocalPrefix for root of the device: the requests of edgecore's own
	// commands to the running process. May be nil.
	Local http.Handler
	// DialKubelet connects to the kubelet's server of this device for log, exec, attach and
	// port-forward of its pods, which root alone may ask for; HTTP/1.1. nil: they are not served.
	DialKubelet func(ctx context.Context) (net.Conn, error)
	// MaxRequests and MaxWatches bound the open requests and watches of one listener's clients; one
	// client (an address) has a quarter of them; further ones get a 429. 0: the defaults.
	MaxRequests int
	MaxWatches  int
}

// LocalPrefix is the path prefix of Config.Local.
const LocalPrefix = "/skerry/"

const (
	defaultMaxRequests = 64
	defaultMaxWatches  = 512
)

// Server answers requests.
type Server struct {
	config    Config
	backend   Backend
	resolver  *request.RequestInfoFactory
	scopes    scopes
	discovery *discovery
	grants    *grants
	pods      podsCertificate
	sources   *podSources
	metrics   *Metrics
	podBytes  *rate.Limiter // bytes that pods send over the link
}

// podBytesRate and podBytesBurst limit the pods' traffic over the link, in bytes a second and in
// bytes at once: two of the largest requests that kube-apiserver takes.
const (
	podBytesRate  = 256 << 10
	podBytesBurst = 2*maxBody + 64<<10
)

// New makes a Server. It opens no listener and starts no goroutine.
func New(config Config) *Server {
	if config.State == nil {
		config.State = forgetful{}
	}
	if config.MaxRequests == 0 {
		config.MaxRequests = defaultMaxRequests
	}
	if config.MaxWatches == 0 {
		config.MaxWatches = defaultMaxWatches
	}
	s := &Server{
		config:  config,
		backend: config.Backend,
		metrics: newMetrics(),
		resolver: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		podBytes: rate.NewLimiter(podBytesRate, podBytesBurst),
		sources:  &podSources{nodeName: config.NodeName, backend: config.Backend, interfaces: net.InterfaceAddrs},
	}
	s.discovery = newDiscovery(config.Backend, config.State)
	s.scopes = newScopes(s.discovery)
	s.grants = newGrants(config.Backend, config.State)
	return s
}

// Metrics is for a Prometheus registry.
func (s *Server) Metrics() *Metrics { return s.metrics }
