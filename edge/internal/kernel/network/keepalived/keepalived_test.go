package keepalived_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// The test's own binary is also the node: a process of its own in a network namespace, so that
// it can be killed.
const nodeEnv = "KEEPALIVED_TEST_NODE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(nodeEnv); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type order struct {
	Apply []keepalived.Instance
	Ready map[string]bool
	Clear bool
}

type word struct {
	Answer bool
	Err    string
	// Problems are those of skipped instances.
	Problems map[string]string
	States   map[string]keepalived.State
}

// serve is the node: orders on its standard input, words on its output. It ends with its
// input, gracefully.
func serve(dir string) error {
	d := keepalived.New(keepalived.Config{Dir: dir, Extra: os.Getenv("KEEPALIVED_TEST_EXTRA")})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(w word) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(w)
	}
	go func() {
		for range d.Changed() {
			say(word{States: d.States()})
		}
	}()
	in := json.NewDecoder(os.Stdin)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			break
		}
		var errs []error
		for name, ready := range o.Ready {
			errs = append(errs, d.SetReady(name, ready))
		}
		if o.Apply != nil {
			errs = append(errs, d.Apply(ctx, o.Apply), d.ExtraProblem())
		}
		if o.Clear { // of a process that runs no Daemon
			errs = append(errs, keepalived.New(keepalived.Config{Dir: dir}).Clear(ctx))
		}
		w := word{Answer: true}
		if err := errors.Join(errs...); err != nil {
			w.Err = err.Error()
		}
		for name, err := range d.Problems() {
			if w.Problems == nil {
				w.Problems = map[string]string{}
			}
			w.Problems[name] = err.Error()
		}
		say(w)
	}
	stop()
	return <-done
}

// node is a node as the test sees it.
type node struct {
	t     *testing.T
	host  *lantest.Host
	dir   string
	extra string

	cmd      *exec.Cmd
	problems map[string]string // with the last answer
	stdin    io.WriteCloser
	answers  chan word
	mu       sync.Mutex
	states   map[string]keepalived.State
}

func newNode(t *testing.T, l *lantest.LAN, address string) *node {
	t.Helper()
	if _, err := exec.LookPath("keepalived"); err != nil {
		t.Skip("needs keepalived")
	}
	n := &node{t: t, host: l.Host(address), dir: t.TempDir()}
	n.extra = filepath.Join(t.TempDir(), "extra.conf")
	n.start()
	t.Cleanup(func() {
		n.stop()
		n.killKeepalived("keepalived.pid", "vrrp.pid")
	})
	return n
}

func (n *node) start() {
	n.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd = n.host.Command(context.Background(), exe)
	n.cmd.Env = append(os.Environ(), nodeEnv+"="+n.dir, "KEEPALIVED_TEST_EXTRA="+n.extra)
	n.cmd.Stderr = os.Stderr
	if !testing.Verbose() {
		n.cmd.Stderr = nil
	}
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.answers = make(chan word, 1)
	n.mu.Lock()
	n.states = nil
	n.mu.Unlock()
	answers := n.answers
	go func() {
		defer close(answers)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var w word
			if json.Unmarshal(lines.Bytes(), &w) != nil {
				continue
			}
			if w.Answer {
				answers <- w
				continue
			}
			n.mu.Lock()
			n.states = w.States
			n.mu.Unlock()
		}
	}()
}

// stop ends the node as systemd would.
func (n *node) stop() {
	if n.cmd == nil {
		return
	}
	n.stdin.Close()
	_ = n.cmd.Wait()
	n.cmd = nil
}

// kill ends the node's process, and leaves keepalived alone.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.cmd = nil
}

func (n *node) killKeepalived(files ...string) {
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(n.dir, f))
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func (n *node) order(o order) string {
	n.t.Helper()
	if err := json.NewEncoder(n.stdin).Encode(o); err != nil {
		n.t.Fatal(err)
	}
	w, ok := <-n.answers
	if !ok {
		n.t.Fatal("the node has ended")
	}
	n.problems = w.Problems
	return w.Err
}

func (n *node) apply(instances ...keepalived.Instance) {
	n.t.Helper()
	if instances == nil {
		instances = []keepalived.Instance{}
	}
	if err := n.order(order{Apply: instances}); err != "" {
		n.t.Fatal(err)
	}
}

func (n *node) ready(name string, ready bool) {
	n.t.Helper()
	if err := n.order(order{Ready: map[string]bool{name: ready}}); err != "" {
		n.t.Fatal(err)
	}
}

func (n *node) state(name string) keepalived.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[name]
}

const vip = "10.77.0.100"

func instance(name, address string, vrid, priority uint8) keepalived.Instance {
	return keepalived.Instance{
		Name: name, Interface: lantest.Interface, VRID: vrid, Priority: priority, Advert: 200 * time.Millisecond, Address: netip.MustParseAddr(address),
	}
}

// pair is two nodes with one address; the first has the higher priority and holds it.
func pair(t *testing.T) (l *lantest.LAN, a, b *node) {
	l = lantest.New(t)
	a, b = newNode(t, l, "10.77.0.1/24"), newNode(t, l, "10.77.0.2/24")
	a.ready("web", true)
	a.apply(instance("web", vip, 51, 200))
	holds(t, a)
	b.ready("web", true)
	b.apply(instance("web", vip, 51, 190))
	poll.True(t, "the second is a backup", func() bool { return b.state("web") == keepalived.Backup })
	return l, a, b
}

// holds waits until the first has the address and the others don't.
func holds(t *testing.T, n *node, others ...*node) {
	t.Helper()
	poll.True(t, n.host.NS+" holds the address alone", func() bool {
		for _, o := range others {
			if o.host.Has(vip) {
				return false
			}
		}
		return n.host.Has(vip)
	})
}

func TestElection_readinessByTrackedFile(t *testing.T) {
	_, a, b := pair(t)
	poll.True(t, "both know what they are", func() bool { return a.state("web") == keepalived.Master && b.state("web") == keepalived.Backup })
	a.ready("web", false)
	holds(t, b, a)
	poll.True(t, "a is in fault", func() bool { return a.state("web") == keepalived.Fault })
	a.ready("web", true)
	poll.True(t, "a is a backup", func() bool { return a.state("web") == keepalived.Backup })
	holds(t, b, a) // it does not take it back
	b.ready("web", false)
	holds(t, a, b)
}

func TestElection_neverReadyIsNoCandidate(t *testing.T) {
	l := lantest.New(t)
	a := newNode(t, l, "10.77.0.1/24")
	a.apply(instance("web", vip, 51, 200))
	poll.True(t, "it is in fault", func() bool { return a.state("web") == keepalived.Fault })
	if a.host.Has(vip) {
		t.Error("it has the address")
	}
}

// A reload with instances added, removed or unchanged moves no address.
func TestReload_noFlap(t *testing.T) {
	_, a, b := pair(t)
	watch := a.host.Command(t.Context(), "ip", "-o", "monitor", "address")
	var seen strings.Builder
	watch.Stdout = &seen
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	web := instance("web", vip, 51, 200)
	a.ready("second", true)
	a.apply(web, instance("second", "10.77.0.101", 52, 200))
	poll.True(t, "the second is there", func() bool { return a.host.Has("10.77.0.101") })
	a.apply(web)
	poll.True(t, "the second is gone", func() bool { return !a.host.Has("10.77.0.101") })
	a.apply(web)
	web.Priority = 180
	a.apply(web) // a lower priority is no reason to lose it
	a.ready("third", true)
	a.apply(web, instance("third", "10.77.0.103", 53, 200))
	poll.True(t, "the third is there", func() bool { return a.host.Has("10.77.0.103") })
	_ = watch.Process.Kill()
	_ = watch.Wait()
	if strings.Contains(seen.String(), " "+vip+"/") {
		t.Errorf("the first address was touched:\n%s", seen.String())
	}
	holds(t, a, b)
}

// One instance that keepalived can't hold is skipped and reported; the others are held as if it did
// not exist. As a whole, keepalived would refuse such a configuration.
func TestTraps_01_OneBadInstanceIsLeftOut(t *testing.T) {
	_, a, b := pair(t)
	web := instance("web", vip, 51, 200)
	bad := map[string]keepalived.Instance{
		"missing interface": {Name: "bad", Interface: "eth99", VRID: 9, Priority: 100, Advert: time.Second, Address: netip.MustParseAddr("10.77.0.9")},
		"VRID 0":            {Name: "bad", Interface: lantest.Interface, Priority: 100, Advert: time.Second, Address: netip.MustParseAddr("10.77.0.9")},
		"the same VRID":     instance("bad", "10.77.0.9", 51, 100),
	}
	for name, bad := range bad {
		if err := a.order(order{Apply: []keepalived.Instance{web, bad}}); err != "" {
			t.Errorf("%s: all are refused: %s", name, err)
		}
		if a.problems["bad"] == "" || len(a.problems) != 1 {
			t.Errorf("%s: problems: %v", name, a.problems)
		}
	}
	holds(t, a, b)
	// The same from the start, as after a reboot: no configuration is active yet.
	a.stop()
	a.start()
	a.ready("web", true)
	other := bad["missing interface"]
	other.Name = "other"
	if err := a.order(order{Apply: []keepalived.Instance{other, web, instance("zclash", "10.77.0.9", 51, 100)}}); err != "" {
		t.Errorf("all are refused: %s", err)
	}
	if a.problems["other"] == "" || a.problems["zclash"] == "" || len(a.problems) != 2 {
		t.Errorf("problems: %v", a.problems)
	}
	b.stop()
	poll.True(t, "the good one is held", func() bool { return a.host.Has(vip) })
}

// TestClaims_16_CopiesOfPasswordsAreRootsAlone: the operator's sections may have an auth_pass, and
// their file be readable for root alone; so is whatever is made of them.
func TestClaims_16_CopiesOfPasswordsAreRootsAlone(t *testing.T) {
	_, a, _ := pair(t)
	const password = "s3cr3t77"
	own := "vrrp_instance mine {\n state BACKUP\n interface lan0\n virtual_router_id 9\n priority 50\n version 2\n" +
		" authentication {\n auth_type PASS\n auth_pass " + password + "\n }\n virtual_ipaddress {\n 10.77.0.50/24\n }\n}\n"
	if err := os.WriteFile(a.extra, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	a.apply(instance("web", vip, 51, 200))
	poll.True(t, "the user's address is there", func() bool { return a.host.Has("10.77.0.50") })
	copies := 0
	if err := filepath.WalkDir(a.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(raw, []byte(password)) {
			return err
		}
		copies++
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the password and mode %v", filepath.Base(path), info.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if copies == 0 {
		t.Error("no file has the password: this test looks at nothing")
	}
}

func TestExtra_userSections(t *testing.T) {
	_, a, _ := pair(t)
	web := instance("web", vip, 51, 200)
	write := func(s string) {
		if err := os.WriteFile(a.extra, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const own = "vrrp_instance mine {\n state BACKUP\n interface lan0\n virtual_router_id 9\n priority 50\n advert_int 0.2\n virtual_ipaddress {\n 10.77.0.50/24\n }\n}\n"
	write(own)
	a.apply(web)
	poll.True(t, "the user's address is there", func() bool { return a.host.Has("10.77.0.50") })
	write("vrrp_instance mine {\n interface nonsense\n")
	second := instance("second", "10.77.0.101", 52, 200)
	a.ready("second", true)
	if err := a.order(order{Apply: []keepalived.Instance{web, second}}); !strings.Contains(err, a.extra) {
		t.Errorf("the error does not name the file: %q", err)
	}
	poll.True(t, "the second is there", func() bool { return a.host.Has("10.77.0.101") })
	if !a.host.Has("10.77.0.50") || !a.host.Has(vip) {
		t.Error("a mistake in the user's sections took addresses away")
	}
	write(own)
	a.apply(web)
	poll.True(t, "the second is gone", func() bool { return !a.host.Has("10.77.0.101") })
	a.apply()
	poll.True(t, "ours is gone", func() bool { return !a.host.Has(vip) })
	if !a.host.Has("10.77.0.50") {
		t.Error("the user's address went with our last one")
	}
	if err := os.Remove(a.extra); err != nil {
		t.Fatal(err)
	}
	a.apply()
	poll.True(t, "nothing runs", func() bool { return !a.host.Has("10.77.0.50") })
}

// Scenario 16.
func TestVIPs_16_GracefulStopLeavesNoStaleAddress(t *testing.T) {
	_, a, b := pair(t)
	a.stop()
	if a.host.Has(vip) {
		t.Error("the address is still on the node that was stopped")
	}
	holds(t, b, a)
}

// Scenario 17, keepalived's part: parent and child, each alone and both.
func TestVIPs_17_KeepalivedKilledRecovers(t *testing.T) {
	for name, files := range map[string][]string{"both": {"keepalived.pid", "vrrp.pid"}, "the parent": {"keepalived.pid"}, "the child": {"vrrp.pid"}} {
		t.Run(name, func(t *testing.T) {
			_, a, b := pair(t)
			before, err := os.ReadFile(filepath.Join(a.dir, "vrrp.pid"))
			if err != nil {
				t.Fatal(err)
			}
			a.killKeepalived(files...)
			poll.True(t, "keepalived runs again", func() bool {
				now, err := os.ReadFile(filepath.Join(a.dir, "vrrp.pid"))
				return err == nil && len(now) > 0 && string(now) != string(before)
			})
			poll.True(t, "there is one holder", func() bool { return a.host.Has(vip) != b.host.Has(vip) })
			b.ready("web", false)
			holds(t, a, b)
		})
	}
}

// Scenario 17, the supervisor's part: it is killed, keepalived keeps running, and the next one
// takes it over without a flap.
func TestVIPs_17_SupervisorKilledAdoptsKeepalived(t *testing.T) {
	_, a, b := pair(t)
	pid, err := os.ReadFile(filepath.Join(a.dir, "keepalived.pid"))
	if err != nil {
		t.Fatal(err)
	}
	a.kill()
	if !a.host.Has(vip) {
		t.Fatal("the address went with the supervisor")
	}
	a.start()
	a.apply(instance("web", vip, 51, 200))
	poll.True(t, "it knows its state", func() bool { return a.state("web") == keepalived.Master })
	if now, _ := os.ReadFile(filepath.Join(a.dir, "keepalived.pid")); string(now) != string(pid) {
		t.Errorf("keepalived was restarted: pid %s, then %s", pid, now)
	}
	holds(t, a, b)
	a.ready("web", false)
	holds(t, b, a)
	a.ready("web", true)

	// Both are killed: the next supervisor removes the leftovers.
	b.ready("web", false)
	holds(t, a, b)
	a.kill()
	a.killKeepalived("keepalived.pid", "vrrp.pid")
	if !a.host.Has(vip) {
		t.Fatal("a killed keepalived removed its address: this test shows nothing")
	}
	b.ready("web", true)
	poll.True(t, "the other takes over", func() bool { return b.host.Has(vip) })
	a.start()
	a.apply(instance("web", vip, 51, 200))
	holds(t, b, a)
}

// A device that leaves the cluster releases its addresses, regardless of the state of its last
// edgecore.
func TestClear(t *testing.T) {
	for name, files := range map[string][]string{"keepalived lives": nil, "keepalived was killed": {"keepalived.pid", "vrrp.pid"}} {
		t.Run(name, func(t *testing.T) {
			_, a, b := pair(t)
			a.kill()
			b.ready("web", false)
			a.killKeepalived(files...)
			if !a.host.Has(vip) {
				t.Fatal("the address has gone already: this test shows nothing")
			}
			b.ready("web", true)
			a.start()
			for range 2 { // it can be repeated
				if err := a.order(order{Clear: true}); err != "" {
					t.Fatal(err)
				}
				if a.host.Has(vip) {
					t.Error("the address is still there")
				}
			}
			holds(t, b, a)
		})
	}
}

// A pid file of a keepalived that is gone, or of another process, does not prevent a start.
func TestStart_stalePIDFiles(t *testing.T) {
	l := lantest.New(t)
	a := newNode(t, l, "10.77.0.1/24")
	for _, f := range []string{"keepalived.pid", "vrrp.pid"} {
		if err := os.WriteFile(filepath.Join(a.dir, f), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a.ready("web", true)
	a.apply(instance("web", vip, 51, 200))
	holds(t, a)
}

// Every instance of IPv6 needs no more than its address.
func TestElection_IPv6(t *testing.T) {
	l := lantest.New(t)
	a, b := newNode(t, l, "2001:db8::1/64"), newNode(t, l, "2001:db8::2/64")
	for n, priority := range map[*node]uint8{a: 200, b: 190} {
		n.ready("six", true)
		n.apply(instance("six", "2001:db8::100", 51, priority))
	}
	poll.True(t, "one holds it", func() bool { return a.host.Has("2001:db8::100") != b.host.Has("2001:db8::100") })
	first, second := a, b
	if b.host.Has("2001:db8::100") {
		first, second = b, a
	}
	first.ready("six", false)
	poll.True(t, "the other holds it", func() bool { return second.host.Has("2001:db8::100") && !first.host.Has("2001:db8::100") })
}
