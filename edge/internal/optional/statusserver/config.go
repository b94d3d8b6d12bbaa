package statusserver

import (
	"net/netip"
	"time"

	"k8s.io/client-go/rest"
)

const (
	atOnce = 8
	// mostBytes bounds an answer, ours and a peer's.
	mostBytes = 1 << 20
	mostPeers = 64
	// ioTimeout bounds the reading of a request and the writing of an answer.
	ioTimeout = 10 * time.Second
	// lookAgain is how often the address is looked for.
	lookAgain = 2 * time.Second
)

// Config configures the server.
type Config struct {
	NodeName  string
	ClusterID string
	// Listen is ADDRESS:PORT, on an interface of this device.
	Listen netip.AddrPort
	// Peers are where the other devices listen.
	Peers []netip.AddrPort
	Trust Trust
	API   *rest.Config
	// Contact reports whether there is a link, and the time of the last contact with the cloud.
	Contact func() (linked bool, last time.Time)
	// Leader is the state of the election of the cluster's reporter; nil: this device
	// takes no part in it.
	Leader func() any
	// InstallLog is a file whose last lines are shown; "": no log.
	InstallLog string
}
