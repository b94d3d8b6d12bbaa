package podnet_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// place is a host with a device, and with a pod.
type place struct {
	t     *testing.T
	host  *lantest.Host
	pod   *lantest.Host
	podIP string
	order order
	in    io.WriteCloser
	wait  func() error
	mu    sync.Mutex
	now   says
	words []string
}

func (p *place) start() {
	p.t.Helper()
	cmd := p.host.Command(context.Background(), os.Args[0], "-test.run=^TestWireGuard$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), deviceEnv+"=1")
	var words bytes.Buffer // of the process: its test's output is on its standard output, between the conditions
	cmd.Stderr = &words
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	p.in, p.now, p.words = in, says{}, nil
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s says
			p.mu.Lock()
			if json.Unmarshal(lines.Bytes(), &s) == nil && s.Reason != "" {
				p.now = s
			} else {
				p.words = append(p.words, lines.Text())
			}
			p.mu.Unlock()
		}
	}()
	p.wait = sync.OnceValue(func() error {
		in.Close()
		<-done
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%s: %w: %s %s", p.order.Node, err, words.String(), strings.Join(p.words, "\n"))
		}
		return nil
	})
	p.t.Cleanup(p.stop)
	p.tell(p.order)
}

func (p *place) stop() {
	if err := p.wait(); err != nil {
		p.t.Error(err)
	}
}

func (p *place) tell(o order) {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) says(reason, word string) {
	p.t.Helper()
	poll.Eventually(p.t, fmt.Sprintf("%s to say %s: %s", p.order.Node, reason, word), func(context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.now.Reason != reason || !strings.Contains(p.now.Message, word) {
			return fmt.Errorf("it says %v", p.now)
		}
		return nil
	})
}

// key is the private key of the host's interface.
func (p *place) key() (k wgtypes.Key) {
	p.t.Helper()
	err := p.host.Do(func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		d, err := c.Device(wireguard.Interface)
		if err == nil {
			k = d.PrivateKey
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return k
}

func answers(t *testing.T, from *lantest.Host, to *place, seen string) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		poll.Eventually(t, "the pod of "+to.order.Node+" to answer", func(context.Context) error {
			word, as, err := from.Ask(network, to.podIP+":8080", 2*time.Second)
			if err == nil && (word != to.order.Node || as != seen) {
				err = fmt.Errorf("%s answers, and sees %s, want %s", word, as, seen)
			}
			return err
		})
	}
}

// Devices that share no network, with a router between them: their pods reach each other with their
// own addresses and with packets as large as the way's less WireGuard's, and the router can't read
// them. Keys come by the devices' own connection. A device takes from a peer only packets with an
// address of that peer's pods; a restart of edgecore keeps key and tunnels; a peer that leaves the
// site loses its tunnel. Two devices that share a network need no tunnel.
func TestWireGuard(t *testing.T) {
	if os.Getenv(deviceEnv) != "" {
		device(t, os.Stdin, os.Stdout)
		return
	}
	net1 := lantest.New(t)
	router := net1.Host("192.0.2.254/24")
	if err := router.Do(func() error {
		_, err := wireguard.New().Apply(wireguard.Config{Port: 1, MTU: 1400})
		return errors.Join(err, wireguard.New().Remove())
	}); errors.Is(err, wireguard.ErrUnsupported) {
		t.Skip("this kernel has no WireGuard; tests/vm runs this in one that has")
	} else if err != nil {
		t.Fatal(err)
	}
	authority := linktest.NewAuthority(t)
	a := &place{t: t, host: net1.Host("192.0.2.1/24")}
	near := &place{t: t, host: net1.Host("192.0.2.2/24")}
	far := &place{t: t, host: net1.Host()}
	for _, line := range []string{
		"ip link add far0 type veth peer name far0 netns " + far.host.NS, "ip link set far0 up", "ip address add 198.51.100.254/24 dev far0",
		"nft add table ip seen", "nft add chain ip seen by '{ type filter hook forward priority 0; }'",
		"nft add rule ip seen by ip daddr 10.91.0.0/16 counter", "nft add rule ip seen by udp dport 10553 counter", "nft add rule ip seen by ip frag-off '&' 0x3fff != 0 counter",
	} {
		router.Shell(line)
	}
	far.host.Shell("ip link set lan0 down; ip link set far0 up; ip address add 198.51.100.1/24 dev far0; ip route add default via 198.51.100.254; echo 1 > /proc/sys/net/ipv4/conf/far0/forwarding")
	members := &topicpb.Site{Name: "plant", PodNetwork: "Auto", PodSubnets: true}
	places := []*place{a, near, far}
	for i, p := range places {
		o := order{Node: []string{"edge-a", "edge-b", "edge-c"}[i], PodCIDR: fmt.Sprintf("10.91.%d.0/24", i), Dir: t.TempDir(), Authority: authority.Certificate.Raw}
		cert := authority.Node(t, o.Node)
		key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		o.Certificate, o.Key = cert.Certificate[0], key
		p.order = o
		p.podIP = fmt.Sprintf("10.91.%d.7", i)
		p.pod = p.host.Pod(netip.MustParseAddr(p.podIP))
		p.pod.Serve(8080, o.Node)
		at := []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"}[i]
		members.Members = append(members.Members, &topicpb.SiteMember{Node: o.Node, PodCidrs: []string{o.PodCIDR}, Addresses: []string{at}})
		if p != far {
			p.host.Shell("ip route add default via 192.0.2.254")
		}
	}
	raw := encode(t, members)
	for _, p := range places {
		p.order.Site = raw
		p.start()
	}
	a.says("Ready", "by WireGuard: edge-c")
	near.says("Ready", "by WireGuard: edge-c")
	far.says("Ready", "by WireGuard: edge-a, edge-b")

	answers(t, a.pod, far, a.podIP)
	answers(t, far.pod, near, far.podIP)
	answers(t, a.pod, near, a.podIP) // by the network that they share
	answers(t, a.host, far, "10.91.0.1")
	largest(t, a, far, 1500-60-28)
	packets := func() (clear, encrypted, pieces string) {
		var all []string
		for line := range strings.Lines(router.Shell("nft list table ip seen")) {
			if _, after, ok := strings.Cut(line, "counter packets "); ok {
				all = append(all, strings.Fields(after)[0])
			}
		}
		if len(all) != 3 {
			t.Fatalf("the counters are %v", all)
		}
		return all[0], all[1], all[2]
	}
	if clear, encrypted, pieces := packets(); clear != "0" || encrypted == "0" || pieces != "0" {
		t.Errorf("between them: %s packets of pods in the clear, %s encrypted, %s pieces", clear, encrypted, pieces)
	}

	forged(t, a, near, far)
	before := a.key()
	a.stop()
	answers(t, a.pod, far, a.podIP)
	a.order.Site = nil // the site is read after the Node, as it may be
	a.start()
	a.says("Ready", "are in 10.91.0.0/24")
	answers(t, a.pod, far, a.podIP)
	a.tell(order{Site: raw})
	a.says("Ready", "by WireGuard: edge-c")
	answers(t, a.pod, far, a.podIP)
	answers(t, far.pod, a, far.podIP)
	if after := a.key(); after != before {
		t.Error("a restart has made another key")
	}

	// edge-c leaves the site, as one that is revoked does.
	members.Members = members.Members[:2]
	raw = encode(t, members)
	for _, p := range []*place{a, near} {
		p.tell(order{Site: raw})
		poll.Eventually(t, "the tunnel to go", func(context.Context) error {
			if out := p.host.Shell("ip link show " + wireguard.Interface + " 2>&1 || true; ip route show proto 159"); strings.Contains(out, wireguard.Interface+":") || strings.Contains(out, "10.91.2.0/24") {
				return errors.New(out)
			}
			return nil
		})
	}
	answers(t, a.pod, near, a.podIP)
	if word, _, err := far.pod.Ask("udp", a.podIP+":8080", time.Second); err == nil {
		t.Errorf("a device that has left the site still reaches %s", word)
	}
}

func encode(t *testing.T, s *topicpb.Site) []byte {
	t.Helper()
	raw, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// largest sends a datagram that must not be cut into pieces, until it arrives, and sees that the
// pods' network is made for such.
func largest(t *testing.T, from, to *place, size int) {
	t.Helper()
	var server, client *net.UDPConn
	err := errors.Join(
		to.pod.Do(func() (err error) { server, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 9}); return err }),
		from.pod.Do(func() (err error) {
			client, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(to.podIP), Port: 9})
			return err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	defer client.Close()
	raw, err := client.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := errors.Join(raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}), failed); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2*size)
	poll.Eventually(t, "a packet as large as the way to arrive", func(context.Context) error {
		if _, err := client.Write(make([]byte, size)); err != nil {
			return err
		}
		if err := server.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, _, err := server.ReadFromUDP(buffer)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes came, want %d", n, size)
		}
		return err
	})
	conflist, err := os.ReadFile(filepath.Join(from.order.Dir, podnet.File))
	if err != nil || !strings.Contains(string(conflist), fmt.Sprintf(`"mtu": %d,`, size+28)) {
		t.Errorf("pods are made with another MTU than %d: %v %s", size+28, err, conflist)
	}
}

// forged has a device send with an address of another one's pods: it must not arrive, though the
// same device's own packets do.
func forged(t *testing.T, victim, from, to *place) {
	t.Helper()
	var server *net.UDPConn
	if err := to.pod.Do(func() (err error) { server, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 10}); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const stolen = "10.91.0.99" // of the victim's range
	from.host.Shell("ip address add " + stolen + "/32 dev lo")
	defer from.host.Shell("ip address del " + stolen + "/32 dev lo")
	// As a program on a device in the wrong hands would: past the masquerading of its edgecore.
	from.host.Shell("nft add table ip raw; nft add chain ip raw out '{ type filter hook output priority -300; }'; nft add rule ip raw out ip saddr " + stolen + " notrack")
	defer from.host.Shell("nft delete table ip raw")
	send := func(source, word string) {
		t.Helper()
		if err := from.host.Do(func() error {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP(to.podIP), Port: 10})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(word))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	buffer := make([]byte, 100)
	poll.Eventually(t, "a packet of its own to arrive after the forged ones", func(context.Context) error {
		for range 5 {
			send(stolen, "forged")
		}
		send("10.91.1.1", "own")
		if err := server.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, seen, err := server.ReadFromUDP(buffer)
		if err == nil && string(buffer[:n]) != "own" {
			t.Fatalf("%s can send as %s, a pod of %s", from.order.Node, seen, victim.order.Node)
		}
		return err
	})
}
