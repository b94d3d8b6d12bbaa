package vip_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/logind/logindtest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// readyVIP is a VirtualIP whose nodes have all reported that they can take it.
func (s *system) readyVIP() *v1alpha1.VirtualIP {
	v := s.vip()
	for i := range v.Spec.Nodes {
		v.Spec.Nodes[i].Ready = true
	}
	return v
}

// Before a drain evicts, the address is at another node. An operator's maintenance remains when the
// drain is over.
func TestHandOver(t *testing.T) {
	s := newSystem(t, 2)
	s.give(s.readyVIP())
	s.start()
	h := s.one()
	o := s.other(h)
	handed := func(n *node) bool {
		_, err := os.Stat(filepath.Join(n.dir, "handed"))
		return err == nil
	}
	fmt.Fprintln(o.stdin, "handover")
	poll.True(t, "a node that holds nothing is done", func() bool { return handed(o) })
	fmt.Fprintln(o.stdin, "takepart")
	poll.True(t, "it is a backup again", func() bool { return o.report(theVIP).State == v1alpha1.VIPBackup })

	fmt.Fprintln(h.stdin, "handover")
	poll.True(t, "the holder is done", func() bool { return handed(h) })
	if h.has(theVIP) || !o.has(theVIP) {
		t.Errorf("when the hand-over had ended: the old holder has the address: %t, the other one: %t", h.has(theVIP), o.has(theVIP))
	}
	fmt.Fprintln(h.stdin, "on")
	fmt.Fprintln(h.stdin, "takepart")
	h.stop()
	if err := os.Remove(filepath.Join(h.dir, "report-"+theVIP)); err != nil {
		t.Fatal(err)
	}
	h.start()
	poll.True(t, "maintenance holds on", func() bool { return h.report(theVIP).Message == "the node is under maintenance" })
	fmt.Fprintln(h.stdin, "off")
	poll.True(t, "it is a backup", func() bool { return h.report(theVIP).State == v1alpha1.VIPBackup })
}

// A drain hands over only addresses that another node can hold: the last holder keeps its address
// until its pod goes, and hands it over as soon as another can take it. If another node's report
// that it could take it was wrong, the address returns.
func TestTraps_04_LastHolderKeepsItsAddress(t *testing.T) {
	s := newSystem(t, 2)
	h, o := s.nodes[0], s.nodes[1]
	o.api.remove(pod("b1", "b")) // no other node can hold it, or reports that
	v := s.vip()
	s.give(v)
	s.start()
	if s.one() != h {
		t.Fatal("the node without a pod holds it")
	}
	handed := func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "handed"))
		return err == nil
	}
	tr := s.sendPatiently() // no request may be lost; the response time depends on the machine
	fmt.Fprintln(h.stdin, "handover")
	poll.True(t, "the hand-over ends", handed)
	if !h.has(theVIP) {
		t.Error("the last holder gave the address up")
	}
	if _, lost := tr.end(t, "a drain of the last holder"); lost > 0 {
		t.Errorf("%d connections were lost", lost)
	}

	// Another node is reported as ready, and is not: it does not take the address, which returns.
	// The same if that is reported during the drain, after HandOver has ended,
	wrong := s.readyVIP()
	wrong.UID, wrong.Spec.VRID = v.UID, v.Spec.VRID
	comesBack := func(how string, do func()) {
		t.Helper()
		before := h.reported(theVIP, v1alpha1.VIPNotReady)
		do()
		poll.True(t, how+": it was handed over", func() bool { return h.reported(theVIP, v1alpha1.VIPNotReady) > before })
		if s.one() != h {
			t.Errorf("%s: it is not back", how)
		}
		if err := os.Remove(filepath.Join(h.dir, "handed")); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(h.stdin, "takepart")
		s.give(v)
	}
	comesBack("said in mid-drain", func() { s.give(wrong) })
	h.stop() // addresses that no other node took stay for some minutes: a fresh agent has no record of that
	h.start()
	if s.one() != h {
		t.Fatal("the node without a pod holds it")
	}
	// and when it was reported before.
	comesBack("said before the drain", func() {
		s.give(wrong)
		fmt.Fprintln(h.stdin, "handover")
		poll.True(t, "the hand-over ends", handed)
	})

	// The other becomes ready and reports it: the address moves there during the drain.
	fmt.Fprintln(h.stdin, "handover")
	o.api.put(pod("b1", "b", "10.244.2.2"))
	poll.True(t, "b is a backup", func() bool { return o.report(theVIP).State == v1alpha1.VIPBackup })
	if s.one() != h {
		t.Error("it went before the other node was known to be ready")
	}
	s.give(wrong)
	// Its pod ends first, before the time for which an untaken address stays.
	h.api.remove(pod("a1", "a"))
	poll.True(t, "the other holds it", func() bool { return o.has(theVIP) && !h.has(theVIP) })
}

// A plain `reboot`, the power button, an update: the shutdown waits, by a lock at
// systemd-logind, until the other node has the address; given up, the node takes part again. The
// last holder keeps its address, and delays nothing. The bus is a real dbus-daemon; logind is
// systemd's where the machine has it (logindtest).
func TestTraps_21_ShutdownHandsOver(t *testing.T) {
	s := newSystem(t, 2)
	h, o := s.nodes[0], s.nodes[1]
	l := logindtest.New(t, 50*time.Second)
	h.bus = l.Bus
	o.api.remove(pod("b1", "b")) // no other node can hold it yet
	v := s.vip()
	s.give(v)
	s.start()
	if s.one() != h {
		t.Fatal("the node without a pod holds it")
	}
	locked := func(n int) {
		t.Helper()
		poll.True(t, "the lock is held", func() bool { return len(l.Asked()) == n })
	}
	locked(1)
	l.Prepare(true)
	l.Wait()
	if !h.has(theVIP) {
		t.Error("the last holder gave the address up")
	}
	l.Prepare(false)
	locked(2)

	o.api.put(pod("b1", "b", "10.244.2.2"))
	poll.True(t, "b is a backup", func() bool { return o.report(theVIP).State == v1alpha1.VIPBackup })
	ready := s.readyVIP()
	ready.UID, ready.Spec.VRID = v.UID, v.Spec.VRID
	s.give(ready)
	// A node learns of that before or during the shutdown: either way the lock is held until it is
	// handed over.
	open, err := s.client.Dial("tcp", theVIP+":80", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	tr := s.sendPatiently()
	for n := 2; !o.has(theVIP); n++ {
		locked(n)
		l.Prepare(true)
		l.Wait()
		if h.has(theVIP) == o.has(theVIP) {
			t.Errorf("when the shutdown went on: the node had the address: %t, the other one: %t", h.has(theVIP), o.has(theVIP))
		}
		if !o.has(theVIP) {
			l.Prepare(false)
		}
	}
	tr.reaches(t, o)
	// An open connection is its pod's, which stays where it is. All others are answered.
	if _, lost := tr.end(t, "a shutdown of the holder"); lost > tr.openAtTheMove(h, o) {
		t.Errorf("%d connections were lost", lost)
	}
	poll.True(t, "the client of an open connection learns that it is over", func() bool {
		_, err := open.Write([]byte("?"))
		return isReset(err)
	})
	// No state of it survives the boot.
	h.kill()
	h.killKeepalived()
	l.Boot()
	h.boot++
	h.start()
	poll.True(t, "after the boot it is a backup", func() bool { return h.report(theVIP).State == v1alpha1.VIPBackup })
}

// Only that one connection counts as open at the move; a hand-over may lose no other.
func TestOpenAtTheMove(t *testing.T) {
	const reset, broken, refused, silent = syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED, syscall.ETIMEDOUT
	for name, c := range map[string]struct {
		outcomes []outcome
		want     int
	}{
		"none lost":                        {[]outcome{{"a1", nil}, {"b1", nil}}, 0},
		"reset at the move":                {[]outcome{{"a1", nil}, {"", reset}, {"b1", nil}}, 1},
		"broken at the move":               {[]outcome{{"a1", nil}, {"", broken}, {"b1", nil}}, 1},
		"the first":                        {[]outcome{{"", reset}, {"b1", nil}}, 1},
		"before the move":                  {[]outcome{{"a1", nil}, {"", reset}, {"a1", nil}, {"b1", nil}}, 0},
		"after the move":                   {[]outcome{{"a1", nil}, {"b1", nil}, {"", reset}, {"b1", nil}}, 0},
		"two at the move":                  {[]outcome{{"a1", nil}, {"", reset}, {"", reset}, {"b1", nil}}, 0},
		"refused at the move":              {[]outcome{{"a1", nil}, {"", refused}, {"b1", nil}}, 0},
		"never answered at the move":       {[]outcome{{"a1", nil}, {"", silent}, {"b1", nil}}, 0},
		"no answer of the new one follows": {[]outcome{{"a1", nil}, {"", reset}}, 0},
	} {
		if got := (&traffic{outcomes: c.outcomes}).openAtTheMove(&node{name: "a"}, &node{name: "b"}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A node confirms that it dropped an address once it has: keepalived may take its time.
func TestReleasedOnceDropped(t *testing.T) {
	s := newSystem(t, 2)
	v := s.vip()
	s.give(v)
	s.start()
	h := s.one()
	h.signalKeepalived(syscall.SIGSTOP) // it is not killed: its successor would clean up
	defer h.signalKeepalived(syscall.SIGCONT)
	now := metav1.Now()
	v.DeletionTimestamp, v.Finalizers = &now, []string{v1alpha1.VirtualIPFinalizer}
	s.give(v)
	poll.True(t, "the holder confirms", func() bool {
		had := h.has(theVIP) // before its word is read
		released := h.report(theVIP).State == v1alpha1.VIPReleased
		if released && h.has(theVIP) {
			t.Fatal("it says that it dropped the address and has it")
		}
		return released && !had
	})
}
