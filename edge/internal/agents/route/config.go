package route

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Config configures the agent. Zero optional fields have the default given here.
type Config struct {
	NodeName string
	BootID   string // unique ID of the device's boot
	// Open opens the kernel for one run; close is called when the run ends.
	Open     func(ctx context.Context) (kernel Kernel, close func(), err error)
	State    agent.Memory
	Reporter agent.Reporter
	Events   func(ctx context.Context) (agent.Recorder, error) // nil without one
	API      *rest.Config                                      // of the edge API, in the process
	Hub      message.Name                                      // of the module that has the link, to ask whether the cloud still answers; "": no module
	// Protected are the networks of edgecore.yaml that no StaticRoute may cover.
	Protected []netip.Prefix
	// Cloud are the addresses of cloudcore that the configuration names; those that links were
	// opened to are remembered besides. Resolve looks the configured names up; nil: there are no
	// names.
	Cloud   []netip.Addr
	Resolve func(ctx context.Context) []netip.Addr
	// Surroundings reads the device's network configuration files; nil: they are not read.
	Surroundings func() Surroundings
	// Probes are the ways to the cloud, each tried with a new connection: names, the join server,
	// the link.
	Probes []Probe
	// Probation coordinates all trials of changes that may cut this device off; nil: no
	// coordination.
	Probation *probation.Probation

	FullCheck    time.Duration // interval of full readings and comparisons; 60 s
	ProbeTimeout time.Duration // how long the cloud and the gateway may be silent after a change before it is taken back; 10 s
	ConfirmAfter time.Duration // how long to wait for the kernel's event on a change before a full reading; 2 s
	ScanPause    time.Duration // minimum interval between two full readings, however many events come; 250 ms
	RepairPause  time.Duration // after the first repair of a route; each further one is twice as long; 1 s
	ProveAgain   time.Duration // when unverified routes are checked again, with a link; 5 min
}

// Surroundings are the networks around a device that are not in its kernel.
type Surroundings struct {
	Resolvers []netip.Addr   // DNS servers, where the cloud is known by a name
	Pods      []netip.Prefix // address ranges that the CNI plugins of this device give to pods
}

func (c *Config) defaults() {
	or := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	or(&c.FullCheck, time.Minute)
	or(&c.ProbeTimeout, 10*time.Second)
	or(&c.ConfirmAfter, 2*time.Second)
	or(&c.ScanPause, 250*time.Millisecond)
	or(&c.RepairPause, time.Second)
	or(&c.ProveAgain, 5*time.Minute)
}
