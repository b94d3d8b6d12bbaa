// Package console offers consoles of KubeVirt virtual machines that run on this device on its
// loopback interface: the screen by RFB (RFC 6143), or a serial port.
//
// It owns the listeners, from 127.0.0.1:5900 on, one for each console, and the admission of
// clients: one at a time, until the time is up, the machine ends or the link does. The cloud, which
// carries the bytes, decides whether there is such a machine, and whether this device may connect:
// a console needs a link. It refuses more consoles than it has ports, and a second console of the
// same machine. Consoles may be used by many goroutines at once.
package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// The request to the cloud: one of these, the machine's namespace and its name, with slashes
// between them. The same words are in cloud/internal/access/console.
const (
	forVNC    = "vnc"
	forSerial = "serial"
	forEnd    = "end" // a stream without data, which ends with the machine
)

const (
	// ports is how many consoles there may be at once: 5900 to 5909.
	ports = 10
	// openTimeout is for the cloud to ask KubeVirt.
	openTimeout = 15 * time.Second
	// shortest is the least that may be asked for.
	shortest = time.Second
)

// Errors of requests; the cloud's own refusals are *tunnel.Refused.
var (
	ErrInvalid = errors.New("this is no request for a console")
	ErrOffline = errors.New("this device is offline, and a console of a virtual machine needs the link to the cloud")
	ErrBusy    = errors.New("no console can be opened now")
)

// Config configures Consoles.
type Config struct {
	// Open asks the cloud for a stream.
	Open func(ctx context.Context, target string) (net.Conn, error)
	// FirstPort is the lowest port: 5900, or 0 for any that is free.
	FirstPort int
	// Limit is the longest time for a console, and the default of a request.
	Limit time.Duration
}

// Request is the request of `edgecore console`.
type Request struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"` // of the VirtualMachineInstance
	Serial    bool          `json:"serial,omitempty"`
	For       time.Duration `json:"forNanoseconds,omitempty"` // 0: the limit
}

func (r Request) machine() string { return r.Namespace + "/" + r.Name }

func (r Request) target(kind string) string { return kind + "/" + r.machine() }

func (r Request) kind() string {
	if r.Serial {
		return forSerial
	}
	return forVNC
}

// State is an open console.
type State struct {
	Machine string         `json:"machine"` // NAMESPACE/NAME
	Kind    string         `json:"kind"`    // vnc or serial
	Address netip.AddrPort `json:"address"`
	Until   time.Time      `json:"until"`
	// Client is the address of the connected client; invalid without one.
	Client netip.AddrPort `json:"client,omitzero"`
}

// Consoles are those of this device.
type Consoles struct {
	config Config

	mu   sync.Mutex
	open []*Console
}

// New returns Consoles.
func New(config Config) *Consoles { return &Consoles{config: config} }

// List are the open consoles, oldest first.
func (c *Consoles) List() []State {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]State, len(c.open))
	for i, k := range c.open {
		all[i] = k.state
	}
	return all
}

func (c *Consoles) check(r Request) (time.Duration, error) {
	for _, name := range []string{r.Namespace, r.Name} {
		if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
			return 0, fmt.Errorf("%w: %q can't be the name of a virtual machine or namespace: %s", ErrInvalid, name, reasons[0])
		}
	}
	switch {
	case r.For == 0:
		return c.config.Limit, nil
	case r.For < shortest || r.For > c.config.Limit:
		return 0, fmt.Errorf("%w: %v is not between %v and modules.console.limit, %v", ErrInvalid, r.For, shortest, c.config.Limit)
	}
	return r.For, nil
}

// Open asks the cloud about a machine and listens for its console. Console.Serve must be called.
func (c *Consoles) Open(ctx context.Context, r Request) (*Console, error) {
	d, err := c.check(r)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	end, err := c.config.Open(asking, r.target(forEnd))
	if errors.Is(err, linkstate.ErrNoLink) {
		return nil, ErrOffline
	}
	if err != nil {
		if _, ok := errors.AsType[*tunnel.Refused](err); !ok {
			err = fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return nil, err
	}
	k := &Console{consoles: c, request: r, end: end}
	if err := c.enter(k, d); err != nil {
		_ = end.Close()
		return nil, err
	}
	return k, nil
}

// enter gives a console a port of its own.
func (c *Consoles) enter(k *Console, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.open {
		if other.request.machine() == k.request.machine() && other.request.kind() == k.request.kind() {
			return fmt.Errorf("%w: the console of %s is open already, at %v until %s", ErrBusy, k.request.machine(), other.state.Address, other.state.Until.Format(time.TimeOnly))
		}
	}
	if len(c.open) >= ports {
		return fmt.Errorf("%w: %d consoles are open already", ErrBusy, ports)
	}
	l, err := c.listen()
	if err != nil {
		return err
	}
	k.listener = l
	address, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("listening for a console: %w", err)
	}
	k.state = State{Machine: k.request.machine(), Kind: k.request.kind(), Address: address, Until: time.Now().Add(d)}
	c.open = append(c.open, k)
	return nil
}

func (c *Consoles) listen() (net.Listener, error) {
	var err error
	for i := range ports {
		port := c.config.FirstPort
		if port != 0 {
			port += i
		}
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("%w: listening on 127.0.0.1 from port %d on: %w", ErrBusy, c.config.FirstPort, err)
}

func (c *Consoles) leave(k *Console) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(other *Console) bool { return other == k })
}

func (c *Consoles) set(k *Console, client netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.state.Client = client
}

// reasonOf is an error's text for people, without the name of the peer.
func reasonOf(err error) string {
	if refused, ok := errors.AsType[*tunnel.Refused](err); ok {
		return refused.Reason
	}
	return strings.TrimSpace(err.Error())
}

const (
	// refuseTimeout is for a client that is refused to send its version of RFB.
	refuseTimeout = 5 * time.Second
	// waiting bounds the clients that are refused at once: one more is closed without a word.
	waiting = 4
)

// Console is a listener for one machine.
type Console struct {
	// Set when it is made, never changed.
	consoles *Consoles
	request  Request
	end      net.Conn // ends with the machine, and with the link
	listener net.Listener

	state State // guarded by consoles.mu
}

// State is how it is now.
func (k *Console) State() State {
	k.consoles.mu.Lock()
	defer k.consoles.mu.Unlock()
	return k.state
}

// Serve carries one client at a time until ctx ends, the time is up, or the machine or the link
// ends. It returns why; the port is closed then, and no client is left.
func (k *Console) Serve(ctx context.Context) string {
	defer k.consoles.leave(k)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	late := time.AfterFunc(time.Until(k.State().Until), func() { cancel(errors.New("the time is up")) })
	defer late.Stop()
	all.Go(func() {
		_, err := k.end.Read(make([]byte, 1))
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("the cloud ended it")
		}
		cancel(errors.New(reasonOf(err)))
	})
	defer context.AfterFunc(ctx, func() { _, _ = k.end.Close(), k.listener.Close() })()
	k.accept(ctx, &all)
	cancel(errors.New("its listener failed")) // where it did; else a no-op
	return context.Cause(ctx).Error()
}

// accept hands clients on until the listener is closed.
func (k *Console) accept(ctx context.Context, all *sync.WaitGroup) {
	user := make(chan struct{}, 1)
	refused := make(chan struct{}, waiting)
	for {
		client, err := k.listener.Accept()
		if err != nil {
			return
		}
		select {
		case user <- struct{}{}:
			all.Go(func() {
				defer func() { <-user }()
				k.carry(ctx, client)
			})
			continue
		default:
		}
		select {
		case refused <- struct{}{}:
			all.Go(func() {
				defer func() { <-refused }()
				k.refuse(ctx, client, fmt.Sprintf("the console of %s has a user already", k.request.machine()))
			})
		default:
			_ = client.Close()
		}
	}
}

// carry connects one client to the machine.
func (k *Console) carry(ctx context.Context, client net.Conn) {
	from, _ := netip.ParseAddrPort(client.RemoteAddr().String())
	k.consoles.set(k, from)
	defer k.consoles.set(k, netip.AddrPort{})
	asking, cancel := context.WithTimeout(ctx, openTimeout)
	far, err := k.consoles.config.Open(asking, k.request.target(k.request.kind()))
	cancel()
	if err != nil {
		k.refuse(ctx, client, reasonOf(err))
		return
	}
	tunnel.Splice(ctx, client, far)
}

// refuse closes a client's connection and, as well as its protocol can, gives the reason.
func (k *Console) refuse(ctx context.Context, client net.Conn, why string) {
	defer context.AfterFunc(ctx, func() { _ = client.Close() })()
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(refuseTimeout))
	if k.request.Serial {
		_, _ = fmt.Fprintf(client, "%s\r\n", why)
		return
	}
	_ = refuseRFB(client, why) // it may have gone
}
