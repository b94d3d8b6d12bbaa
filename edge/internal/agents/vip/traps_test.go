package vip_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// known is the site's VirtualIP as it is once all nodes have reported where they are.
func (s *system) known() *v1alpha1.VirtualIP {
	v := s.readyVIP()
	for i, n := range s.nodes {
		v.Spec.Nodes[i].HardwareAddress = mac(n.host)
		v.Spec.Nodes[i].Address = fmt.Sprintf("10.79.0.%d", n.octet)
	}
	return v
}

// router runs a keepalived that belongs to no node. The nodes listen for it as devices do.
func (s *system) router(address string, vrid, priority int, advertised string) *lantest.Host {
	s.t.Helper()
	for _, n := range s.nodes {
		n.times.Listen = 0
	}
	h := s.lan.Host(address + "/24")
	dir := s.t.TempDir()
	conf := filepath.Join(dir, "conf")
	text := fmt.Sprintf("global_defs {\n vrrp_version 3\n}\nvrrp_instance r {\n state MASTER\n interface lan0\n virtual_router_id %d\n priority %d\n advert_int 0.2\n"+
		" virtual_ipaddress {\n  %s/32 dev lan0\n }\n}\n", vrid, priority, advertised)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := h.Command(context.Background(), "keepalived", "-n", "-P", "-l", "-f", conf, "-p", filepath.Join(dir, "pid"), "-r", filepath.Join(dir, "vrrp"))
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	})
	poll.True(s.t, "the router has its address", func() bool { return h.Has(advertised) })
	return h
}

// A clashing VirtualIP of another network silences neither the others nor itself for longer
// than it clashes.
func TestTraps_01_ClashingNetworksSilenceNoOtherAddress(t *testing.T) {
	s := newSystem(t, 1)
	n := s.nodes[0]
	v := s.vip()
	v.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	s.give(v)
	clash := s.at("10.79.0.101", v.Spec.VRID)
	clash.Spec.Network = "other"
	clash.CreationTimestamp = metav1.Now()
	s.give(clash)
	same := s.at("10.79.0.102", 70)
	same.Name, same.UID, same.Spec.Network = "10.79.0.100.other", "same", "other"
	same.Spec.Address, same.CreationTimestamp = theVIP, metav1.Now()
	s.give(same)
	s.start()
	s.one()
	for _, name := range []string{clash.Name, same.Name} {
		poll.True(t, name+" is left out", func() bool {
			e := n.report(name)
			return e.State == v1alpha1.VIPFault && strings.Contains(e.Message, "their networks are one LAN")
		})
	}
	clash = clash.DeepCopy() // as the cloud gives it another number
	clash.Spec.VRID++
	s.give(clash)
	poll.True(t, "it is served too", func() bool { return n.has("10.79.0.101") && n.has(theVIP) })
}

// A holder whose LAN interface is removed, or loses its address, does not claim on its uplink.
func TestTraps_02_NoClaimOnTheUplink(t *testing.T) {
	for name, c := range map[string]struct{ away, back string }{
		"the interface goes down": {"ip link set lan0 down", "ip link set lan0 up"},
		"it loses its address":    {"ip addr del 10.79.0.%d/24 dev lan0", "ip addr add 10.79.0.%d/24 dev lan0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, 2)
			for _, n := range s.nodes {
				n.host.Shell("ip link add wan0 type veth peer name wan1; ip addr add 10.99.0.1/24 dev wan0; ip link set wan0 up; ip link set wan1 up; ip route add default via 10.99.0.2")
			}
			s.give(s.vip())
			s.start()
			h := s.one()
			o := s.other(h)
			command := func(text string) {
				if strings.Contains(text, "%d") {
					text = fmt.Sprintf(text, h.octet)
				}
				h.host.Shell(text)
			}
			command(c.away)
			poll.True(t, "the other holds it", func() bool { return o.has(theVIP) })
			poll.True(t, "the node says why it does not", func() bool {
				e := h.report(theVIP)
				return e.State == v1alpha1.VIPFault && strings.Contains(e.Message, "no interface of the node is on the network")
			})
			if h.has(theVIP) {
				t.Errorf("it is claimed: %s", h.host.Shell("ip -o addr show"))
			}
			command(c.back)
			poll.True(t, "it is a backup", func() bool { return h.report(theVIP).State == v1alpha1.VIPBackup })
			if s.one() != o {
				t.Error("it went back")
			}
		})
	}
}

// frames records the frames about an address seen by a host on the LAN: its VRRP advertisements and
// ARP announcements.
type frames struct {
	mu  sync.Mutex
	all []string // "advert MAC", "announce MAC"
}

func (s *system) listen() *frames {
	s.t.Helper()
	f := &frames{}
	var conn *packet.Conn
	err := s.client.Do(func() error {
		ifi, err := net.InterfaceByName("lan0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		if err != nil {
			return err
		}
		return conn.SetPromiscuous(true)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	s.t.Cleanup(func() {
		conn.Close()
		<-done
	})
	address := netip.MustParseAddr(theVIP).As4()
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			from := net.HardwareAddr(b[6:12]).String()
			what := ""
			switch binary.BigEndian.Uint16(b[12:]) {
			case unix.ETH_P_IP:
				if n > 34 && b[14+9] == 112 {
					what = "advert "
				}
			case unix.ETH_P_ARP:
				if n >= 42 && [4]byte(b[28:32]) == address && [4]byte(b[38:42]) == address {
					what = "announce "
				}
			}
			if what != "" {
				f.mu.Lock()
				f.all = append(f.all, what+from)
				f.mu.Unlock()
			}
		}
	}()
	return f
}

// After two parts of the LAN have joined, the remaining holder announces the address within five of
// its advertisements (a second at this interval) of the other's last one, and not at the next
// refresh.
func TestTraps_03_WinnerAnnouncesItself(t *testing.T) {
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	o := s.other(h)
	// The client is with the one that will lose: it has the lower priority.
	winner, loser := s.nodes[0], s.nodes[1]
	h.host.Isolate(true)
	poll.True(t, "each part has a holder", func() bool { return h.has(theVIP) && o.has(theVIP) })
	heard := s.listen()
	h.host.Isolate(false)
	poll.True(t, "the lower priority has given up", func() bool { return winner.has(theVIP) && !loser.has(theVIP) })
	win, lose := mac(winner.host), mac(loser.host)
	poll.True(t, "the winner announces itself, or is heard five times without", func() bool {
		heard.mu.Lock()
		defer heard.mu.Unlock()
		silent := -1 // advertisements of the winner since the loser's last word
		for _, f := range heard.all {
			switch f {
			case "advert " + lose:
				silent = 0
			case "advert " + win:
				if silent >= 0 {
					silent++
				}
			case "announce " + win:
				if silent >= 0 {
					return true
				}
			}
			if silent > 5 {
				t.Fatalf("the winner is silent: %v", heard.all)
			}
		}
		return false
	})
}

// A router with the VRID of a virtual IP: no node competes with it, it is reported, and another
// VRID ends that.
func TestTraps_05_ForeignRouterIsHeard(t *testing.T) {
	s := newSystem(t, 2)
	v := s.known()
	router := s.router("10.79.0.150", int(v.Spec.VRID), 100, "10.79.0.250")
	s.give(v)
	s.start()
	for _, n := range s.nodes {
		poll.True(t, n.name+" reports the router", func() bool {
			e := n.report(theVIP)
			return e.ForeignRouter == "10.79.0.150" && e.ForeignVRID == v.Spec.VRID && e.State == v1alpha1.VIPFault
		})
	}
	if !router.Has("10.79.0.250") || len(s.holders()) > 0 {
		t.Error("the router lost its address, or a node stood against it")
	}
	w := v.DeepCopy()
	w.Spec.VRID++
	s.give(w)
	h := s.one()
	poll.True(t, "it is not said any more", func() bool { return h.report(theVIP).ForeignRouter == "" })
	if !router.Has("10.79.0.250") {
		t.Error("the router lost its address")
	}
}

// Nodes that don't receive each other's multicast both hold the address; by unicast they find each
// other.
func TestTraps_06_UnicastEndsTwoHolders(t *testing.T) {
	s := newSystem(t, 2)
	for _, n := range s.nodes {
		n.host.Shell("iptables -A INPUT -d 224.0.0.18 -j DROP; iptables -N heard; iptables -A heard; iptables -A INPUT -p 112 -j heard")
	}
	v := s.known()
	s.give(v)
	s.start()
	poll.True(t, "both hold it", func() bool { return len(s.holders()) == 2 })
	w := v.DeepCopy()
	w.Spec.Unicast = true
	s.give(w)
	poll.True(t, "one hears the other", func() bool {
		return slices.ContainsFunc(s.nodes, func(n *node) bool {
			rules := strings.Split(n.host.Shell("iptables -nvxL heard"), "\n") // below two lines of headings
			count, err := strconv.Atoi(strings.Fields(rules[2])[0])
			return err == nil && count >= 10
		})
	})
	// Each applies the change in its own time, and drops the address for a moment when it does: a
	// single holder at that moment may not be the final one.
	h := s.settled()
	o := s.other(h)
	h.stop()
	poll.True(t, "the other takes it", func() bool { return o.has(theVIP) })
}

// Two addresses in one election are held together and move together.
func TestTraps_07_SharedElectionMovesTogether(t *testing.T) {
	s := newSystem(t, 2)
	v := s.readyVIP()
	s.give(v)
	s.start()
	h := s.one()
	tr := s.sendPatiently()
	w := s.at("10.79.0.101", v.Spec.VRID)
	w.Spec.SharesElectionOf = v.Name
	s.give(w)
	poll.True(t, "both are held by one", func() bool { return h.has(theVIP) && h.has("10.79.0.101") })
	poll.True(t, "the second is served", func() bool {
		word, _, err := s.client.Ask("tcp", "10.79.0.101:80", patience)
		return err == nil && strings.HasPrefix(word, h.name)
	})
	poll.True(t, "the node says so", func() bool { return h.report("10.79.0.101").State == v1alpha1.VIPHolder })
	if _, lost := tr.end(t, "a second address"); lost > 0 {
		t.Errorf("%d connections to the first were lost", lost)
	}
	fmt.Fprintln(h.stdin, "on")
	o := s.other(h)
	poll.True(t, "both moved", func() bool { return o.has(theVIP) && o.has("10.79.0.101") && !h.has(theVIP) && !h.has("10.79.0.101") })
}

// A router outside of the pool advertises the address itself, with a higher priority: the nodes
// stand back, and report it.
func TestTraps_08_StrangerAdvertisesTheAddress(t *testing.T) {
	s := newSystem(t, 2)
	v := s.known()
	stranger := s.router("10.79.0.150", int(v.Spec.VRID), 250, theVIP)
	s.give(v)
	s.start()
	for _, n := range s.nodes {
		poll.True(t, n.name+" says who has the address", func() bool {
			e := n.report(theVIP)
			return e.State == v1alpha1.VIPBackup && e.DuplicateOf == mac(stranger) && strings.Contains(e.Message, "advertises the address by VRRP") && e.ReadyEndpoints == 1
		})
	}
	if h := s.holders(); len(h) > 0 {
		t.Errorf("%s holds it too", h[0].name)
	}
}
