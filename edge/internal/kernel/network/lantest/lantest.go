// Package lantest makes a LAN of network namespaces on one bridge for tests, and runs
// programs on its hosts.
//
// It owns the namespaces, with fresh names, since the kernel removes them some time after they are
// deleted; all go with the test. The bridge has a namespace of its own, so the machine's network
// is not touched. Root is needed. A LAN is used by one test; the methods of a Host may be called
// from any goroutine.
package lantest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Interface is the name of a host's interface on the LAN.
const Interface = "lan0"

// LAN is a bridge with hosts.
type LAN struct {
	t      testing.TB
	prefix string
	ns     string // of the bridge
	hosts  int
}

// Host is a machine on the LAN.
type Host struct {
	t    testing.TB
	NS   string // name of its network namespace
	port string // its end at the bridge
	sw   string
	mu   sync.Mutex
}

// New makes a LAN, or skips the test where that needs a root that there isn't.
func New(t testing.TB) *LAN {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	l := &LAN{t: t, prefix: fmt.Sprintf("sk%07x", rand.Uint32N(1<<28))}
	l.ns = l.prefix + "-sw"
	namespace(t, l.ns)
	// No multicast snooping: no host joins VRRP's group before the first advertisement.
	batch(t, l.ns, "link set lo up", "link add br0 type bridge mcast_snooping 0", "link set br0 up")
	return l
}

func namespace(t testing.TB, name string) {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			t.Errorf("removing namespace %s: %v: %s", name, err, out)
		}
	})
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// batch runs lines of ip(8) in a namespace, in one process: a kernel in which each costs a tenth of
// a second runs these tests, too.
func batch(t testing.TB, ns string, lines ...string) {
	t.Helper()
	cmd := exec.Command("ip", "-n", ns, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip -n %s: %v: %s:\n%s", ns, err, out, strings.Join(lines, "\n"))
	}
}

// Host adds a host with addresses such as 10.0.0.1/24 and 2001:db8::1/64. It forwards, as
// a node does.
func (l *LAN) Host(addresses ...string) *Host {
	l.t.Helper()
	l.hosts++
	h := &Host{t: l.t, NS: fmt.Sprintf("%s-%d", l.prefix, l.hosts), port: fmt.Sprintf("p%d", l.hosts), sw: l.ns}
	namespace(l.t, h.NS)
	batch(l.t, l.ns, "link add "+h.port+" type veth peer name "+Interface+" netns "+h.NS, "link set "+h.port+" master br0 up")
	// No duplicate address detection: an IPv6 address would not be usable for a second or two.
	h.Shell("echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/" + Interface + "/accept_dad; " +
		"echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
	lines := []string{"link set lo up", "link set " + Interface + " up"}
	for _, a := range addresses {
		lines = append(lines, "addr add "+a+" dev "+Interface)
	}
	batch(l.t, h.NS, lines...)
	if slices.ContainsFunc(addresses, func(a string) bool { return strings.Contains(a, ":") }) {
		h.Settle()
	}
	return h
}

// Settle waits until the kernel uses all IPv6 addresses of the host. It takes an address into use
// in the background, also without duplicate address detection (addrconf_dad_start in
// net/ipv6/addrconf.c); a connection before that on a busy machine has ::1 as its source, and is
// never answered.
func (h *Host) Settle() {
	h.t.Helper()
	h.Shell("n=0; while ip -6 -o address show tentative | grep -q .; do n=$((n+1)); test $n -lt 600 || exit 1; sleep 0.05; done")
}

// Pod adds a namespace that the host routes to, with one address, as a pod has it: replies go back
// through the host.
func (h *Host) Pod(address netip.Addr) *Host {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &Host{t: h.t, NS: fmt.Sprintf("%s-p%04x", h.NS, rand.Uint32N(1<<16)), sw: h.NS}
	p.port = "v" + p.NS[len(p.NS)-4:]
	namespace(h.t, p.NS)
	whole, family, gateway := netip.PrefixFrom(address, address.BitLen()).String(), "-4", "169.254.1.1"
	lines := []string{"link add " + p.port + " type veth peer name eth0 netns " + p.NS}
	if address.Is6() {
		family, gateway = "-6", "fe80::1"
		batch(h.t, h.NS, lines...)
		lines = nil
		p.Shell("echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad")
		h.Shell("echo 0 > /proc/sys/net/ipv6/conf/" + p.port + "/accept_dad")
	}
	batch(h.t, h.NS, append(lines, "link set "+p.port+" up", "addr add "+gateway+map[bool]string{true: "/64", false: "/32"}[address.Is6()]+" dev "+p.port)...)
	lines = []string{"link set lo up", "link set eth0 up", "addr add " + whole + " dev eth0"}
	if address.Is4() {
		lines = append(lines, "route add "+gateway+" dev eth0")
	}
	batch(h.t, p.NS, lines...)
	run(h.t, "ip", family, "-n", h.NS, "route", "add", whole, "dev", p.port)
	run(h.t, "ip", family, "-n", p.NS, "route", "add", "default", "via", gateway, "dev", "eth0")
	if address.Is6() {
		p.Settle()
	}
	return p
}

// Command makes a command that runs on the host.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + h.NS, name}, args...)...)
}

// Shell runs a line of shell on the host and returns its output.
func (h *Host) Shell(line string) string {
	h.t.Helper()
	out, err := h.Command(context.Background(), "sh", "-c", line).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// Plug connects or disconnects the host's cable.
func (h *Host) Plug(in bool) {
	h.t.Helper()
	run(h.t, "ip", "-n", h.sw, "link", "set", h.port, map[bool]string{true: "up", false: "down"}[in])
}

// Isolate puts the host's port into another bridge, or back: its carrier stays, but it is alone.
func (h *Host) Isolate(alone bool) {
	h.t.Helper()
	if alone {
		run(h.t, "ip", "-n", h.sw, "link", "set", h.port, "nomaster")
		return
	}
	run(h.t, "ip", "-n", h.sw, "link", "set", h.port, "master", "br0")
}

// Segment puts the host's port on another wire, with the hosts that are on the segment of that
// number. Isolate(false) brings it back.
func (h *Host) Segment(n int) {
	h.t.Helper()
	name := fmt.Sprintf("seg%d", n)
	if err := exec.Command("ip", "-n", h.sw, "link", "show", name).Run(); err != nil {
		run(h.t, "ip", "-n", h.sw, "link", "add", name, "type", "bridge", "mcast_snooping", "0")
		run(h.t, "ip", "-n", h.sw, "link", "set", name, "up")
	}
	run(h.t, "ip", "-n", h.sw, "link", "set", h.port, "master", name)
}

// Has reports whether the host has an address.
func (h *Host) Has(address string) bool {
	h.t.Helper()
	var all []net.Addr
	err := h.Do(func() (err error) { // no process for it: tests ask all the time
		all, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(a net.Addr) bool { return strings.HasPrefix(a.String(), address+"/") })
}

// Do runs f on a thread in the host's network: sockets that f opens, and programs that it runs, are
// the host's for as long as they live. f must not start goroutines for that.
func (h *Host) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		result <- func() error {
			ns, err := os.Open("/run/netns/" + h.NS)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering %s: %w", h.NS, err)
			}
			// iproute2 and sysctls look at /proc/self and /proc/net, which are of the process'
			// first thread: this is for sockets and children only.
			return f()
		}()
	}()
	return <-result
}

// Serve answers TCP connections and UDP packets at a port, until the test ends, with the host's
// word and the client's address: "word 10.0.0.1".
func (h *Host) Serve(port uint16, word string) {
	h.t.Helper()
	err := h.Do(func() error {
		at := fmt.Sprintf(":%d", port)
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		h.t.Cleanup(func() { l.Close() })
		u, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		h.t.Cleanup(func() { u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go answer(c, word)
			}
		}()
		go func() {
			b := make([]byte, 1500)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(fmt.Appendf(nil, "%s %s", word, ip(from)), from)
			}
		}()
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// answer sends the word, and ends the connection after its client has: data that nobody has read
// would make it a reset (RFC 1122, 4.2.2.13).
func answer(c net.Conn, word string) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintf(c, "%s %s", word, ip(c.RemoteAddr()))
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

func ip(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return ap.Addr().Unmap().WithZone("").String()
}

// Dial connects from the host to an address (no name).
func (h *Host) Dial(network, address string, patience time.Duration) (net.Conn, error) {
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = net.DialTimeout(network, address, patience)
		return err
	})
	return c, err
}

// Ask connects, sends a byte, and returns the word and the address that the server sends.
func (h *Host) Ask(network, address string, patience time.Duration) (word, seen string, err error) {
	c, err := h.Dial(network, address, patience)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	return Exchange(c, patience)
}

// Exchange is Ask on an open connection.
func Exchange(c net.Conn, patience time.Duration) (word, seen string, err error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", "", err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", "", err
	}
	b := make([]byte, 1500)
	n, err := c.Read(b)
	if err != nil {
		return "", "", err
	}
	word, seen, _ = strings.Cut(string(b[:n]), " ")
	return word, seen, nil
}
