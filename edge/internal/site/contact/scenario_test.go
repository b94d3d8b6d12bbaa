package contact_test

import (
	"crypto/tls"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/contact/contactpb"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// Devices find each other only by beacons, and exchange their pods.
func TestMeet(t *testing.T) {
	w := newSystem(t, 3)
	w.startAll()
	w.allMet()
	a, b := w.devices[0], w.devices[1]
	pod, ok := a.agent.Pod(b.name, b.pod(1).UID)
	if !ok || len(pod.Addresses) != 1 || !pod.Ready {
		t.Fatalf("the report of %s about its pod is %+v, %v", b.name, pod, ok)
	}
	b.agent.SetPods([]contact.Pod{b.pod(1), b.pod(2)})
	poll.True(t, "the second pod is known", func() bool { _, ok := a.agent.Pod(b.name, b.pod(2).UID); return ok })
	b.host.Isolate(true)
	a.sees(b, contact.Dead)
	b.host.Isolate(false)
	w.allMet()
}

// lossFor is how long packets are lost; the spec's figure is of ten minutes.
var lossFor = flag.Duration("loss", 10*time.Second, "how long a fifth of the packets is lost")

// The LAN becomes silent without a lost carrier: the device is dead, and TCP connections to its
// pods are forgotten. Loss alone makes no device dead.
func TestSite_07_SilentCutIsDeathAndLossIsNot(t *testing.T) {
	w := newSystem(t, 2)
	w.startAll()
	w.allMet()
	a, b := w.devices[0], w.devices[1]

	// A fifth of all packets is lost, in both directions, for five times the time that makes a
	// silent device dead. Frames of ARP, by which a silent device's kernel is asked, are lost as
	// well.
	for _, d := range w.devices {
		d.host.Shell("nft add table netdev loss; nft add chain netdev loss in '{ type filter hook ingress device lan0 priority 0; }'; nft add rule netdev loss in numgen random mod 5 == 0 counter drop")
	}
	before := a.changes(b.name) + b.changes(a.name)
	for end := time.Now().Add(*lossFor); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if x, y := a.agent.Contact(b.name), b.agent.Contact(a.name); x == contact.Dead || y == contact.Dead {
			t.Fatalf("with a fifth of the packets lost: %v, %v", x, y)
		}
	}
	t.Logf("%d changes in %v of loss, none of them a death", a.changes(b.name)+b.changes(a.name)-before, *lossFor)
	if a.agent.State().Deaths+b.agent.State().Deaths > 0 {
		t.Error("a device was dead for a moment")
	}
	for _, d := range w.devices {
		_, counted, _ := strings.Cut(d.host.Shell("nft list chain netdev loss in"), "counter packets ")
		if n, _, _ := strings.Cut(counted, " "); n == "" || n == "0" {
			t.Errorf("%s has lost %q packets", d.name, n)
		} else {
			t.Logf("%s has lost %s packets", d.name, n)
		}
		d.host.Shell("nft delete table netdev loss")
	}
	w.allMet()

	// A connection through a Service's address to a pod of b, as in the kernel's table.
	client := a.host
	client.Shell("ip route add 10.91.2.0/24 via 10.90.0.2; ip route add 10.92.0.0/16 via 10.90.0.2")
	b.host.Shell("ip address add 10.91.2.2/32 dev lo")
	b.host.Serve(8080, "pod")
	client.Shell("nft add table ip nat; nft add chain ip nat out '{ type nat hook output priority -100; }'; nft add rule ip nat out ip daddr 10.92.0.1 tcp dport 80 dnat to 10.91.2.2:8080")
	conn, err := client.Dial("tcp", "10.92.0.1:80", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	known := func() bool {
		return strings.Contains(client.Shell("conntrack -L -p tcp 2>/dev/null || true"), "10.92.0.1")
	}
	if !known() {
		t.Fatal("the kernel does not know the connection")
	}
	b.host.Isolate(true)
	a.sees(b, contact.Dead)
	b.sees(a, contact.Dead)
	if _, ok := a.agent.Pod(b.name, b.pod(1).UID); ok {
		t.Error("the report of a dead device holds")
	}
	poll.True(t, "the connection to the dead device's pod is forgotten", func() bool { return !known() })
	b.host.Isolate(false)
	w.allMet()
}

// edgecore is killed on a peer and started again: its report stays valid all the while, and no
// device receives another.
func TestEdgecoreRestart(t *testing.T) {
	w := newSystem(t, 2)
	w.startAll()
	w.allMet()
	a, b := w.devices[0], w.devices[1]
	holds := func(when string) {
		t.Helper()
		if _, ok := a.agent.Pod(b.name, b.pod(1).UID); !ok {
			t.Fatalf("%s: the report of %s does not hold; it is %v", when, b.name, a.agent.Contact(b.name))
		}
	}
	b.stop()
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		holds("while edgecore is down")
	}
	a.sees(b, contact.Mute)
	if raw, err := os.ReadFile(b.run); err != nil || !strings.Contains(string(raw), string(a.pod(1).UID)) {
		t.Fatalf("what was kept for the restart: %v %s", err, raw)
	}
	b.start() // in the same boot: it has its earlier received reports
	if _, ok := b.agent.Pod(a.name, a.pod(1).UID); !ok {
		t.Error("after a restart in the same boot the reports of the others are gone")
	}
	poll.True(t, "they meet again", func() bool { holds("meanwhile"); return a.agent.Contact(b.name) == contact.Met })

	// After a reboot, though, a device is believed when it has spoken again.
	b.stop()
	if err := os.Remove(b.run); err != nil {
		t.Fatal(err)
	}
	b.boot = "boot-2"
	a.host.Isolate(true)
	b.start()
	if got := b.agent.Contact(a.name); got != contact.Absent {
		t.Errorf("after a reboot, before they meet: %v", got)
	}
	if _, ok := b.agent.Pod(a.name, a.pod(1).UID); ok {
		t.Error("after a reboot, before they meet: reports of before hold")
	}
	a.host.Isolate(false)
	w.allMet()
}

// A and B can't reach each other, and both reach C: each uses its own contact.
func TestSite_10_OnesViewIsNotAnothers(t *testing.T) {
	w := newSystem(t, 3)
	w.startAll()
	w.allMet()
	a, b, c := w.devices[0], w.devices[1], w.devices[2]
	block := "nft add table netdev cut; nft add chain netdev cut in '{ type filter hook ingress device lan0 priority 0; }'; nft add rule netdev cut in ether saddr %s drop"
	address := func(d *device) string {
		f := strings.Fields(d.host.Shell("ip -o link show lan0"))
		return f[slices.Index(f, "link/ether")+1]
	}
	a.host.Shell(fmt.Sprintf(block, address(b)))
	b.host.Shell(fmt.Sprintf(block, address(a)))
	a.sees(b, contact.Dead)
	b.sees(a, contact.Dead)
	for _, d := range []*device{a, b} {
		if got := c.agent.Contact(d.name); got != contact.Met {
			t.Errorf("%s sees %s as %v", c.name, d.name, got)
		}
		if _, ok := c.agent.Pod(d.name, d.pod(1).UID); !ok {
			t.Errorf("%s has lost the report of %s", c.name, d.name)
		}
		if got := d.agent.Contact(c.name); got != contact.Met {
			t.Errorf("%s sees %s as %v", d.name, c.name, got)
		}
	}
	// No report of c on a's pods reaches b: b's data of them does not hold.
	if _, ok := b.agent.Pod(a.name, a.pod(1).UID); ok {
		t.Error("a report was relayed")
	}
	a.host.Shell("nft delete table netdev cut")
	b.host.Shell("nft delete table netdev cut")
	w.allMet()
}

// The LAN falls into two halves, and is healed: within each half no state changes.
func TestSite_11_LANSplitAndHealedKeepsEachHalf(t *testing.T) {
	w := newSystem(t, 4)
	w.startAll()
	w.allMet()
	halves := [][]*device{w.devices[:2], w.devices[2:]}
	inside := func() (n int) {
		for _, half := range halves {
			n += half[0].changes(half[1].name) + half[1].changes(half[0].name)
		}
		return n
	}
	before := inside()
	for _, d := range halves[1] {
		d.host.Segment(2)
	}
	for _, d := range halves[0] {
		for _, o := range halves[1] {
			d.sees(o, contact.Dead)
			o.sees(d, contact.Dead)
		}
	}
	for _, d := range halves[1] {
		d.host.Isolate(false)
	}
	w.allMet()
	if after := inside(); after != before {
		t.Errorf("within the halves there were %d changes", after-before)
	}
}

// DHCP gives all devices other addresses, in another network: they find each other again,
// without a cloud.
func TestSite_27_DHCPMovesAllAndTheyFindEachOther(t *testing.T) {
	w := newSystem(t, 3)
	w.startAll()
	w.allMet()
	for i, d := range w.devices {
		d.host.Shell(fmt.Sprintf("ip address flush dev lan0; ip address add 10.93.7.%d/24 dev lan0", 100-i))
	}
	for i, d := range w.devices {
		for _, o := range w.devices {
			if d == o {
				continue
			}
			want := netip.AddrFrom4([4]byte{10, 93, 7, byte(100 - slices.Index(w.devices, o))})
			poll.True(t, fmt.Sprintf("%d: %s is met where it is now", i, o.name), func() bool {
				return d.agent.Contact(o.name) == contact.Met && d.agent.Address(o.name) == want
			})
		}
	}
	w.allMet()
}

// Peers outside of the site, with a revoked certificate, or with claims about others are not
// believed.
func TestSite_18_HostilePeerIsNotBelieved(t *testing.T) {
	w := newSystem(t, 2)
	a, b := w.devices[0], w.devices[1]
	thief := w.add("edge00", "10.90.0.66/24") // before a and b by name: it is the one to dial
	w.startHostile(a, b)
	t.Run("a forged report", func(t *testing.T) {
		p := thief.dial(t, a, thief.cert)
		p.say(t, &contactpb.Report{BootId: "x", Sequence: 1, Pods: []*contactpb.Pod{
			{Uid: string(b.pod(1).UID), Ips: []string{"10.90.0.66"}, Ready: true}, // a pod of b
			{Uid: "own", Ips: []string{"10.91.2.2", "10.90.0.1"}, Ready: true},    // addresses of b's pods, and of a
			{Uid: "good", Ips: []string{"10.91.3.7"}, Ready: true},
		}})
		poll.True(t, "the thief's own pod is known", func() bool { _, ok := a.agent.Pod(thief.name, "good"); return ok })
		if pod, ok := a.agent.Pod(thief.name, "own"); !ok || len(pod.Addresses) > 0 {
			t.Errorf("addresses of others are believed: %+v", pod)
		}
		if n := a.agent.State().Dropped; n != 3 {
			t.Errorf("%d addresses were counted, want 3", n)
		}
		if pod, ok := a.agent.Pod(b.name, b.pod(1).UID); !ok || pod.Addresses[0] != b.pod(1).Addresses[0] {
			t.Errorf("b's pod is where the thief says: %+v", pod)
		}
		p.close()
	})
	for name, say := range map[string]func(t *testing.T, p *peer){
		"a report above the bounds": func(t *testing.T, p *peer) { p.raw(t, []byte{0x7f, 0xff, 0xff, 0xff}) },
		"more pods than 512": func(t *testing.T, p *peer) {
			report := &contactpb.Report{BootId: "x", Sequence: 1}
			for n := range 513 {
				report.Pods = append(report.Pods, &contactpb.Pod{Uid: fmt.Sprint(n)})
			}
			p.say(t, report)
		},
		"nonsense": func(t *testing.T, p *peer) { p.raw(t, []byte{0, 0, 0, 2, 0xff, 0xff}) },
		"a flood of reports": func(t *testing.T, p *peer) {
			for n := range 200 {
				p.try(&contactpb.Report{BootId: "x", Sequence: uint64(n)})
			}
		},
		"a flood of heartbeats": func(t *testing.T, p *peer) {
			for end := time.Now().Add(patience); p.conn.Context().Err() == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
				_ = p.conn.SendDatagram([]byte{0})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := thief.dial(t, a, thief.cert)
			say(t, p)
			select {
			case <-p.conn.Context().Done():
			case <-time.After(patience):
				t.Error("the connection goes on")
			}
			p.close()
		})
	}
	other := linktest.NewAuthority(t)
	stranger := w.authority.Node(t, "edge0x") // of another pool: not in this site
	server := w.authority.Server(t)
	for name, cert := range map[string]tls.Certificate{
		"another cluster's authority": other.Node(t, thief.name), "a device of another pool": stranger, "no node's certificate": server, "a's own name": w.authority.Node(t, a.name),
		"a name that must wait": w.authority.Node(t, b.name),
	} {
		t.Run(name, func(t *testing.T) {
			before := a.agent.State().Refused
			if p, err := thief.tryDial(t, a, cert); err == nil {
				// With TLS 1.3 the client's certificate is judged after the client believes
				// that all is done.
				select {
				case <-p.conn.Context().Done():
				case <-time.After(patience):
					t.Error("the connection was accepted")
				}
				p.close()
			}
			if got := a.agent.Contact("edge0x"); got != contact.Unmet {
				t.Errorf("the stranger is %v", got)
			}
			if own := name == "a's own name" || name == "a name that must wait"; !own && a.agent.State().Refused == before {
				t.Error("the connection is not counted as refused")
			}
		})
	}
	t.Run("revoked", func(t *testing.T) {
		// A report makes the thief Met: on a busy machine it has been silent for too long to be Met
		// from the cases before. A connection above the bound may be refused after dial returns.
		var p *peer
		poll.True(t, a.name+" sees "+thief.name+" as met", func() bool {
			p = thief.dial(t, a, thief.cert)
			p.try(&contactpb.Report{BootId: "x", Sequence: 1})
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && p.conn.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
				if a.agent.Contact(thief.name) == contact.Met {
					return true
				}
			}
			p.close()
			return false
		})
		for _, m := range w.members {
			if m.GetNode() == thief.name {
				m.ValidFrom = time.Now().Add(time.Hour).Unix()
			}
		}
		a.tell() // it is in the site still, under a new certificate to come
		select {
		case <-p.conn.Context().Done():
		case <-time.After(patience):
			t.Error("the connection of a revoked device goes on")
		}
		if p, err := thief.tryDial(t, a, thief.cert); err == nil {
			select {
			case <-p.conn.Context().Done():
			case <-time.After(patience):
				t.Error("a revoked device was accepted")
			}
			p.close()
		}
	})
	// All the while the two others have gone on.
	if got := a.agent.Contact(b.name); got != contact.Met {
		t.Errorf("a sees b as %v", got)
	}
}

// An expired certificate is good without a link, and not with one.
func TestExpiredCertificate(t *testing.T) {
	w := newSystem(t, 2)
	a, b := w.devices[0], w.devices[1]
	b.cert = w.authority.Expired(t, b.name)
	w.startAll()
	a.sees(b, contact.Met)
	a.sees(b, contact.Met)
	a.stop()
	if err := os.Remove(a.run); err != nil {
		t.Fatal(err)
	}
	a.linked, a.boot = true, "boot-2"
	a.start()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got := a.agent.Contact(b.name); got == contact.Met {
			t.Fatal("an expired certificate is good although it could be renewed")
		}
	}
}

// More devices than a site may have don't speak to each other: the cloud's report holds for all.
func TestSite_28_TooManyDevicesEndTheirConnections(t *testing.T) {
	w := newSystem(t, 2)
	w.startAll()
	w.allMet()
	a, b := w.devices[0], w.devices[1]
	for n := range 63 {
		w.members = append(w.members, &topicpb.SiteMember{Node: fmt.Sprintf("other%02d", n)})
	}
	// As cloudcore sends it (cloud/internal/controllers/site has that half).
	for _, d := range w.devices {
		one := &topicpb.Site{Name: "plant", TooMany: true, Members: []*topicpb.SiteMember{{Node: d.name, PodCidrs: []string{d.pods()}}}, Digest: []byte("65")}
		if err := d.feed(t.Context(), topic.Site.New(message.Resource{Name: d.name}, one)); err != nil {
			t.Fatal(err)
		}
	}
	a.sees(b, contact.Unmet)
	b.sees(a, contact.Unmet)
	// A Site above the bounds, from a cloud that does not keep to them, is ignored.
	a.tell()
	w.members = w.members[:2]
	for _, d := range w.devices {
		d.tell()
	}
	w.allMet()
}
