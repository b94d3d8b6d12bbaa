package contact

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Status is the state of this device's own way to another one.
type Status uint8

// The states of a contact.
const (
	// Unmet: there was never a connection to that device.
	Unmet Status = iota
	// Absent: it was met in an earlier boot of this device, and not yet in this one.
	Absent
	// Met: there is a connection with a report, or the last one has just ended and the device is
	// being searched.
	Met
	// Mute: its kernel answers and its edgecore does not.
	Mute
	// Dead: it does not answer, or this device has lost the carrier of its network.
	Dead
)

func (s Status) String() string {
	names := [...]string{"Unmet", "Absent", "Met", "Mute", "Dead"}
	if int(s) < len(names) {
		return names[s]
	}
	return "Status(?)"
}

const (
	// Keepalive is the time between two heartbeats, idle that after which a silent
	// connection ends.
	Keepalive = 500 * time.Millisecond
	idle      = 2 * time.Second
	// suspicion is the silence after which the peer's kernel is asked, until idle has passed.
	suspicion = 1200 * time.Millisecond
	window    = idle - suspicion
	// muteHold is how long the last report of a mute device holds.
	muteHold = time.Minute
	// muteAsk is the pause between two questions to the kernel of a mute device. Two of them
	// without an answer are its death: there is no other heartbeat to set against the
	// loss of a packet.
	muteAsk      = time.Second
	muteFailures = 2
	// unaskedPause is the pause before a probe is retried that this device could not send, for a
	// local reason. After unaskedMost such attempts, which take as long as a probe without an
	// answer, the peer's silence has to be enough.
	unaskedPause = window / 4
	unaskedMost  = 5
	// dialMin and dialMax bound the pause between two attempts to connect.
	dialMin = 250 * time.Millisecond
	dialMax = 2 * time.Second
	// refusedMax bounds it where the peer ends each connection before a report: it does
	// not admit this device. A connection that lasted for steady was a good one; so many in a row
	// that ended earlier are refusals too, whatever the peer sent.
	refusedMax = 30 * time.Second
	steady     = 5 * time.Second
	shortMost  = 4
)

// Pod is the status of a pod by its device's kubelet.
type Pod struct {
	UID         types.UID
	Addresses   []netip.Addr
	Ready       bool
	Terminating bool
}

func (p Pod) equal(o Pod) bool {
	return p.UID == o.UID && p.Ready == o.Ready && p.Terminating == o.Terminating && slices.Equal(p.Addresses, o.Addresses)
}

// Tunnel is where a device takes packets that are encrypted for it: the key of its WireGuard
// interface, and the interface's port. The zero value is no tunnel.
type Tunnel struct {
	Key  [32]byte
	Port uint16
}

// Report is a device's status of all its pods, and its tunnel.
type Report struct {
	Boot     string
	Sequence uint64
	Pods     map[types.UID]Pod
	Tunnel   Tunnel
	LAN      []netip.Addr // where the device is; empty: unknown
}

// peer is another device of the site.
type peer struct {
	status     Status
	ranges     []netip.Prefix // where addresses of its pods may be
	conn       uint64         // 0 without one
	at         netip.Addr     // where it was connected last in this process
	began      time.Time      // of conn
	reported   bool           // conn has received a report
	refusals   int            // connections in a row that ended before a report
	short      int            // connections in a row that ended before steady
	lastSeen   time.Time
	asking     bool      // a question to its kernel is under way
	failures   int       // questions in a row without an answer
	unasked    int       // tries in a row to put one
	ask        time.Time // when the next question is due; zero: never
	muteTill   time.Time
	dial       time.Time // when the next attempt to connect is due
	pause      time.Duration
	report     *Report
	reportConn uint64 // the connection of the report
}

// core decides the state of peers. It is pure: it takes events with their times, and returns
// actions. It is owned by one goroutine at a time.
type core struct {
	node  string
	peers map[string]*peer
	// met are the devices that were ever met; changes are kept by the caller.
	met map[string]bool
	// owners are the first devices with the key of a tunnel, and are in the site still; kept
	// like met: the second one, after a restart or a boot of this device, has no claim.
	owners  map[[32]byte]string
	changed map[string]bool // peers whose state has changed since the last take
	do      []action
}

type verb uint8

const (
	doAsk   verb = iota // ask the kernel at an address whether it lives
	doClose             // close a connection
	doReset             // forget TCP connections to a device's pods
	doDial              // connect
	doKeep              // save the set of met devices
)

type action struct {
	verb verb
	node string
	conn uint64
	at   netip.Addr
}

func newCore(node string, met map[string]bool) *core {
	return &core{node: node, peers: map[string]*peer{}, met: met, owners: map[[32]byte]string{}, changed: map[string]bool{}}
}

// take returns the actions, and the peers whose state has changed, since the last call.
func (c *core) take() (do []action, changed []string) {
	do, c.do = c.do, nil
	changed = slices.Sorted(maps.Keys(c.changed))
	clear(c.changed)
	return do, changed
}

func (c *core) act(v verb, node string, conn uint64, at netip.Addr) {
	c.do = append(c.do, action{v, node, conn, at})
}

func (c *core) become(node string, p *peer, s Status) {
	if p.status == s {
		return
	}
	if s == Dead {
		p.ask, p.asking, p.failures, p.unasked = time.Time{}, false, 0, 0
		if p.conn != 0 {
			c.act(doClose, node, p.conn, netip.Addr{})
			p.conn = 0
		}
		c.act(doReset, node, 0, netip.Addr{})
	}
	p.status = s
	c.changed[node] = true
}

// members makes the peers those of the site. A device that leaves the site is forgotten: should it
// come back, it is met again.
func (c *core) members(now time.Time, all map[string][]netip.Prefix) {
	for node, p := range c.peers {
		if _, in := all[node]; in {
			continue
		}
		if p.conn != 0 {
			c.act(doClose, node, p.conn, netip.Addr{})
		}
		delete(c.peers, node)
		c.changed[node] = true
	}
	for node, ranges := range all {
		p := c.peers[node]
		if p == nil {
			p = &peer{dial: now, pause: dialMin}
			if c.met[node] {
				p.status = Absent
			}
			c.peers[node] = p
			c.changed[node] = true
		}
		if p.refuses() { // the site's state may have been the reason
			p.refusals, p.short, p.pause, p.dial = 0, 0, dialMin, now
		}
		if !slices.Equal(p.ranges, ranges) {
			p.ranges = ranges
			c.changed[node] = true
		}
	}
	for node := range c.met {
		if _, in := all[node]; !in {
			delete(c.met, node)
			c.act(doKeep, "", 0, netip.Addr{})
		}
	}
	for key, owner := range c.owners {
		if _, in := all[owner]; !in {
			delete(c.owners, key)
			c.act(doKeep, "", 0, netip.Addr{})
		}
	}
}

// dials reports whether it is this device that opens the connection: one of each pair does.
func (c *core) dials(node string) bool { return c.node < node }

// connected adds a connection. The newer replaces the older: a restarted device has lost that one.
// It is no proof of the device yet: with TLS 1.3 the end that dials takes its handshake for done
// before the other one has judged its certificate. Messages of the device's earlier boot don't
// count for it: others may have the addresses of its pods by now.
func (c *core) connected(now time.Time, node string, conn uint64, at netip.Addr) {
	p := c.peers[node]
	if p == nil {
		c.act(doClose, node, conn, netip.Addr{})
		return
	}
	if p.conn != 0 && p.conn != conn {
		c.act(doClose, node, p.conn, netip.Addr{})
	}
	p.conn, p.at, p.lastSeen, p.failures, p.unasked, p.ask = conn, at, now, 0, 0, now.Add(suspicion)
	p.began, p.reported = now, false
}

// heartbeat notes that a device has sent one.
func (c *core) heartbeat(now time.Time, node string, conn uint64) {
	if p := c.peers[node]; p != nil && p.conn == conn {
		p.lastSeen, p.failures, p.unasked, p.ask = now, 0, 0, now.Add(suspicion)
	}
}

// receive records a report, unless it is older than the current one. The first report of a
// connection is the newest, regardless of its number: the device may have been started again with
// another clock.
func (c *core) receive(node string, conn uint64, w *Report) {
	p := c.peers[node]
	if p == nil || p.conn != conn || p.report != nil && p.reportConn == conn && p.report.Boot == w.Boot && p.report.Sequence >= w.Sequence {
		return
	}
	c.own(node, w.Tunnel.Key)
	p.reported, p.refusals = true, 0
	if !c.met[node] {
		c.met[node] = true
		c.act(doKeep, "", 0, netip.Addr{})
	}
	same := p.report != nil && p.status == Met && maps.EqualFunc(p.report.Pods, w.Pods, Pod.equal) && p.report.Tunnel == w.Tunnel && slices.Equal(p.report.LAN, w.LAN)
	p.report, p.reportConn = w, conn
	c.become(node, p, Met)
	if !same {
		c.changed[node] = true
	}
}

// tunnel is where a device takes encrypted packets. Of two that send the same key it is the first
// one's: the second sender can't have it, and would have the other's packets go nowhere.
func (c *core) tunnel(node string) Tunnel {
	p := c.peers[node]
	if p == nil || p.report == nil {
		return Tunnel{}
	}
	if owner := c.owners[p.report.Tunnel.Key]; owner != "" && owner != node {
		return Tunnel{}
	}
	return p.report.Tunnel
}

// own notes which device had a key first. A device has one: with another it gives the first one up.
func (c *core) own(node string, key [32]byte) {
	changed := false
	for k, owner := range c.owners {
		if owner == node && k != key {
			delete(c.owners, k)
			changed = true
		}
	}
	if key != ([32]byte{}) && c.owners[key] == "" {
		c.owners[key] = node
		changed = true
	}
	if changed {
		c.act(doKeep, "", 0, netip.Addr{})
	}
}

// closed notes the end of a connection. One that was good is dialled again at once, and whether the
// device is alive is asked. A refused one is no connection that ended: the pause grows, whatever
// else happens on the LAN.
func (c *core) closed(now time.Time, node string, conn uint64) {
	p := c.peers[node]
	if p == nil || p.conn != conn {
		return
	}
	p.conn = 0
	switch {
	case p.reported && now.Sub(p.began) >= steady:
		p.dial, p.pause, p.ask, p.short = now, dialMin, now, 0
	case p.reported:
		p.short++
		p.dial, p.ask = now.Add(p.pause), now
		most := dialMax
		if p.refuses() {
			most = refusedMax
		}
		p.pause = min(2*p.pause, most)
	default:
		p.refusals++
		p.dial = now.Add(p.pause)
		p.pause = min(2*p.pause, refusedMax)
	}
}

// answered processes the result of a probe of a peer's kernel.
func (c *core) answered(now time.Time, node string, yes bool) {
	p := c.peers[node]
	if p == nil || !p.asking {
		return
	}
	p.asking, p.unasked = false, 0
	if p.status != Met && p.status != Mute {
		return
	}
	if p.conn != 0 && now.Sub(p.lastSeen) < suspicion {
		p.ask = p.lastSeen.Add(suspicion) // a heartbeat was faster
		return
	}
	if yes {
		p.failures = 0
		p.ask = now.Add(muteAsk)
		if p.conn == 0 && p.status == Met {
			p.muteTill = now.Add(muteHold)
			c.become(node, p, Mute)
		}
		return
	}
	p.failures++
	if p.status == Mute && p.failures < muteFailures {
		p.ask = now
		return
	}
	c.become(node, p, Dead)
}

// unasked notes that a question to a peer's kernel could not be put, which is no news of the
// peer.
func (c *core) unasked(now time.Time, node string) {
	p := c.peers[node]
	if p == nil || !p.asking {
		return
	}
	if p.unasked++; p.unasked >= unaskedMost {
		c.answered(now, node, false)
		return
	}
	p.asking, p.ask = false, now.Add(unaskedPause)
}

// cut notes that this device itself has lost the carrier on the way to a peer.
func (c *core) cut(node string) {
	if p := c.peers[node]; p != nil {
		c.become(node, p, Dead)
	}
}

// uncut notes that the carrier is back: a device that was never met is unknown again.
func (c *core) uncut(now time.Time, node string) {
	p := c.peers[node]
	if p == nil || p.status != Dead {
		return
	}
	if !c.met[node] {
		c.become(node, p, Unmet)
	}
	c.seen(now, node)
}

// restore takes the state from before edgecore was started again, in the same boot: it holds as
// that of a mute device until there is a connection.
func (c *core) restore(now time.Time, node string, w *Report, at netip.Addr) {
	p := c.peers[node]
	if p == nil || p.status == Met || !c.met[node] {
		return
	}
	p.report, p.at, p.status, p.muteTill, p.ask = w, at, Mute, now.Add(muteHold), now.Add(idle)
	c.changed[node] = true
}

// seen records that a device may be back, by its beacon or because of a new network.
func (c *core) seen(now time.Time, node string) {
	if p := c.peers[node]; p != nil && p.conn == 0 && c.dials(node) && !p.refuses() {
		p.pause = dialMin
		if p.dial.After(now.Add(dialMin)) {
			p.dial = now.Add(dialMin)
		}
	}
}

// tick performs due actions.
func (c *core) tick(now time.Time) {
	for node, p := range c.peers {
		if !p.ask.IsZero() && !p.asking && !now.Before(p.ask) && (p.status == Met || p.status == Mute) {
			if p.at.IsValid() {
				p.asking, p.ask = true, time.Time{}
				c.act(doAsk, node, 0, p.at)
			}
		}
		if p.status == Mute && !p.muteTill.IsZero() && !now.Before(p.muteTill) {
			p.muteTill = time.Time{} // it stays mute, and its report holds no longer
			c.changed[node] = true
		}
		if p.conn == 0 && c.dials(node) && !now.Before(p.dial) {
			p.dial = now.Add(p.pause)
			if !p.refuses() {
				p.pause = min(2*p.pause, dialMax)
			}
			c.act(doDial, node, 0, netip.Addr{})
		}
	}
}

// next is when tick is due; zero: by an event only.
func (c *core) next() (at time.Time) {
	earlier := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for node, p := range c.peers {
		if !p.asking && (p.status == Met || p.status == Mute) {
			earlier(p.ask)
		}
		if p.status == Mute {
			earlier(p.muteTill)
		}
		if p.conn == 0 && c.dials(node) {
			earlier(p.dial)
		}
	}
	return at
}

// refuses reports whether the peer ends this device's connections: a beacon then is no reason to
// dial sooner.
func (p *peer) refuses() bool { return p.refusals > 0 || p.short > shortMost }

// holds reports whether a device's last report still counts.
func (p *peer) holds() bool {
	return p.report != nil && (p.status == Met || p.status == Mute && !p.muteTill.IsZero())
}

// missing reports whether a device of the site is not connected.
func (c *core) missing() bool {
	for _, p := range c.peers {
		if p.conn == 0 {
			return true
		}
	}
	return false
}
