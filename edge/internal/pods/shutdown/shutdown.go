// Package shutdown brings the device to an orderly end: reboots and power-offs of its own, by
// whomever they were asked for. Containers end, pods stay: the same pods run again after the boot,
// with or without a cloud (docs/dev/decisions/0090-a-shutdown-ends-containers.md).
//
// It owns the order of a shutdown: the kubelet stops first, so that it reports no container's end
// as a pod's; virtual IPs move to other devices; then containers end by the priority of their pods,
// each with its preStop hook, its signal and its grace period. It does not delay a shutdown for
// longer than systemd-logind allows. A shutdown that was interrupted by edgecore's end is not
// resumed: the machine shuts down then. Plan is pure. A Module is used by one goroutine.
package shutdown

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/logind"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "shutdown"

const (
	// handover is how long virtual IPs may take of a shutdown that is delayed for long enough; of a
	// shorter one it is handoverShare.
	handover      = 5 * time.Second
	handoverShare = 4
	// sayTimeout bounds the update of the node's Ready condition; the shutdown does not wait for
	// it.
	sayTimeout = 2 * time.Second
	// connectTimeout bounds the connection to the runtime, a socket of this device, and an answer
	// in addition to a container's own time.
	connectTimeout = 10 * time.Second
)

// Config configures a Module.
type Config struct {
	Bus string // of the system; default logind.SystemBus
	// Periods are how long pods have, by priority; empty: their containers are left to the
	// machine's own shutdown, and the kubelet keeps running.
	Periods []Period
	// Kubelet stops the kubelet of this process.
	Kubelet interface{ Stop() }
	// Runtime is the endpoint of the container runtime.
	Runtime  string
	NodeName string
	API      *rest.Config // the edge API
	// Announced is called first of all; it must not take long. May be nil.
	Announced func(ctx context.Context)
	// Leave hands virtual IPs over, Stay takes part again; nil without virtual IPs.
	Leave, Stay func(ctx context.Context) error
}

// Module holds up shutdowns.
type Module struct {
	config Config
	client kubernetes.Interface
}

// New makes a Module. It starts no goroutine.
func New(c Config) (*Module, error) {
	client, err := kubernetes.NewForConfig(c.API)
	if err != nil {
		return nil, fmt.Errorf("making the client for shutdowns: %w", err)
	}
	return &Module{c, client}, nil
}

var errShuttingDown = errors.New("the device is shutting down")

// Hold keeps a kubelet from starting in an edgecore that was started while the device shuts down:
// it would start the containers again that have just ended.
func Hold(ctx context.Context) error {
	if logind.ShuttingDown(ctx, logind.SystemBus) {
		return errShuttingDown
	}
	return nil
}

// Name implements beehive.Module.
func (*Module) Name() message.Name { return Name }

// ErrCancelled ends the process: a kubelet runs once in one.
var ErrCancelled = errors.New("the shutdown of the device was cancelled: edgecore starts again, with a kubelet")

// Run waits for shutdowns until ctx ends. It fails with ErrCancelled.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	c := logind.Config{Bus: m.config.Bus, Prepare: m.prepare, Resume: m.resume}
	switch ends := len(m.config.Periods) > 0; {
	case ends && m.config.Leave != nil:
		c.Why, c.Delay = "hands virtual IPs over, ends containers", handover+total(m.config.Periods)+time.Second
	case ends:
		c.Why, c.Delay = "ends containers", total(m.config.Periods)+time.Second
	case m.config.Leave != nil:
		c.Why = "hands virtual IPs over"
	default:
		<-ctx.Done()
		return nil
	}
	return logind.Run(ctx, c)
}

// prepare may be called more than once.
func (m *Module) prepare(ctx context.Context) error {
	ends := len(m.config.Periods) > 0
	if m.config.Announced != nil {
		m.config.Announced(ctx)
	}
	if ends {
		m.config.Kubelet.Stop()
		go m.sayNotReady(ctx) // ends with ctx
	}
	var errs []error
	if m.config.Leave != nil {
		errs = append(errs, m.leave(ctx))
	}
	if ends {
		errs = append(errs, m.end(ctx))
	}
	return errors.Join(errs...)
}

func (m *Module) sayNotReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sayTimeout)
	defer cancel()
	if err := sayShuttingDown(ctx, m.client, m.config.NodeName); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to report that the node is shutting down: the cloud notices it when the Lease expires")
	}
}

func (m *Module) leave(ctx context.Context) error {
	limit := handover
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/handoverShare)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := m.config.Leave(ctx); err != nil {
		return fmt.Errorf("handing virtual IPs over: %w", err)
	}
	return nil
}

func (m *Module) end(ctx context.Context) error {
	pods, err := podsOf(ctx, m.client, m.config.NodeName)
	if err != nil { // then all have the same priority
		klog.FromContext(ctx).Error(err, "Failed to read the pods of this device, ending their containers without their priorities")
	}
	runtime, err := connect(ctx, m.config.Runtime, connectTimeout)
	if err != nil {
		return fmt.Errorf("connecting to the container runtime: %w", err)
	}
	defer func() { _ = runtime.Close(context.WithoutCancel(ctx)) }() // no call is in flight
	return (&ender{runtime, pods, m.config.Periods}).run(ctx)
}

func (m *Module) resume(ctx context.Context) error {
	if len(m.config.Periods) > 0 {
		return ErrCancelled
	}
	if m.config.Stay == nil {
		return nil
	}
	if err := m.config.Stay(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to take part in virtual IPs again")
	}
	return nil
}
