// Package balancetest is the contract of data planes for virtual IPs: each implementation's own
// test calls Run.
//
// It owns the LAN on which it tries them, with a client, a node and its pods, and traffic through
// the real kernel. It is for tests only.
package balancetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
)

// Plane is the data plane under test.
type Plane interface {
	Apply(context.Context, []balance.Service) error
}

// Case is an implementation.
type Case struct {
	New func() (Plane, error)
	// Look prints all kernel state that the implementation may write, without counters, and Foreign
	// adds another program's state there: shell commands.
	Look, Foreign string
	// Busy, where it is set, gives the kernel more state of connections to look through, as on a
	// node with many clients.
	Busy func() error
	// RoundRobin: connections go to the backends strictly in turn, also those of UDP.
	RoundRobin bool
}

type bench struct {
	t            *testing.T
	c            Case
	lan          *lantest.LAN
	client, node *lantest.Host
	vip          netip.Addr
	pods         map[string]netip.AddrPort // by word
	nodeIP       string
	clientIP     string
}

const patience = 5 * time.Second

func newBench(t *testing.T, c Case, six bool) *bench {
	l := lantest.New(t)
	b := &bench{t: t, c: c, lan: l, pods: map[string]netip.AddrPort{}}
	address := func(four, other string) string {
		if six {
			return other
		}
		return four
	}
	b.nodeIP, b.clientIP = address("10.78.0.1", "2001:db8:78::1"), address("10.78.0.200", "2001:db8:78::200")
	length := address("/24", "/64")
	b.node, b.client = l.Host(b.nodeIP+length), l.Host(b.clientIP+length)
	b.vip = netip.MustParseAddr(address("10.78.0.100", "2001:db8:78::100"))
	b.node.Shell(fmt.Sprintf("ip addr add %s dev %s", netip.PrefixFrom(b.vip, b.vip.BitLen()), lantest.Interface))
	for i, word := range []string{"one", "two"} {
		a := netip.MustParseAddr(address(fmt.Sprintf("10.244.1.%d", i+2), fmt.Sprintf("2001:db8:244::%d", i+2)))
		b.node.Pod(a).Serve(8080, word)
		b.pods[word] = netip.AddrPortFrom(a, 8080)
	}
	if six {
		b.node.Settle() // the virtual IP, and the gateways of the pods
	}
	return b
}

func (b *bench) service(words ...string) balance.Service {
	var all []netip.AddrPort
	for _, w := range words {
		all = append(all, b.pods[w])
	}
	return balance.Service{Address: b.vip, Interface: lantest.Interface, Ports: []balance.Port{
		{Protocol: balance.TCP, Number: 80, Backends: all}, {Protocol: balance.UDP, Number: 53, Backends: all},
	}}
}

// apply applies as a fresh process would, every time.
func (b *bench) apply(want ...balance.Service) {
	b.t.Helper()
	if err := b.try(want...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) try(want ...balance.Service) error {
	return b.node.Do(func() error {
		p, err := b.c.New()
		if err != nil {
			return err
		}
		return p.Apply(context.Background(), want)
	})
}

func (b *bench) at(port uint16) string { return netip.AddrPortFrom(b.vip, port).String() }

func (b *bench) ask(from *lantest.Host, network string, port uint16) (word, seen string) {
	b.t.Helper()
	word, seen, err := from.Ask(network, b.at(port), patience)
	if err != nil {
		b.t.Fatalf("%s to %s: %v", network, b.at(port), err)
	}
	return word, seen
}

func (b *bench) spread(network string, port uint16, n int) map[string]int {
	b.t.Helper()
	got := map[string]int{}
	for range n {
		word, _ := b.ask(b.client, network, port)
		got[word]++
	}
	return got
}

func (b *bench) refused(network string, port uint16) {
	b.t.Helper()
	if _, _, err := b.client.Ask(network, b.at(port), patience); !errors.Is(err, syscall.ECONNREFUSED) {
		b.t.Errorf("%s to %s: %v, want connection refused", network, b.at(port), err)
	}
}

func (b *bench) look() string { return b.node.Shell(b.c.Look) }

// Run tries an implementation.
func Run(t *testing.T, c Case) {
	for _, six := range []bool{false, true} {
		name := map[bool]string{false: "IPv4", true: "IPv6"}[six]
		t.Run(name+"/traffic", func(t *testing.T) { traffic(newBench(t, c, six)) })
		t.Run(name+"/source address", func(t *testing.T) { sourceAddress(newBench(t, c, six)) })
		t.Run(name+"/changes lose nothing", func(t *testing.T) { changes(newBench(t, c, six)) })
		t.Run(name+"/a pod that is gone", func(t *testing.T) { gone(newBench(t, c, six)) })
		t.Run(name+"/what is not ours", func(t *testing.T) { foreign(newBench(t, c, six)) })
		t.Run(name+"/no circles", func(t *testing.T) { circles(newBench(t, c, six)) })
	}
	t.Run("what no kernel could do", func(t *testing.T) { refusals(newBench(t, c, false)) })
}

// Hostile is the part of the contract that keeps clients to themselves.
func Hostile(t *testing.T, c Case) {
	for _, six := range []bool{false, true} {
		name := map[bool]string{false: "IPv4", true: "IPv6"}[six]
		t.Run(name+"/source ranges", func(t *testing.T) { sourceRanges(newBench(t, c, six)) })
		t.Run(name+"/client affinity", func(t *testing.T) { clientAffinity(newBench(t, c, six)) })
	}
}

// sourceRanges: a client outside of all ranges is not served, at any port, and the others are.
func sourceRanges(b *bench) {
	s := b.service("one", "two")
	around := func(text string, bits int) netip.Prefix {
		p, err := netip.MustParseAddr(text).Prefix(bits)
		if err != nil {
			b.t.Fatal(err)
		}
		return p
	}
	whole := b.vip.BitLen()
	silent := func(what string) {
		b.t.Helper()
		for _, port := range []uint16{80, 81} {
			if _, _, err := b.client.Ask("tcp", b.at(port), time.Second); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
				b.t.Errorf("%s: port %d: %v, want silence", what, port, err)
			}
		}
		if _, _, err := b.client.Ask("udp", b.at(53), time.Second); err == nil {
			b.t.Errorf("%s: UDP is answered", what)
		}
	}
	s.Sources = []netip.Prefix{around(b.nodeIP, whole)}
	b.apply(s)
	silent("another host's range")
	s.Sources = []netip.Prefix{}
	b.apply(s)
	silent("no range of this family")
	s.Sources = []netip.Prefix{around(b.nodeIP, whole), around(b.clientIP, whole-8)}
	b.apply(s)
	for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
		b.ask(b.client, network, port)
	}
	b.refused("tcp", 81)
	s.KeepSource = true
	b.apply(s)
	if _, seen := b.ask(b.client, "tcp", 80); seen != b.clientIP {
		b.t.Errorf("the pod sees %s", seen)
	}
	s.Sources = nil
	b.apply(s)
	b.ask(b.client, "tcp", 80)
	b.apply()
	if left := b.look(); strings.Contains(left, "SKERRY") {
		b.t.Errorf("left behind:\n%s", left)
	}
}

// clientAffinity: a client's connections all go to one pod, those of another client to the next,
// and to another pod when the first is gone.
func clientAffinity(b *bench) {
	s := b.service("one", "two")
	s.Affinity = 100 * time.Second
	b.apply(s)
	for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
		if got := b.spread(network, port, 6); len(got) != 1 {
			b.t.Errorf("%s: one client's connections went to %v", network, got)
		}
	}
	first, _ := b.ask(b.client, "tcp", 80)
	second := b.lan.Host(map[bool]string{false: "10.78.0.201/24", true: "2001:db8:78::201/64"}[b.vip.Is6()])
	if word, _ := b.ask(second, "tcp", 80); word == first {
		b.t.Errorf("both clients come to %s", word)
	}
	// The pods are applied again, in another order: the client sees no change.
	again := b.service("two", "one")
	again.Affinity = s.Affinity
	b.apply(again)
	if word, _ := b.ask(b.client, "tcp", 80); word != first {
		b.t.Errorf("the client was at %s and is at %s", first, word)
	}
	other := map[string]string{"one": "two", "two": "one"}[first]
	gone := b.service(other)
	gone.Affinity = s.Affinity
	b.apply(gone)
	if word, _ := b.ask(b.client, "tcp", 80); word != other {
		b.t.Errorf("%s answers, and only %s is there", word, other)
	}
	// Without affinity: in turn again.
	b.apply(b.service("one", "two"))
	if got := b.spread("tcp", 80, 10); b.c.RoundRobin && (got["one"] != 5 || got["two"] != 5) {
		b.t.Errorf("10 connections went to %v", got)
	}
}

func traffic(b *bench) {
	b.refusedBefore()
	b.apply(b.service("one", "two"))
	for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
		got := b.spread(network, port, 10)
		if b.c.RoundRobin && (got["one"] != 5 || got["two"] != 5) {
			b.t.Errorf("%s: 10 connections went to %v", network, got)
		}
	}
	b.refused("tcp", 81)
	b.refused("udp", 80)
	b.refused("tcp", 8080)
	if word, _ := b.ask(b.node, "tcp", 80); word == "" {
		b.t.Error("the node itself is not served")
	}
	b.apply(b.service()) // no pod is ready
	b.refused("tcp", 80)
	b.refused("udp", 53)
}

// refusedBefore: an address that was just added serves no port.
func (b *bench) refusedBefore() { b.refused("tcp", 80) }

func sourceAddress(b *bench) {
	s := b.service("one")
	b.apply(s)
	if _, seen := b.ask(b.client, "tcp", 80); seen == b.clientIP {
		b.t.Errorf("the pod sees the client %s", seen)
	}
	s.KeepSource = true
	b.apply(s)
	for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
		if _, seen := b.ask(b.client, network, port); seen != b.clientIP {
			b.t.Errorf("%s: the pod sees %s, want the client %s", network, seen, b.clientIP)
		}
	}
}

// changes: while backends come and go, every connection of a client finds one.
func changes(b *bench) {
	const clients = 4
	b.apply(b.service("one"))
	if b.c.Busy != nil {
		if err := b.node.Do(b.c.Busy); err != nil {
			b.t.Fatal(err)
		}
	}
	var asked atomic.Int64
	ctx, stop := context.WithCancel(b.t.Context())
	defer stop()
	var asking errgroup.Group
	for range clients {
		asking.Go(func() error {
			for ctx.Err() == nil {
				if _, _, err := b.client.Ask("tcp", b.at(80), patience); err != nil {
					return err
				}
				asked.Add(1)
			}
			return nil
		})
	}
	other := b.service("two")
	other.Address = other.Address.Next()
	for i := range 6 {
		before := asked.Load()
		switch i % 3 {
		case 0:
			b.apply(b.service("one", "two"))
		case 1:
			b.apply(b.service("two"), other)
		case 2:
			b.apply(b.service("one"))
		}
		for deadline := time.Now().Add(patience); asked.Load() < before+3*clients && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
	}
	stop()
	if err := asking.Wait(); err != nil {
		b.t.Errorf("after %d connections: %v", asked.Load(), err)
	}
	if word, _ := b.ask(b.client, "tcp", 80); word != "one" {
		b.t.Errorf("%s answers, want one", word)
	}
}

// gone: a client that keeps sending from one port is served by another pod once its own is gone.
func gone(b *bench) {
	b.apply(b.service("one"))
	c, err := b.client.Dial("udp", b.at(53), patience)
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	if word, _, err := lantest.Exchange(c, patience); word != "one" {
		b.t.Fatalf("%q answers: %v", word, err)
	}
	b.apply(b.service("two"))
	// The packet that meets the change itself may be lost.
	for deadline := time.Now().Add(4 * patience); ; {
		word, _, err := lantest.Exchange(c, time.Second)
		if word == "two" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%q answers: %v", word, err)
		}
	}
}

func foreign(b *bench) {
	b.node.Shell(b.c.Foreign)
	before := b.look()
	b.apply(b.service("one", "two"))
	b.ask(b.client, "tcp", 80)
	with := b.look()
	b.apply(b.service("two", "one"))
	if again := b.look(); again != with {
		b.t.Errorf("applied again, it is:\n%s\nit was:\n%s", again, with)
	}
	for line := range strings.Lines(before) {
		if strings.TrimSpace(line) != "" && !strings.Contains(with, line) && !strings.HasPrefix(line, ":") {
			b.t.Errorf("what was not ours is gone: %s", line)
		}
	}
	b.apply()
	if after := b.look(); after != before {
		b.t.Errorf("at the end there is:\n%s\nat the beginning there was:\n%s", after, before)
	}
}

// circles: a packet for an address that no node holds is not sent back to its sender.
func circles(b *bench) {
	b.apply(b.service())
	whole := netip.PrefixFrom(b.vip, b.vip.BitLen()).String()
	b.node.Shell(fmt.Sprintf("ip addr del %s dev %s", whole, lantest.Interface))
	family := map[bool]string{false: "-4", true: "-6"}[b.vip.Is6()]
	// The client is the router here, and thinks that the node has it; the node would send it back.
	b.client.Shell(fmt.Sprintf("ip %s route add %s via %s dev %s", family, whole, b.nodeIP, lantest.Interface))
	b.node.Shell(fmt.Sprintf("ip %s route add %s via %s dev %s", family, whole, b.clientIP, lantest.Interface))
	_, _, err := b.client.Ask("tcp", b.at(80), time.Second)
	if err == nil {
		b.t.Error("a host answers")
	}
	const dropped = "for i in iptables ip6tables; do $i -t mangle -nvxL SKERRY-VIP-LOOP 2>/dev/null; done | awk '/SKERRY/ {n += $1} END {print n + 0}'"
	if n := strings.TrimSpace(b.node.Shell(dropped)); n == "0" {
		b.t.Error("nothing was dropped")
	}
}

func refusals(b *bench) {
	s := b.service("one")
	s.Ports[0].Number = 0
	if b.try(s) == nil {
		b.t.Error("port 0 is accepted")
	}
	s = b.service("one")
	s.Ports[0].Backends = []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:80")}
	if b.try(s) == nil {
		b.t.Error("a backend of another family is accepted")
	}
}
