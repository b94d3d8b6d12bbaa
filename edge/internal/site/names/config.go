package names

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// payload is the longest answer over UDP: it fits any path without fragments (DNS
	// flag day 2020).
	payload = 1232
	// maxTCP is how many connections are served at once; those beyond wait.
	maxTCP = 100
	// maxClientTCP are those of one address; one more is closed at once.
	maxClientTCP = 16
	// maxUnknownTCP and maxUnknownClientTCP are those of addresses that are not known to be of this
	// device's pods.
	maxUnknownTCP       = 32
	maxUnknownClientTCP = 4
	// A pod that has just started may not be known for admitWait; maxWaiting queries of unknown
	// addresses wait for that, further ones are dropped. They are checked again each admitPoll.
	admitWait  = 3 * time.Second
	admitPoll  = 250 * time.Millisecond
	maxWaiting = 32
	// finishFor is how long queries that were read are waited for at the end: an upstream has less.
	finishFor = 2 * time.Second
	// syncWait is below the 5 s after which a resolver asks again (resolv.conf(5)).
	syncWait = 4 * time.Second
	syncPoll = 20 * time.Millisecond
	// addressEvery is how often it is made sure that the device still has the address.
	addressEvery = time.Minute
)

// View is the Services and corrected EndpointSlices: a *serviceview.View.
type View interface {
	Services() cache.SharedIndexInformer
	// ServicesAt are the Services with a cluster IP, or the headless ones (ClusterIPNone).
	ServicesAt(address string) []*corev1.Service
	SlicesOf(namespace, service string) []*discoveryv1.EndpointSlice
	HasSynced() bool
}

// Zone is a domain with name servers of its own.
type Zone struct {
	Zone     string
	Upstream []netip.AddrPort
}

// Config configures the module.
type Config struct {
	Listen netip.AddrPort
	Domain string
	Zones  []Zone
	// Upstream is asked for all other names. It is called for each query that is not cached,
	// and must be quick.
	Upstream func() []netip.AddrPort
	View     View
	// Address gives the device the address that it listens on; nil where it has it.
	Address func() error
	// Admits reports whether an address may ask: the device and its pods. Linux takes packets for
	// an address of the loopback interface from any (the weak host model), so that a host of the
	// LAN reaches it. nil: anybody may ask.
	Admits func(ctx context.Context, source netip.Addr) bool
	// Sockets are inherited sockets; nil without any.
	Sockets *Inherited
}

func canonical(name string) string { return strings.ToLower(dns.Fqdn(name)) }
