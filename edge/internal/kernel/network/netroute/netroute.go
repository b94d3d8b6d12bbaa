// Package netroute makes, changes and removes routes in the kernel, and reads the kernel's routes.
//
// It owns the protocol number (rtm_protocol of rtnetlink(7)) that distinguishes our routes from all
// others: the kernel keeps it across our restarts, so a fresh process recognises our routes. It
// refuses to touch a route with another number, unless asked to adopt it. It is stateless;
// edge/internal/agents/route decides the desired routes. A Driver's methods may be called by many
// goroutines at once: changes are made one after another.
package netroute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Main is the main table, local the kernel's own.
const (
	Main  = unix.RT_TABLE_MAIN
	local = unix.RT_TABLE_LOCAL
)

// metric6 is the kernel's replacement of metric 0 for IPv6 (IP6_RT_PRIO_USER).
const metric6 = 1024

// Type is the kernel's treatment of matching packets.
type Type uint8

// The types, with the kernel's numbers.
const (
	Unicast     Type = unix.RTN_UNICAST
	Blackhole   Type = unix.RTN_BLACKHOLE
	Unreachable Type = unix.RTN_UNREACHABLE
	Prohibit    Type = unix.RTN_PROHIBIT
)

// Key identifies a route in the kernel.
type Key struct {
	Table  uint32
	Prefix netip.Prefix
	Metric uint32
}

// NewKey fills in the kernel's defaults.
func NewKey(table uint32, prefix netip.Prefix, metric uint32) Key {
	if metric == 0 && prefix.Addr().Is6() {
		metric = metric6
	}
	return Key{cmp.Or(table, Main), prefix.Masked(), metric}
}

func (k Key) String() string {
	return fmt.Sprintf("%s table %d metric %d", k.Prefix, k.Table, k.Metric)
}

// Hop is one way. The zero Weight is 1.
type Hop struct {
	Gateway   netip.Addr
	Interface string
	Weight    int
	OnLink    bool
}

// Route is one route. Its Hops are in no order.
type Route struct {
	Key
	Type   Type
	Hops   []Hop // empty unless Type is Unicast
	Source netip.Addr
	MTU    int
}

// Found is a route that the kernel has.
type Found struct {
	Route
	Protocol uint8
	// Dead: the kernel has it and does not use it, because a link of it is down.
	Dead bool
}

// Satisfies reports whether the kernel's route is the desired one. A field that a desired hop
// leaves open (its interface) matches any value.
func (f Found) Satisfies(want Route) bool {
	if f.Key != want.Key || f.Type != want.Type || f.Source != want.Source || f.MTU != want.MTU || len(f.Hops) != len(want.Hops) {
		return false
	}
	left := slices.Clone(f.Hops)
	for _, w := range want.Hops {
		i := slices.IndexFunc(left, func(h Hop) bool {
			return h.Gateway == w.Gateway && (w.Interface == "" || h.Interface == w.Interface) &&
				(len(want.Hops) == 1 || max(h.Weight, 1) == max(w.Weight, 1)) && (h.OnLink == w.OnLink || !w.OnLink)
		})
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

// Link is a network interface.
type Link struct {
	Index     int
	Name      string
	Up        bool // administratively, and it has a carrier
	Addresses []netip.Prefix
}

// Reasons to refuse a change. Callers branch on these; the error's text is the kernel's.
var (
	ErrExists    = errors.New("a route for this table, subnet and metric is there already")
	ErrNoGateway = errors.New("the gateway is on no network of this node")
	ErrNoLink    = errors.New("there is no such interface")
	ErrLinkDown  = errors.New("the interface is down")
	ErrNoSource  = errors.New("the preferred source is not an address of this node")
)

// Config configures a Driver.
type Config struct {
	// Protocol marks our routes.
	Protocol uint8
	// Buffer is the size of the socket for events, in bytes. Events that do not fit are lost, which
	// is detected. Default 1 MiB.
	Buffer int
}

// Driver changes the routes of the network namespace in which it was opened.
type Driver struct {
	config Config
	ns     netns.NsHandle
	handle *netlink.Handle

	change sync.Mutex // one change at a time
}

// Open opens the kernel's routes, in the network namespace of the calling thread.
func Open(config Config) (*Driver, error) {
	if config.Buffer == 0 {
		config.Buffer = 1 << 20
	}
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("opening the kernel's routes: %w", err)
	}
	// The kernel then filters dumps itself and explains its errors. Old kernels can't, and that is
	// optional.
	_ = h.SetStrictCheck(true)
	return &Driver{config: config, ns: ns, handle: h}, nil
}

// Close ends the Driver. No other method may be running.
func (d *Driver) Close() {
	d.handle.Close()
	d.ns.Close()
}

// Ours reports whether a route has our number.
func (d *Driver) Ours(f Found) bool { return f.Protocol == d.config.Protocol }

// Routes reads all routes but those of the kernel's local table, and hands them to visit, which
// begins again with reset when a dump was interrupted by a change.
func (d *Driver) Routes(ctx context.Context, reset func(), visit func(Found)) error {
	return dump.Repeat(func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		reset()
		names, err := d.names()
		if err != nil {
			return err
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			err := d.handle.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				if f, ok := found(r, family, names); ok {
					visit(f)
				}
				return true
			})
			if err != nil {
				return fmt.Errorf("listing routes: %w", err)
			}
		}
		return nil
	})
}

// Links lists the interfaces with their addresses.
func (d *Driver) Links(ctx context.Context) ([]Link, error) {
	return dump.Read(func() ([]Link, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return d.links()
	})
}

func (d *Driver) links() ([]Link, error) {
	links, err := d.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	addresses, err := d.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	all := make([]Link, len(links))
	at := make(map[int]*Link, len(links))
	for i, l := range links {
		a := l.Attrs()
		// A loopback's and a tunnel's operational state is unknown; IFF_RUNNING is set where it can
		// carry packets.
		all[i] = Link{Index: a.Index, Name: a.Name, Up: a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0}
		at[a.Index] = &all[i]
	}
	for _, a := range addresses {
		if l, p := at[a.LinkIndex], prefix(a.IPNet); l != nil && p.IsValid() {
			l.Addresses = append(l.Addresses, p)
		}
	}
	return all, nil
}

func (d *Driver) names() (map[int]string, error) {
	links, err := d.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names, nil
}

// found reads the kernel's route. Those of the local table, cached ones and types that are not for
// routing are skipped.
func found(r netlink.Route, family int, names map[int]string) (Found, bool) {
	if r.Table == local || r.Flags&unix.RTM_F_CLONED != 0 {
		return Found{}, false
	}
	p := prefix(r.Dst)
	if !p.IsValid() {
		p = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if family == unix.AF_INET6 {
			p = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	f := Found{
		Route:    Route{Key: Key{uint32(r.Table), p, uint32(r.Priority)}, Type: Type(r.Type), Source: addr(r.Src), MTU: r.MTU},
		Protocol: uint8(r.Protocol), Dead: dead(r.Flags),
	}
	switch {
	case f.Type != Unicast:
		f.MTU = 0
	case len(r.MultiPath) > 0:
		f.Dead = true
		for _, h := range r.MultiPath {
			f.Hops = append(f.Hops, Hop{addr(h.Gw), names[h.LinkIndex], h.Hops + 1, h.Flags&unix.RTNH_F_ONLINK != 0})
			f.Dead = f.Dead && dead(h.Flags)
		}
	default:
		f.Hops = []Hop{{addr(r.Gw), names[r.LinkIndex], 1, r.Flags&unix.RTNH_F_ONLINK != 0}}
	}
	return f, true
}

func dead(flags int) bool { return flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 }

func prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr(n.IP), ones)
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// Add adds a route; ErrExists if its key exists already, of any protocol.
func (d *Driver) Add(ctx context.Context, r Route) error {
	return d.write(ctx, r, d.config.Protocol, d.handle.RouteAdd)
}

// Replace sets a route atomically, replacing one with the same key: no packet finds a missing
// route. The caller knows that the replaced route is ours, or wants to adopt it.
func (d *Driver) Replace(ctx context.Context, r Route) error {
	return d.write(ctx, r, d.config.Protocol, d.handle.RouteReplace)
}

// Restore restores the route before a Replace unchanged: another process' route has its number
// again.
func (d *Driver) Restore(ctx context.Context, f Found) error {
	return d.write(ctx, f.Route, f.Protocol, d.handle.RouteReplace)
}

func (d *Driver) write(ctx context.Context, r Route, protocol uint8, change func(*netlink.Route) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.change.Lock()
	defer d.change.Unlock()
	kr, err := d.kernelRoute(r, protocol)
	if err != nil {
		return err
	}
	return explain(change(kr), r)
}

// Delete removes our route of that key. A missing one is no error.
func (d *Driver) Delete(ctx context.Context, r Route) error {
	return d.remove(ctx, r, d.config.Protocol)
}

// DeleteForeign removes another process' route, which is being adopted.
func (d *Driver) DeleteForeign(ctx context.Context, f Found) error {
	return d.remove(ctx, f.Route, f.Protocol)
}

// remove names table, subnet, metric, type and protocol: the kernel then removes that one and no
// other. (Without the protocol it would take any.)
func (d *Driver) remove(ctx context.Context, r Route, protocol uint8) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.change.Lock()
	defer d.change.Unlock()
	kr := &netlink.Route{
		Dst: ipNet(r.Prefix), Table: int(r.Table), Priority: int(r.Metric), Protocol: netlink.RouteProtocol(protocol), Type: int(r.Type),
		Scope: netlink.SCOPE_NOWHERE,
	}
	if err := d.handle.RouteDel(kr); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing %s: %w", r.Key, err)
	}
	return nil
}

func (d *Driver) kernelRoute(r Route, protocol uint8) (*netlink.Route, error) {
	kr := &netlink.Route{
		Dst: ipNet(r.Prefix), Table: int(r.Table), Priority: int(r.Metric), Protocol: netlink.RouteProtocol(protocol),
		Type: int(r.Type), MTU: r.MTU,
	}
	if r.Source.IsValid() {
		kr.Src = r.Source.AsSlice()
	}
	if r.Type != Unicast {
		return kr, nil
	}
	hops := make([]*netlink.NexthopInfo, len(r.Hops))
	for i, h := range r.Hops {
		hops[i] = &netlink.NexthopInfo{Hops: max(h.Weight, 1) - 1}
		if h.Interface != "" {
			l, err := d.handle.LinkByName(h.Interface)
			if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
				return nil, fmt.Errorf("interface %s: %w", h.Interface, ErrNoLink)
			}
			if err != nil {
				return nil, fmt.Errorf("looking for interface %s: %w", h.Interface, err)
			}
			hops[i].LinkIndex = l.Attrs().Index
		}
		if h.Gateway.IsValid() {
			hops[i].Gw = h.Gateway.AsSlice()
		}
		if h.OnLink {
			hops[i].Flags = int(netlink.FLAG_ONLINK)
		}
	}
	switch {
	case len(hops) == 0:
		return nil, fmt.Errorf("%s: %w: it has no next hop", r.Key, ErrNoGateway)
	case len(hops) > 1:
		kr.MultiPath = hops
		return kr, nil
	}
	kr.LinkIndex, kr.Gw, kr.Flags = hops[0].LinkIndex, hops[0].Gw, hops[0].Flags
	if kr.Gw == nil {
		kr.Scope = netlink.SCOPE_LINK // as ip-route(8) does where there is no gateway
	}
	return kr, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// explain turns the kernel's number into one of the errors above. The numbers are those of
// fib_check_nh and ip6_route_check_nh in net/ipv4 and net/ipv6.
func explain(err error, r Route) error {
	var why error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		why = ErrExists
	case errors.Is(err, unix.ENETDOWN):
		why = ErrLinkDown
	case errors.Is(err, unix.ENODEV):
		why = ErrNoLink
	case r.Type == Unicast && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)):
		why = ErrNoGateway
	case errors.Is(err, unix.EINVAL) && r.Source.IsValid():
		why = ErrNoSource
	case errors.Is(err, unix.EINVAL) && r.Type == Unicast:
		why = ErrNoGateway
	default:
		return fmt.Errorf("setting %s: %w", r.Key, err)
	}
	return fmt.Errorf("setting %s: %w (%w)", r.Key, why, errno(err))
}

// errno is the bare number of a kernel's answer; its text would repeat the message.
func errno(err error) error {
	if n, ok := errors.AsType[syscall.Errno](err); ok {
		return n
	}
	return err
}
