// Package lab wires the hosts of a trial: a cloud, edges behind NAT, a router between them, and a
// LAN that the edges share with a client.
//
//	             machine --- host0 [cloud] eth0 198.51.100.10   [cloud2] eth0 198.51.100.11 ...
//	                                         |
//	                               cloud0 [router] bridge lan (no address)
//	                              NAT /      |       \
//	              up1 10.10.1.1 -----  up2 10.10.2.1   lan1 lan2 lanc
//	                  |                    |
//	[edge1] wan0 10.10.1.2    [edge2] wan0 10.10.2.2       [client]
//	        lan0 192.168.100.11       lan0 192.168.100.12   lan0 192.168.100.200
//	             2001:db8:100::11          2001:db8:100::12      2001:db8:100::200
//
// LinkIPv6 adds IPv6 to the way from wan0 to eth0: 2001:db8:10:1::2 and 2001:db8:51::10.
//
// Edges can dial the cloud on the ports it offers to them, and no other address; an edge can't be
// dialled through the router. Everything is in the hosts' network namespaces, so that the addresses
// may be the same in every trial of a machine, and it goes with them. Only the link to the machine
// itself needs a free network there. The functions may be repeated; callers do not call them at the
// same time for one router.
package lab

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// MaxEdges is how many edges the numbering has room for.
const MaxEdges = 99

const (
	bridge       = "lan"
	uplink       = "wan0"
	lan          = "lan0"
	chainCut     = "TRIAL-CUT"
	chainLoss    = "TRIAL-LOSS"
	chainBalance = "TRIAL-BALANCE"
	cloudIface   = "cloud0"
)

// MaxClouds is how many replicas of the cloud the numbering has room for.
const MaxClouds = 9

// Cloud is the cloud's address, as the edges dial it (TEST-NET-2, RFC 5737), however many
// replicas it has.
func Cloud() netip.Addr { return Replica(1) }

// Replica is the address of the cloud's n-th host; n counts from 1.
func Replica(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(9 + n)}) }

// Replica6 is the IPv6 address of the cloud's n-th host, which edges reach once LinkIPv6 was
// called. Its last part reads like that of Replica.
func Replica6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8:51::%d", 9+n)) }

// Uplink is edge n's address behind its NAT; n counts from 1.
func Uplink(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 10, byte(n), 2}), 24)
}

// LAN is edge n's address on the shared LAN.
func LAN(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 100, byte(10 + n)}), 24)
}

// LAN6 is edge n's IPv6 address on the shared LAN (RFC 3849), whose last part reads like
// that of LAN.
func LAN6(n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:100::%d/64", 10+n))
}

// Client is the client's address on the LAN.
func Client() netip.Prefix { return netip.MustParsePrefix("192.168.100.200/24") }

// Client6 is the client's IPv6 address on the LAN.
func Client6() netip.Prefix { return netip.MustParsePrefix("2001:db8:100::200/64") }

// AllPods has the ranges of all edges' pods; which edge has which is decided as in any cluster.
func AllPods() netip.Prefix { return netip.MustParsePrefix("10.244.0.0/16") }

// Pods is the range of the pods of plain node n. Edges are offered theirs of AllPods from its
// beginning: there are fewer of them than plain nodes' numbers begin with.
func Pods(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n), 0}), 24)
}

func cloudGateway() netip.Prefix { return netip.MustParsePrefix("198.51.100.1/24") }

func gateway(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 10, byte(n), 1}), 24)
}

// Port is a port of the cloud that edges may dial.
type Port struct {
	Protocol string // tcp or udp
	Number   uint16
}

// Router makes a host route between the edges and the cloud, with NAT, and gives it the
// LAN's bridge.
func Router(router host.Host, ports []Port) error {
	links, err := router.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	for _, name := range []string{bridge, cloudIface} {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := links.LinkAdd(br); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("making the bridge %s: %w", name, err)
		}
		if err := links.LinkSetUp(br); err != nil {
			return fmt.Errorf("setting the bridge %s up: %w", name, err)
		}
	}
	if err := address(router, cloudIface, cloudGateway()); err != nil {
		return err
	}
	return router.Do(func() error {
		// The LAN is one wire: frames between its members are not routed, hence not filtered.
		for _, filterFrames := range []string{"iptables", "ip6tables"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+filterFrames, []byte("0"), 0o644)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("switching off the filtering of frames: %w", err)
			}
		}
		t, err := iptables.New()
		if err != nil {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		return filter(t, ports)
	})
}

// filter lets edges dial the cloud's ports, and rejects all else. A refusal is answered, as a
// company's firewall would, so that no client waits for a time-out.
func filter(t *iptables.IPTables, ports []Port) error {
	var errs []error
	for _, chain := range []string{chainCut, chainLoss} {
		if ok, err := t.ChainExists("filter", chain); err != nil || !ok {
			errs = append(errs, err, t.NewChain("filter", chain))
		}
		errs = append(errs, t.AppendUnique("filter", "FORWARD", "-j", chain))
	}
	errs = append(errs,
		t.AppendUnique("filter", "FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
		t.AppendUnique("nat", "POSTROUTING", "-o", cloudIface, "-j", "MASQUERADE"),
	)
	for _, p := range ports {
		errs = append(errs, t.AppendUnique("filter", "FORWARD", "-o", cloudIface, "-p", p.Protocol, "--dport", strconv.Itoa(int(p.Number)), "-j", "ACCEPT"))
	}
	errs = append(errs, t.AppendUnique("filter", "FORWARD", "-o", cloudIface, "-j", "REJECT"), t.ChangePolicy("filter", "FORWARD", "DROP"))
	return errors.Join(errs...)
}

// ConnectCloud gives the cloud's n-th host its address and the way to the router and the other
// ones. It has no route to the edges.
func ConnectCloud(router, cloud host.Host, n int) error {
	return plug(router, cloudIface, "dc"+strconv.Itoa(n), cloud, "eth0", netip.PrefixFrom(Replica(n), 24), netip.PrefixFrom(Replica6(n), 64))
}

// Balance spreads the edges' connections to the cloud's address over its first replicas hosts, at
// random. It doesn't check for a listener, as a balancer that has not noticed yet.
func Balance(router host.Host, ports []Port, replicas int) error {
	return router.Do(func() error {
		t, err := iptables.New()
		if err != nil {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		return balance(t, "up+", Cloud(), ports, replicas)
	})
}

// BalanceMachine is Balance for the machine's own connections to the cloud's first host by
// MachineLink: that host passes them on to the other ones.
func BalanceMachine(cloud host.Host, network netip.Prefix, ports []Port, replicas int) error {
	_, far := MachineLink(network)
	return cloud.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			return fmt.Errorf("switching on forwarding: %w", err)
		}
		t, err := iptables.New()
		if err != nil {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		return errors.Join(
			balance(t, "host0", far.Addr(), ports, replicas),
			t.AppendUnique("nat", "POSTROUTING", "-o", "eth0", "-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE"),
		)
	})
}

// balance spreads the connections that come by an interface to an address.
func balance(t *iptables.IPTables, by string, to netip.Addr, ports []Port, replicas int) error {
	// Makes the chain, or empties it.
	errs := []error{t.ClearChain("nat", chainBalance), t.AppendUnique("nat", "PREROUTING", "-i", by, "-d", to.String(), "-j", chainBalance)}
	for _, p := range ports {
		for n := replicas; n > 1; n-- {
			// One of the n that are left; a connection that no rule takes stays with the first.
			errs = append(errs, t.Append("nat", chainBalance, "-p", p.Protocol, "--dport", strconv.Itoa(int(p.Number)),
				"-m", "statistic", "--mode", "random", "--probability", strconv.FormatFloat(1/float64(n), 'f', 6, 64),
				"-j", "DNAT", "--to-destination", Replica(n).String()))
		}
	}
	return errors.Join(errs...)
}

// ConnectEdge gives edge n its uplink and its place on the LAN.
func ConnectEdge(router, edge host.Host, n int) error {
	up := upName(n)
	if err := pair(router, up, edge, uplink); err != nil {
		return err
	}
	if err := address(router, up, gateway(n)); err != nil {
		return err
	}
	if err := address(edge, uplink, Uplink(n)); err != nil {
		return err
	}
	if err := defaultRoute(edge, gateway(n).Addr()); err != nil {
		return err
	}
	return joinLAN(router, "lan"+strconv.Itoa(n), edge, LAN(n), LAN6(n))
}

// OfferKubelet lets the cloud's n-th host dial the kubelet of edge number edge through the router,
// as it could a node of its own network. Without it no one behind the router can be dialled.
func OfferKubelet(router, cloud host.Host, n, edge int) error {
	links, err := cloud.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	err = links.RouteReplace(&netlink.Route{Dst: ipNet(Uplink(edge).Masked()), Gw: cloudGateway().Addr().AsSlice()})
	if err != nil {
		return fmt.Errorf("setting the cloud's route to %v: %w", Uplink(edge), err)
	}
	return router.Do(func() error {
		t, err := iptables.New()
		if err != nil {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		return t.AppendUnique("filter", "FORWARD", "-o", upName(edge), "-s", Replica(n).String(), "-p", "tcp", "--dport", "10250", "-j", "ACCEPT")
	})
}

// ConnectClient puts the client on the LAN.
func ConnectClient(router, client host.Host) error {
	return joinLAN(router, "lanc", client, Client(), Client6())
}

// Visitor is the address on the LAN of a host that has a cable there for a test, and Visit gives it
// that: as a VPN leads into a site.
func Visitor() netip.Prefix { return netip.MustParsePrefix("192.168.100.201/24") }

// Visit connects such a host.
func Visit(router, visitor host.Host) error { return joinLAN(router, "lanv", visitor, Visitor()) }

func upName(n int) string { return "up" + strconv.Itoa(n) }

func joinLAN(router host.Host, port string, member host.Host, addrs ...netip.Prefix) error {
	return plug(router, bridge, port, member, lan, addrs...)
}

// plug makes a cable from a port of one of the router's bridges to a host's interface, and gives
// that its addresses.
func plug(router host.Host, bridge, port string, member host.Host, iface string, addrs ...netip.Prefix) error {
	if err := pair(router, port, member, iface); err != nil {
		return err
	}
	links, err := router.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	br, err := links.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("finding the bridge %s: %w", bridge, err)
	}
	l, err := links.LinkByName(port)
	if err != nil {
		return fmt.Errorf("finding %s: %w", port, err)
	}
	if err := links.LinkSetMaster(l, br); err != nil {
		return fmt.Errorf("joining the bridge %s: %w", bridge, err)
	}
	for _, a := range addrs {
		if err := address(member, iface, a); err != nil {
			return err
		}
	}
	return nil
}

// pair makes a cable between two hosts. The old one of a host that was rebooted may still be there
// for a moment, and is replaced.
func pair(a host.Host, aName string, b host.Host, bName string) error {
	links, err := a.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	if old, err := links.LinkByName(aName); err == nil {
		if err := up(b, bName); err == nil {
			return nil
		}
		if err := links.LinkDel(old); err != nil && !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.EINVAL) {
			return fmt.Errorf("removing the old %s: %w", aName, err)
		}
	}
	cable := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: aName},
		PeerName:  bName, PeerNamespace: netlink.NsPid(b.Init.PID),
	}
	if err := links.LinkAdd(cable); err != nil {
		return fmt.Errorf("making the cable %s - %s: %w", aName, bName, err)
	}
	if err := links.LinkSetUp(cable); err != nil {
		return fmt.Errorf("setting %s up: %w", aName, err)
	}
	return up(b, bName)
}

func up(h host.Host, name string) error {
	links, err := h.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	l, err := links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	if err := links.LinkSetUp(l); err != nil {
		return fmt.Errorf("setting %s up: %w", name, err)
	}
	return nil
}

func address(h host.Host, name string, prefix netip.Prefix) error {
	links, err := h.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	l, err := links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	a := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		// Usable at once: an address is tentative for a second or two while it is looked for on the
		// link (RFC 4862, 5.4), and these are unique.
		a.Flags = unix.IFA_F_NODAD
	}
	if err := links.AddrReplace(l, a); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", name, prefix, err)
	}
	return nil
}

func defaultRoute(h host.Host, via netip.Addr) error {
	links, err := h.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	l, err := links.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("finding %s: %w", uplink, err)
	}
	if err := links.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("setting the default route: %w", err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// ConnectMachine makes a cable between the machine itself and the cloud, so that programs outside
// of the trial reach it. name is the interface on the machine; network is that of FreeNetwork.
func ConnectMachine(cloud host.Host, name string, network netip.Prefix) error {
	machine, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("opening the machine's network: %w", err)
	}
	defer machine.Close()
	l, err := machine.LinkByName(name)
	if err != nil {
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "host0", PeerNamespace: netlink.NsPid(cloud.Init.PID)}
		if err := machine.LinkAdd(cable); err != nil {
			return fmt.Errorf("making the cable %s - host0: %w", name, err)
		}
		l = cable
	}
	near, far := MachineLink(network)
	if err := machine.AddrReplace(l, &netlink.Addr{IPNet: ipNet(near)}); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", name, near, err)
	}
	if err := machine.LinkSetUp(l); err != nil {
		return fmt.Errorf("setting %s up: %w", name, err)
	}
	if err := up(cloud, "host0"); err != nil {
		return err
	}
	return address(cloud, "host0", far)
}

// DisconnectMachine removes the cable; one that is not there is fine.
func DisconnectMachine(name string) error {
	l, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	// Its namespace may take it along at this very moment.
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// MachineLink are the two ends of the network between machine and cloud.
func MachineLink(network netip.Prefix) (machine, cloud netip.Prefix) {
	first := network.Addr().Next()
	return netip.PrefixFrom(first, network.Bits()), netip.PrefixFrom(first.Next(), network.Bits())
}

// FreeNetwork picks an unused /30 of the machine, from the range for tests between networks (RFC
// 2544); key decides where to look first.
func FreeNetwork(key string) (netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("listing the machine's routes: %w", err)
	}
	var used []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if ones, _ := r.Dst.Mask.Size(); ok && ones > 0 {
			used = append(used, netip.PrefixFrom(addr, ones))
		}
	}
	const slots = 1 << 14 // 198.18.0.0/16 in /30s
	h := fnv.New32a()
	h.Write([]byte(key))
	start := h.Sum32() % slots
next:
	for i := range uint32(slots) {
		slot := (start + i) % slots
		network := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(slot >> 6), byte(slot << 2)}), 30)
		for _, u := range used {
			if u.Overlaps(network) {
				continue next
			}
		}
		return network, nil
	}
	return netip.Prefix{}, errors.New("the machine uses all of 198.18.0.0/16: no network is left for its link to the cloud")
}
