package contact

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/site/contact/contactpb"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// script drives a core by the clock: it answers probes of kernels by alive, and records its
// actions.
type script struct {
	core  *core
	begin time.Time
	alive map[string]bool
	deaf  bool // no question can be put
	log   []string
	late  []answer
}

// answer is one that is under way.
type answer struct {
	node string
	at   time.Time
	yes  bool
}

func newScript(t *testing.T, members ...string) *script {
	t.Helper()
	s := &script{core: newCore("b", map[string]bool{}), begin: time.Now(), alive: map[string]bool{}}
	all := map[string][]netip.Prefix{}
	for i, m := range members {
		all[m] = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i))}
	}
	s.core.members(time.Now(), all)
	s.settle()
	s.log = nil
	return s
}

func (s *script) settle() {
	do, changed := s.core.take()
	at := time.Since(s.begin).Round(10 * time.Millisecond)
	names := [...]string{"ask", "close", "reset", "dial", "keep"}
	for _, x := range do {
		s.log = append(s.log, fmt.Sprintf("%v %s %s", at, names[x.verb], x.node))
		if x.verb == doAsk {
			wait := window
			if s.alive[x.node] || s.deaf {
				wait = time.Millisecond
			}
			s.late = append(s.late, answer{x.node, time.Now().Add(wait), s.alive[x.node]})
		}
	}
	for _, node := range changed {
		if p := s.core.peers[node]; p != nil {
			s.log = append(s.log, fmt.Sprintf("%v %s %s", at, node, p.status))
		}
	}
}

// run advances time in steps of 10 ms.
func (s *script) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		s.late = slices.DeleteFunc(s.late, func(a answer) bool {
			if time.Now().Before(a.at) {
				return false
			}
			if s.deaf {
				s.core.unasked(time.Now(), a.node)
			} else {
				s.core.answered(time.Now(), a.node, a.yes)
			}
			return true
		})
		s.core.tick(time.Now())
		s.settle()
	}
}

var home = netip.MustParseAddr("192.0.2.1")

func report(uids ...string) *Report {
	w := &Report{Boot: "x", Pods: map[types.UID]Pod{}}
	for _, u := range uids {
		w.Pods[types.UID(u)] = Pod{UID: types.UID(u), Ready: true}
	}
	return w
}

// meet adds a connection and its first report.
func (s *script) meet(node string, conn uint64) {
	s.core.connected(time.Now(), node, conn, home)
	s.core.receive(node, conn, report())
}

func (s *script) expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.log); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	s.log = nil
}

// A device loses power: its kernel is probed after 1.2 s of silence, and at 2 s it is dead.
func TestCore_silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "a")
		s.meet("a", 1)
		s.core.receive("a", 1, report("p"))
		s.settle()
		s.expect(t, "0s keep ", "0s a Met")
		s.run(3 * time.Second)
		s.expect(t, "1.2s ask a", "2s close a", "2s reset a", "2s a Dead")
		if s.core.peers["a"].holds() {
			t.Error("the report of a dead device holds")
		}
	})
}

// One heartbeat in the last moment changes no state.
func TestCore_lastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "a")
		s.meet("a", 1)
		s.settle()
		s.log = nil
		s.run(1950 * time.Millisecond)
		s.core.heartbeat(time.Now(), "a", 1)
		s.run(time.Second)
		s.expect(t, "1.2s ask a")
	})
}

// A device that can't ask takes a silent one for dead when a question without an answer would be
// over; and for alive, if a question can be put before that.
func TestCore_cannotAsk(t *testing.T) {
	for name, long := range map[string]bool{"for good": true, "for a moment": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(t, "a")
				s.meet("a", 1)
				s.settle()
				s.log = nil
				s.deaf = true
				s.run(1700 * time.Millisecond)
				s.expect(t, "1.2s ask a", "1.41s ask a", "1.62s ask a")
				s.deaf, s.alive["a"] = long, !long
				s.run(1300 * time.Millisecond)
				if long {
					s.expect(t, "1.83s ask a", "2.04s ask a", "2.05s close a", "2.05s reset a", "2.05s a Dead")
				} else {
					s.expect(t, "1.83s ask a", "2.84s ask a")
				}
			})
		})
	}
}

// edgecore is killed on a device whose kernel lives: its report holds for a minute, and no
// connection is cut.
func TestCore_mute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "a")
		s.alive["a"] = true
		s.meet("a", 1)
		s.core.receive("a", 1, report("p"))
		s.settle()
		s.run(2 * time.Second)
		s.core.closed(time.Now(), "a", 1)
		s.run(50 * time.Millisecond)
		if got := s.core.peers["a"].status; got != Mute || !s.core.peers["a"].holds() {
			t.Fatalf("%v, its report holds: %v", got, s.core.peers["a"].holds())
		}
		s.run(58 * time.Second)
		if !s.core.peers["a"].holds() {
			t.Error("the report does not hold for a minute")
		}
		s.run(4 * time.Second)
		if got := s.core.peers["a"].status; got != Mute || s.core.peers["a"].holds() {
			t.Errorf("after a minute: %v, its report holds: %v", got, s.core.peers["a"].holds())
		}
		if i := slices.IndexFunc(s.log, func(l string) bool { return bytes.Contains([]byte(l), []byte("reset")) }); i >= 0 {
			t.Errorf("connections were cut: %s", s.log[i])
		}
		// Then it loses power too.
		s.log, s.alive["a"] = nil, false
		s.run(5 * time.Second)
		if got := s.core.peers["a"].status; got != Dead {
			t.Errorf("its kernel does not answer any more: %v", got)
		}
	})
}

// Of a mute device one question without an answer is no death: a packet may be lost.
func TestCore_muteLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "a")
		s.alive["a"] = true
		s.meet("a", 1)
		s.settle()
		s.core.closed(time.Now(), "a", 1)
		s.run(500 * time.Millisecond)
		for range 5 {
			s.alive["a"] = false
			s.run(600 * time.Millisecond) // one question at most begins in it
			s.alive["a"] = true
			s.run(2400 * time.Millisecond)
		}
		if got := s.core.peers["a"].status; got != Mute {
			t.Errorf("%v", got)
		}
	})
}

// A device met in an earlier boot is Absent, not Unmet; one that leaves the site is forgotten.
func TestCore_members(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCore("b", map[string]bool{"a": true, "gone": true})
		c.members(time.Now(), map[string][]netip.Prefix{"a": nil, "c": nil})
		if got, want := [2]Status{c.peers["a"].status, c.peers["c"].status}, [2]Status{Absent, Unmet}; got != want {
			t.Errorf("%v, want %v", got, want)
		}
		if c.met["gone"] {
			t.Error("a device that has left is still known")
		}
		c.cut("c")
		if got := c.peers["c"].status; got != Dead {
			t.Errorf("without a carrier: %v", got)
		}
		c.uncut(time.Now(), "c")
		if got := c.peers["c"].status; got != Unmet {
			t.Errorf("with a carrier again: %v", got)
		}
		c.take()
		// Of a pair the first by name dials.
		c.tick(time.Now().Add(time.Second))
		do, _ := c.take()
		if len(do) != 1 || do[0].verb != doDial || do[0].node != "c" {
			t.Errorf("%v", do)
		}
	})
}

// A newer connection replaces the older, whose end and reports are of no interest then.
func TestCore_replaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "a")
		s.meet("a", 1)
		s.core.receive("a", 1, report("old"))
		s.core.connected(time.Now(), "a", 2, home)
		s.core.receive("a", 1, report("older"))
		s.core.receive("a", 2, report("new"))
		s.core.closed(time.Now(), "a", 1)
		s.settle()
		if p := s.core.peers["a"]; p.conn != 2 || len(p.report.Pods) != 1 || !p.report.Pods["new"].Ready {
			t.Errorf("%+v %+v", p, p.report)
		}
		s.expect(t, "0s keep ", "0s close a", "0s a Met")
	})
}

// A key belongs to the device that sends it first: another one that sends it too has no key, and
// does not get the first one's packets.
func TestCore_tunnels(t *testing.T) {
	c := newCore("x", map[string]bool{})
	c.members(time.Now(), map[string][]netip.Prefix{"a": nil, "b": nil})
	one, two := Tunnel{Key: [32]byte{1}, Port: 1}, Tunnel{Key: [32]byte{2}, Port: 2}
	receive := func(node string, conn uint64, tunnel Tunnel) {
		c.connected(time.Now(), node, conn, netip.Addr{})
		c.receive(node, conn, &Report{Boot: "boot", Sequence: conn, Tunnel: tunnel})
	}
	check := func(when string, a, b Tunnel) {
		t.Helper()
		if c.tunnel("a") != a || c.tunnel("b") != b {
			t.Errorf("%s: %v and %v", when, c.tunnel("a"), c.tunnel("b"))
		}
	}
	check("before they have sent one", Tunnel{}, Tunnel{})
	receive("a", 1, one)
	check("one has", one, Tunnel{})
	receive("b", 2, one)
	check("the other says the same", one, Tunnel{})
	receive("a", 3, one)
	check("the first says it again", one, Tunnel{})
	c.take()
	receive("b", 4, two)
	if _, changed := c.take(); !slices.Contains(changed, "b") {
		t.Error("another key is no change")
	}
	check("each has its own", one, two)
	receive("a", 5, two)
	check("the first says the other's", Tunnel{}, two)
	c.members(time.Now(), map[string][]netip.Prefix{"a": nil})
	check("the other leaves the site", two, Tunnel{})
}

func TestReadReport(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("192.0.2.7/32")}
	many := &contactpb.Report{BootId: "b"}
	for n := range MaxPods + 1 {
		many.Pods = append(many.Pods, &contactpb.Pod{Uid: fmt.Sprint(n)})
	}
	for name, tc := range map[string]struct {
		report  *contactpb.Report
		dropped int
		bad     bool
	}{
		"good":               {report: &contactpb.Report{BootId: "b", Pods: []*contactpb.Pod{{Uid: "u", Ips: []string{"10.0.1.9", "192.0.2.7"}}}}},
		"another's address":  {report: &contactpb.Report{BootId: "b", Pods: []*contactpb.Pod{{Uid: "u", Ips: []string{"10.0.2.9"}}}}, dropped: 1},
		"nonsense":           {report: &contactpb.Report{BootId: "b", Pods: []*contactpb.Pod{{Uid: "u", Ips: []string{"x", "10.0.1.1", "10.0.1.2", "10.0.1.3"}}}}, dropped: 2},
		"no boot":            {report: &contactpb.Report{}, bad: true},
		"no uid":             {report: &contactpb.Report{BootId: "b", Pods: []*contactpb.Pod{{}}}, bad: true},
		"long uid":           {report: &contactpb.Report{BootId: "b", Pods: []*contactpb.Pod{{Uid: string(make([]byte, 65))}}}, bad: true},
		"more pods than 512": {report: many, bad: true},
		"a tunnel":           {report: &contactpb.Report{BootId: "b", TunnelKey: bytes.Repeat([]byte{7}, 32), TunnelPort: 10553}},
		"half a key":         {report: &contactpb.Report{BootId: "b", TunnelKey: bytes.Repeat([]byte{7}, 16), TunnelPort: 10553}, bad: true},
		"a key without port": {report: &contactpb.Report{BootId: "b", TunnelKey: bytes.Repeat([]byte{7}, 32)}, bad: true},
		"no such port":       {report: &contactpb.Report{BootId: "b", TunnelKey: bytes.Repeat([]byte{7}, 32), TunnelPort: 65536}, bad: true},
	} {
		_, dropped, err := readReport(tc.report, ranges)
		if dropped != tc.dropped || (err != nil) != tc.bad {
			t.Errorf("%s: %d dropped, %v", name, dropped, err)
		}
	}
	// The largest report fits into a frame.
	pods := make([]Pod, MaxPods+9)
	for i := range pods {
		a := netip.MustParseAddr("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff")
		pods[i] = Pod{UID: types.UID(fmt.Sprintf("%064d", i)), Addresses: []netip.Addr{a, a}}
	}
	tunnel := Tunnel{Key: [32]byte{7}, Port: 10553}
	m := encodeReport("boot", 1<<63, pods, tunnel, nil)
	if len(m.Pods) != MaxPods || !m.More {
		t.Errorf("%d pods, more: %v", len(m.Pods), m.More)
	}
	if w, _, err := readReport(m, ranges); err != nil || w.Tunnel != tunnel {
		t.Errorf("the tunnel is %+v, %v", w, err)
	}
	var b bytes.Buffer
	if err := writeFrame(&b, m); err != nil {
		t.Error(err)
	}
}

// Whatever a peer sends, it is refused or within the bounds.
func FuzzPeer(f *testing.F) {
	good, err := proto.Marshal(&contactpb.Report{BootId: "b", Pods: []*contactpb.Pod{{Uid: "u", Ips: []string{"10.0.1.9"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte{0, 0, 0, byte(len(good))}, good...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	// Small on the wire, large in memory; addresses of others; texts without an end.
	framed := func(m *contactpb.Report, more []byte) []byte {
		body, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		body = append(body, more...)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	f.Add(framed(&contactpb.Report{BootId: "b"}, bytes.Repeat([]byte{0x1a, 0x00}, 30_000)))
	f.Add(framed(&contactpb.Report{BootId: strings.Repeat("b", 64<<10)}, nil))
	f.Add(framed(&contactpb.Report{Pods: []*contactpb.Pod{{Uid: "u\x00\n$(reboot)", Ips: []string{"10.96.0.1", "127.0.0.1", "::ffff:10.0.1.9", "0.0.0.0"}}}}, nil))
	f.Add(framed(&contactpb.Report{Pods: []*contactpb.Pod{{Uid: "u", Ips: make([]string, 10_000)}}}, nil))
	beacon, err := encodeBeacon("edge1", 10552)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(beacon)
	f.Add(framed(&contactpb.Report{BootId: "b", Sequence: 7, TunnelKey: bytes.Repeat([]byte{1}, 32), TunnelPort: 51820, Lan: []string{"192.0.2.3", "fe80::1%eth0"}}, nil))
	f.Add(framed(&contactpb.Report{BootId: "another", Sequence: 1<<64 - 1, TunnelKey: bytes.Repeat([]byte{2}, 32), TunnelPort: 1}, nil))
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}
	f.Fuzz(func(t *testing.T, data []byte) {
		if node, port, err := readBeacon(data); err == nil && (node == "" || port == 0) {
			t.Errorf("beacon of %q at %d", node, port)
		}
		m, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		w, _, err := readReport(m, ranges)
		if err != nil {
			return
		}
		if len(w.Pods) > MaxPods || len(w.Boot) > maxText {
			t.Errorf("%d pods, boot ID of %d bytes", len(w.Pods), len(w.Boot))
		}
		for uid, p := range w.Pods {
			if len(uid) > maxText || len(p.Addresses) > maxAddresses {
				t.Errorf("%q has %d addresses", uid, len(p.Addresses))
			}
		}
		for _, a := range w.LAN {
			if a.Zone() != "" || a.Is4In6() || a.IsLoopback() {
				t.Errorf("it is in the LAN at %v", a)
			}
		}
		// Whatever it is, another device's key stays that device's.
		at, c := time.Unix(1, 0), newCore("b", map[string]bool{})
		c.members(at, map[string][]netip.Prefix{"a": nil, "c": ranges})
		first := report()
		first.Tunnel = Tunnel{Key: [32]byte(bytes.Repeat([]byte{1}, 32)), Port: 51820}
		c.connected(at, "a", 1, home)
		c.receive("a", 1, first)
		c.connected(at, "c", 2, home)
		for range 2 {
			c.receive("c", 2, w)
			c.tick(at)
			at = at.Add(idle)
		}
		if c.tunnel("a") != first.Tunnel || c.tunnel("c").Key == first.Tunnel.Key {
			t.Errorf("the key of a is at %v, c has %v", c.tunnel("a"), c.tunnel("c"))
		}
		c.closed(at, "c", 2)
		c.connected(at, "c", 3, home)
		c.receive("c", 3, w)
		if p := c.peers["c"]; p.status != Met || p.report != w {
			t.Errorf("the first report of a connection does not count: %v", p.status)
		}
	})
}

// A peer that refuses this device's certificate: the dialling end takes the handshake for done, and
// each time the connection ends before a report. That is no contact, and the pause grows, whatever
// beacons come. The cloud's report ends it.
func TestClaims_38_RefusedDialIsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "c") // this is b, which dials c
		s.alive["c"] = true
		dials, met, conn := 0, 0, uint64(0)
		play := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				s.run(20 * time.Millisecond)
				for _, line := range s.log {
					if strings.HasSuffix(line, " dial c") {
						dials++
						conn++
						s.core.connected(time.Now(), "c", conn, home)
						s.core.closed(time.Now(), "c", conn)
					}
					if strings.HasSuffix(line, " c Met") {
						met++
					}
				}
				s.log = nil
				s.core.seen(time.Now(), "c") // a beacon
			}
		}
		play(10 * time.Minute)
		if dials > 30 || met > 0 {
			t.Errorf("%d dials in 10 minutes, Met %d times", dials, met)
		}
		dials = 0
		s.core.members(time.Now(), map[string][]netip.Prefix{"c": nil})
		play(time.Second)
		if dials == 0 {
			t.Error("the site has a new member list, and a refused peer is not dialled")
		}
	})
}

// A connection that was good is dialled again at once; one that ends each time after its first
// report is not, however many beacons arrive.
func TestClaims_38_GoodConnectionIsDialledAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "c")
		s.alive["c"] = true
		s.run(time.Second)
		s.meet("c", 1)
		for range 20 {
			s.run(500 * time.Millisecond)
			s.core.heartbeat(time.Now(), "c", 1)
		}
		s.core.closed(time.Now(), "c", 1)
		s.settle()
		s.log = nil
		s.run(20 * time.Millisecond)
		if !slices.ContainsFunc(s.log, func(line string) bool { return strings.HasSuffix(line, " dial c") }) {
			t.Errorf("not dialled again: %v", s.log)
		}
		dials := 0
		for i := range 600 {
			s.log = nil
			s.run(100 * time.Millisecond)
			for _, line := range s.log {
				if strings.HasSuffix(line, " dial c") {
					dials++
					s.meet("c", uint64(i)+2)
					s.core.closed(time.Now(), "c", uint64(i)+2)
				}
			}
			s.core.seen(time.Now(), "c") // a beacon
		}
		if dials > 15 {
			t.Errorf("%d dials in a minute of a peer that ends each connection", dials)
		}
	})
}

// The report of a device from before it died holds no longer when it is connected again: it may
// have booted, and its pods' addresses may be others'. Its first report counts.
func TestClaims_28_ReportOfTheBootBeforeHoldsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "a")
		s.core.connected(time.Now(), "a", 1, home)
		s.core.receive("a", 1, report("old"))
		s.run(10 * time.Second) // silence
		if p := s.core.peers["a"]; p.status != Dead || p.holds() {
			t.Fatalf("it is %s, holds %v", p.status, p.holds())
		}
		s.core.connected(time.Now(), "a", 2, home)
		if p := s.core.peers["a"]; p.holds() || p.status == Met {
			t.Errorf("its report of before counts: %s", p.status)
		}
		s.core.receive("a", 2, report("new"))
		if p := s.core.peers["a"]; !p.holds() || p.status != Met || !p.report.Pods["new"].Ready {
			t.Errorf("its new report does not count: %s %+v", p.status, p.report)
		}
	})
}

// The first sender of a tunnel's key is remembered over restarts and boots of this device, whether
// or not its report is the first then.
func TestClaims_10_FirstOwnerOfAKeyIsKept(t *testing.T) {
	c := newCore("x", map[string]bool{})
	site := map[string][]netip.Prefix{"a": nil, "b": nil}
	c.members(time.Now(), site)
	key := Tunnel{Key: [32]byte{1}, Port: 1}
	say := func(c *core, node string, conn uint64, tunnel Tunnel) {
		c.connected(time.Now(), node, conn, netip.Addr{})
		c.receive(node, conn, &Report{Boot: "boot", Sequence: conn, Tunnel: tunnel})
	}
	say(c, "a", 1, key)
	say(c, "b", 2, key)
	if do, _ := c.take(); !slices.ContainsFunc(do, func(x action) bool { return x.verb == doKeep }) {
		t.Error("nothing is kept")
	}
	booted := newCore("x", map[string]bool{})
	booted.owners = maps.Clone(c.owners)
	booted.members(time.Now(), site)
	say(booted, "b", 1, key)
	if got := booted.tunnel("b"); got != (Tunnel{}) {
		t.Errorf("who sent it second has it after a boot: %v", got)
	}
	say(booted, "a", 2, key)
	if got := booted.tunnel("a"); got != key {
		t.Errorf("who sent it first has %v", got)
	}
	booted.members(time.Now(), map[string][]netip.Prefix{"b": nil})
	if got := booted.tunnel("b"); got != key {
		t.Errorf("the first has left the site, the second has %v", got)
	}
}

// The addresses that a device reports decide by which family its pods are reached from here.
func TestClaims_27_ReachedByFamily(t *testing.T) {
	a := New(Config{Node: "x", Site: peers.New("x", nil), Changed: func(string) {}})
	a.core.members(time.Now(), map[string][]netip.Prefix{"a": nil})
	say := func(sequence uint64, lan ...string) {
		m := &contactpb.Report{BootId: "boot", Sequence: sequence, Lan: lan}
		w, _, err := readReport(m, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.core.receive("a", 1, w)
	}
	check := func(when string, v4, v6 bool) {
		t.Helper()
		if x, y := a.Reaches("a", true), a.Reaches("a", false); x != v4 || y != v6 {
			t.Errorf("%s: IPv4 %v, IPv6 %v; want %v, %v", when, x, y, v4, v6)
		}
	}
	check("nothing is known", true, true)
	a.core.connected(time.Now(), "a", 1, home)
	say(1)
	a.SetLAN([]netip.Prefix{netip.MustParsePrefix("192.168.1.3/24"), netip.MustParsePrefix("fd00::3/64"), netip.MustParsePrefix("198.51.100.9/30")})
	check("an older device reports none", true, true)
	say(2, "192.168.1.2", "fd00::2", "198.51.100.5")
	check("both", true, true)
	say(3, "fd00::2", "198.51.100.5")
	check("its IPv4 address of the LAN is gone", false, true)
	say(4, "192.168.1.2", "fd00::2")
	a.SetLAN([]netip.Prefix{netip.MustParsePrefix("fd00::3/64"), netip.MustParsePrefix("198.51.100.9/30")})
	check("this device's is gone", false, true)
	a.SetLAN(nil)
	check("another plugin has the pods' network", true, true)
	say(5, "0.0.0.0", "::ffff:0.0.0.0", "224.0.0.1", "nonsense", "127.0.0.1")
	if got := a.LAN("a"); len(got) > 0 {
		t.Errorf("taken: %v", got)
	}
}

// A pod in its device's network has the Node's address, which may be on the uplink: it is reached
// by the device's address on the LAN.
func TestClaims_31_HostNetworkPodIsReachedOnTheLAN(t *testing.T) {
	a := New(Config{Node: "x", Site: peers.New("x", nil), Changed: func(string) {}})
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("198.51.100.5/32"), netip.MustParsePrefix("192.168.1.2/32")}
	a.core.members(time.Now(), map[string][]netip.Prefix{"a": ranges})
	a.core.connected(time.Now(), "a", 1, home)
	w, _, err := readReport(&contactpb.Report{BootId: "boot", Sequence: 1, Lan: []string{"192.168.1.3", "192.168.1.2", "198.51.100.5"}, Pods: []*contactpb.Pod{
		{Uid: "pod", Ips: []string{"10.244.1.7"}, Ready: true}, {Uid: "host", Ips: []string{"198.51.100.5"}, Ready: true}, {Uid: "lan", Ips: []string{"192.168.1.2"}, Ready: true},
	}}, ranges)
	if err != nil {
		t.Fatal(err)
	}
	a.core.receive("a", 1, w)
	check := func(uid types.UID, want string) {
		t.Helper()
		if p, ok := a.Pod("a", uid); !ok || len(p.Addresses) != 1 || p.Addresses[0].String() != want {
			t.Errorf("%s: %v, want %s", uid, p.Addresses, want)
		}
	}
	check("host", "198.51.100.5") // where this device is, is not known yet
	a.SetLAN([]netip.Prefix{netip.MustParsePrefix("192.168.1.3/24"), netip.MustParsePrefix("198.51.100.9/30")})
	check("host", "192.168.1.2")
	check("lan", "192.168.1.2")
	check("pod", "10.244.1.7")
}
