package vip_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

// traffic is a client that connects all the while, one connection after the other, and counts.
type traffic struct {
	mu        sync.Mutex
	asked     int
	lost      int
	outcomes  []outcome
	longest   time.Duration // between two answers
	last      time.Time
	stop      chan struct{}
	done      chan struct{}
	lastWords string
}

// outcome is the result of one connection.
type outcome struct {
	word string
	err  error
}

// send begins to ask every 20 ms, each with little patience, so that lost requests are counted and
// not waited for.
func (s *system) send() *traffic { return s.sendEvery(200 * time.Millisecond) }

// sendPatiently is send for tests that must not lose a request: each one has a long timeout, also
// on a busy machine.
func (s *system) sendPatiently() *traffic { return s.sendEvery(patience) }

func (s *system) sendEvery(wait time.Duration) *traffic {
	tr := &traffic{last: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	pause := 20 * time.Millisecond
	if inGuest() {
		pause *= 10
	}
	go func() {
		defer close(tr.done)
		for {
			select {
			case <-tr.stop:
				return
			case <-time.After(pause):
			}
			word, _, err := s.client.Ask("tcp", theVIP+":80", wait)
			tr.mu.Lock()
			tr.asked++
			tr.outcomes = append(tr.outcomes, outcome{word, err})
			if err != nil {
				tr.lost++
			} else {
				tr.longest = max(tr.longest, time.Since(tr.last))
				tr.last, tr.lastWords = time.Now(), word
			}
			tr.mu.Unlock()
		}
	}()
	return tr
}

// reaches waits until a node answers it.
func (tr *traffic) reaches(t testing.TB, n *node) {
	t.Helper()
	poll.True(t, n.name+" answers", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return strings.HasPrefix(tr.lastWords, n.name)
	})
}

// end reports the losses. Times on a loaded machine are only logged; the test checks that service
// is restored.
func (tr *traffic) end(t testing.TB, what string) (asked, lost int) {
	t.Helper()
	close(tr.stop)
	<-tr.done
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t.Logf("%s: %d connections, %d lost, none answered for %v at most", what, tr.asked, tr.lost, tr.longest.Round(10*time.Millisecond))
	for i, o := range tr.outcomes {
		if o.err != nil {
			t.Logf("lost: connection %d: %v", i+1, o.err)
		}
	}
	return tr.asked, tr.lost
}

// openAtTheMove counts the lost connections, 0 or 1, that were open when the address moved: the
// last answer before it is from's, the next one to's, and it was reset. Connections that are
// refused before they are open, or never answered, don't count. It is called after end.
func (tr *traffic) openAtTheMove(from, to *node) int {
	for i, o := range tr.outcomes {
		if isReset(o.err) && (i == 0 || strings.HasPrefix(tr.outcomes[i-1].word, from.name)) &&
			i+1 < len(tr.outcomes) && strings.HasPrefix(tr.outcomes[i+1].word, to.name) {
			return 1
		}
	}
	return 0
}

// isReset reports whether an open connection was reset. One that is not open yet is refused:
// ECONNREFUSED (tcp_reset in net/ipv4/tcp_input.c).
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func TestVIPs_14_OneHolderWithTheHighestPriority(t *testing.T) {
	s := newSystem(t, 3)
	v := s.vip()
	v.Spec.Elected = false
	s.give(v)
	// It may have been later than others: the highest priority takes the address from them while
	// the first election lasts, 15 s, of which that takes up to 4. On a machine so busy that the
	// others' election took most of them the test tries again.
	for round := 1; ; round++ {
		began := time.Now()
		s.start()
		if s.one().name == "a" {
			break
		}
		if inTime := time.Since(began) < 8*time.Second; inTime || round == 5 {
			poll.True(t, "the highest priority holds it", func() bool { h := s.holders(); return len(h) == 1 && h[0].name == "a" })
			break
		}
		for _, n := range s.nodes {
			n.stop()
		}
	}
	for _, n := range s.nodes[1:] {
		poll.True(t, n.name+" is a backup", func() bool { return n.report(theVIP).State == v1alpha1.VIPBackup })
	}
}

func TestVIPs_15_HolderPoweredOffAnotherTakesOver(t *testing.T) {
	sideBySide(t)
	for name, advert := range map[string]time.Duration{"every second": time.Second, "five a second": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			sideBySide(t)
			s := newSystem(t, 2)
			v := s.vip()
			v.Spec.AdvertisementInterval = metav1.Duration{Duration: advert}
			s.give(v)
			s.start()
			h := s.one()
			tr := s.send()
			// At once and without a word, as by the mains switch.
			h.host.Plug(false)
			h.kill()
			h.killKeepalived()
			o := s.other(h)
			tr.reaches(t, o)
			tr.end(t, "power lost")
		})
	}
}

func TestVIPs_16_GracefulStopLeavesNoStaleAddress(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	tr := s.send()
	h.stop()
	if h.has(theVIP) {
		t.Error("the address is still there")
	}
	o := s.other(h)
	tr.reaches(t, o)
	s.one()
	tr.end(t, "graceful stop")
}

func TestVIPs_17_AgentKilledRecovers(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	h.kill()
	if word, _, err := s.client.Ask("tcp", theVIP+":80", patience); err != nil || !strings.HasPrefix(word, h.name) {
		t.Errorf("without its agent the node serves no more: %q, %v", word, err)
	}
	h.start()
	if again := s.one(); again != h {
		t.Errorf("it moved to %s", again.name)
	}
	// Both at once, and the agent restarts with the state left behind.
	h.kill()
	h.killKeepalived()
	o := s.other(h)
	poll.True(t, "the other holds it", func() bool { return o.has(theVIP) })
	h.start()
	if again := s.one(); again != o {
		t.Errorf("%s holds it, want the other", again.name)
	}
}

func TestVIPs_18_LastLocalPodUnreadyMovesTheAddress(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	tr := s.send()
	p := pod(h.name+"1", h.name, fmt.Sprintf("10.244.%d.2", h.octet))
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	h.api.put(p)
	o := s.other(h)
	poll.True(t, "the other holds it", func() bool { return o.has(theVIP) && !h.has(theVIP) })
	tr.reaches(t, o)
	s.one()
	tr.end(t, "last pod unready")
	poll.True(t, "the node says so", func() bool { return h.report(theVIP).State == v1alpha1.VIPNotReady })

	// No node has a ready pod: no node has the address.
	o.api.remove(pod(o.name+"1", o.name))
	poll.True(t, "no node holds it", func() bool { return len(s.holders()) == 0 })
	h.api.put(pod(h.name+"1", h.name, fmt.Sprintf("10.244.%d.2", h.octet)))
	if again := s.one(); again != h {
		t.Errorf("%s holds it", again.name)
	}
}

func TestVIPs_19_DataPlaneFollowsANewPodAddress(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 1)
	s.give(s.vip())
	s.start()
	h := s.one()
	s.nodes[0].api.put(h.newPod())
	h.api.remove(pod("a1", "a"))
	for _, at := range []struct{ network, port string }{{"tcp", ":80"}, {"udp", ":53"}} {
		poll.True(t, "the new pod alone serves "+at.network, func() bool {
			for range 4 { // one of them would meet the old one, which answers still
				if word, _, err := s.client.Ask(at.network, theVIP+at.port, patience); err != nil || word != "a2" {
					return false
				}
			}
			return true
		})
	}
}

// Scenario 21: all nodes lose power, and come back without the cloud. Their stores still call the
// old containers ready.
func TestVIPs_21_PoolRebootsOfflineAndServes(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	s.one()
	for _, n := range s.nodes {
		n.kill()
		n.killKeepalived()
		n.host.Shell("ip addr del " + theVIP + "/32 dev lan0 2>/dev/null; for t in nat filter mangle; do iptables -t $t -F; iptables -t $t -X; done; " +
			"if [ -e /proc/net/ip_vs ]; then ipvsadm -C; fi")
		if err := os.RemoveAll(filepath.Join(n.dir, "run")); err != nil {
			t.Fatal(err)
		}
		n.boot++
		// As the store has it: started before this boot.
		old := pod(n.name+"1", n.name, fmt.Sprintf("10.244.%d.2", n.octet))
		old.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-24 * time.Hour))}
		n.api.put(old)
	}
	s.start()
	for _, n := range s.nodes {
		poll.True(t, n.name+" waits for its kubelet", func() bool { return n.report(theVIP).State == v1alpha1.VIPNotReady })
	}
	if len(s.holders()) != 0 {
		t.Error("a node holds the address with pods of an earlier boot")
	}
	for _, n := range s.nodes {
		p := n.newPod()
		p.Name = n.name + "1"
		p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.Now()}
		n.api.put(p)
	}
	s.one()
}

func TestVIPs_22_CarrierLostMovesTheAddress(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	tr := s.send()
	h.host.Plug(false)
	o := s.other(h)
	tr.reaches(t, o)
	tr.end(t, "carrier lost")
	poll.True(t, "the node says that it can't take part", func() bool { return h.report(theVIP).State == v1alpha1.VIPFault })
	h.host.Plug(true)
	poll.True(t, "it is a backup", func() bool { return h.report(theVIP).State == v1alpha1.VIPBackup })
	s.one()
}

func TestVIPs_23_PartitionHealsToOneHolder(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	h.host.Isolate(true)
	o := s.other(h)
	poll.True(t, "each part has a holder", func() bool { return h.has(theVIP) && o.has(theVIP) })
	h.host.Isolate(false)
	poll.True(t, "one holder is left", func() bool { return len(s.holders()) == 1 })
	// It announces itself: the client, which may have the other in its table, reaches it.
	s.one()
}

func TestVIPs_24_OldHolderReturnsWithoutFailback(t *testing.T) {
	sideBySide(t)
	for name, preferred := range map[string]bool{"no preference": false, "preferred": true} {
		t.Run(name, func(t *testing.T) {
			sideBySide(t)
			s := newSystem(t, 2)
			v := s.vip()
			if preferred {
				v.Spec.PreferredNode = "a"
			}
			s.give(v)
			s.nodes[0].start()
			s.one()
			s.nodes[1].start()
			poll.True(t, "b is a backup", func() bool { return s.nodes[1].report(theVIP).State == v1alpha1.VIPBackup })
			s.nodes[0].stop()
			poll.True(t, "b holds it", func() bool { return s.nodes[1].has(theVIP) })
			tr := s.send()
			s.nodes[0].start()
			if preferred {
				poll.True(t, "a takes it back", func() bool { return s.nodes[0].has(theVIP) && !s.nodes[1].has(theVIP) })
			} else {
				poll.True(t, "a is a backup", func() bool { return s.nodes[0].report(theVIP).State == v1alpha1.VIPBackup })
				if !s.nodes[1].has(theVIP) {
					t.Error("it went back")
				}
			}
			s.one()
			tr.end(t, "the old holder returns")
		})
	}
}

// Scenario 25, the node's part: deleted addresses are dropped, confirmed and forgotten; changed
// ones are updated; foreign state stays.
func TestVIPs_25_DroppedAndConfirmed(t *testing.T) {
	sideBySide(t)
	s := newSystem(t, 2)
	n := s.nodes[0]
	n.host.Shell("iptables -t nat -N OTHERS; iptables -t nat -A PREROUTING -j OTHERS; ip addr add 10.79.0.50/32 dev lan0")
	const look = "for t in nat filter mangle; do iptables-save -t $t; done | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'; ip -o -4 addr show dev lan0 | cut -c1-60"
	before := n.host.Shell(look)
	v := s.vip()
	s.give(v)
	s.start()
	s.one()
	if _, seen, err := s.client.Ask("udp", theVIP+":53", patience); err != nil || seen == "10.79.0.200" {
		t.Errorf("UDP: %q, %v", seen, err)
	}
	if _, _, err := s.client.Ask("tcp", theVIP+":81", patience); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port that is not served: %v", err)
	}

	// Another port, and the clients' own addresses.
	w := v.DeepCopy()
	w.Spec.Ports[0].Port, w.Spec.KeepSource = 8000, true
	s.give(w)
	poll.True(t, "the new port is served and the old one closed", func() bool {
		_, seen, err := s.client.Ask("tcp", theVIP+":8000", patience)
		_, _, old := s.client.Ask("tcp", theVIP+":80", patience)
		return err == nil && seen == "10.79.0.200" && old != nil
	})

	now := metav1.Now()
	w.DeletionTimestamp, w.Finalizers = &now, []string{v1alpha1.VirtualIPFinalizer}
	s.give(w)
	for _, n := range s.nodes {
		poll.True(t, n.name+" confirms", func() bool { return n.report(theVIP).State == v1alpha1.VIPReleased })
		if n.has(theVIP) {
			t.Errorf("%s says that it dropped the address and has it", n.name)
		}
	}
	for _, n := range s.nodes {
		n.api.remove(w)
	}
	poll.True(t, "nothing of it is left", func() bool { return n.host.Shell(look) == before })
}

// Rule 8: maintenance hands over first.
func TestMaintenance(t *testing.T) {
	s := newSystem(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	tr := s.send()
	fmt.Fprintln(h.stdin, "on")
	o := s.other(h)
	poll.True(t, "the other holds it", func() bool { return o.has(theVIP) && !h.has(theVIP) })
	tr.reaches(t, o)
	s.one()
	tr.end(t, "maintenance")
	// It holds over a restart.
	h.stop()
	if err := os.Remove(filepath.Join(h.dir, "report-"+theVIP)); err != nil {
		t.Fatal(err)
	}
	h.start()
	poll.True(t, "the node says so", func() bool { return h.report(theVIP).Message == "the node is under maintenance" })
	fmt.Fprintln(h.stdin, "off")
	poll.True(t, "it is a backup", func() bool { return h.report(theVIP).State == v1alpha1.VIPBackup })
}

// Rule 5: while a host outside of the pool has the address, no node claims it; when that host
// leaves, it is claimed.
func TestDuplicateAddress(t *testing.T) {
	s := newSystem(t, 2)
	for _, n := range s.nodes {
		n.times.AskAgain = 4 * time.Second
	}
	stranger := s.lan.Host("10.79.0.150/24", theVIP+"/24")
	s.give(s.vip())
	s.start()
	mac := strings.Fields(stranger.Shell("ip -o link show dev lan0 2>/dev/null | sed 's/.*link.ether //'"))[0]
	for _, n := range s.nodes {
		poll.True(t, n.name+" tells who has the address", func() bool {
			e := n.report(theVIP)
			return e.State == v1alpha1.VIPFault && e.DuplicateOf == mac && strings.Contains(e.Message, mac)
		})
		if n.has(theVIP) {
			t.Errorf("%s claimed it all the same", n.name)
		}
	}
	// Its carrier is lost and restored; an agent restarts: it makes no difference.
	s.nodes[0].host.Plug(false)
	s.nodes[0].host.Plug(true)
	s.nodes[1].stop()
	if err := os.Remove(filepath.Join(s.nodes[1].dir, "report-"+theVIP)); err != nil {
		t.Fatal(err)
	}
	s.nodes[1].start()
	poll.True(t, "b asked again", func() bool { return s.nodes[1].report(theVIP).DuplicateOf == mac })
	if h := s.holders(); len(h) > 0 {
		t.Errorf("%s claimed it", h[0].name)
	}
	stranger.Shell("ip addr del " + theVIP + "/24 dev lan0")
	h := s.one()
	o := s.other(h)
	// A holder of ours is no conflict, whether it speaks every second or not.
	poll.True(t, o.name+" is a backup", func() bool { e := o.report(theVIP); return e.State == v1alpha1.VIPBackup && e.DuplicateOf == "" })
	o.stop()
	if err := os.Remove(filepath.Join(o.dir, "memory")); err != nil {
		t.Fatal(err)
	}
	o.start()
	poll.True(t, o.name+" is a backup again", func() bool { return o.report(theVIP).State == v1alpha1.VIPBackup })
	if now := s.one(); now != h {
		t.Errorf("it moved to %s", now.name)
	}
}
