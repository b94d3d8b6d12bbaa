package lab_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// hosts boots one host for each name, without directories of their own.
func hosts(t *testing.T, names ...string) []host.Host {
	t.Helper()
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("namespaces are made only as root and without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	init := filepath.Join(t.TempDir(), "init")
	if err := binary.BuildStatic(t.Context(), root, init, "./tests/images/pause"); err != nil {
		t.Fatal(err)
	}
	var all []host.Host
	for _, name := range names {
		h, err := host.Boot(t.Context(), host.Spec{Hostname: name, Init: init, Mark: t.Name() + "/" + name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Halt(context.Background()); err != nil {
				t.Error(err)
			}
		})
		all = append(all, h)
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen accepts connections on a host until the test ends.
func listen(t *testing.T, h host.Host, port string) {
	t.Helper()
	var l net.Listener
	must(t, h.Do(func() (err error) {
		l, err = net.Listen("tcp", ":"+port)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}

func dial(h host.Host, addr netip.Addr, port string, patience time.Duration) error {
	return h.Do(func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(addr.String(), port), patience)
		if err == nil {
			c.Close()
		}
		return err
	})
}

const (
	long  = 10 * time.Second
	short = 300 * time.Millisecond
)

func TestLab(t *testing.T) {
	hs := hosts(t, "router", "cloud", "edge1", "edge2", "client")
	router, cloud, edge1, edge2, client := hs[0], hs[1], hs[2], hs[3], hs[4]
	for range 2 { // twice: everything may be repeated
		must(t, lab.Router(router, []lab.Port{{Protocol: "tcp", Number: 10000}}))
		must(t, lab.ConnectCloud(router, cloud, 1))
		must(t, lab.ConnectEdge(router, edge1, 1))
		must(t, lab.ConnectEdge(router, edge2, 2))
		must(t, lab.ConnectClient(router, client))
	}
	listen(t, cloud, "10000")
	listen(t, cloud, "6443")
	for _, h := range []host.Host{edge1, edge2, client} {
		listen(t, h, "80")
	}

	must(t, dial(edge1, lab.Cloud(), "10000", long))
	must(t, dial(edge2, lab.Cloud(), "10000", long))
	if err := dial(edge1, lab.Cloud(), "6443", long); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that is not offered: want a refusal, got %v", err)
	}
	if err := dial(cloud, lab.Uplink(1).Addr(), "80", short); err == nil {
		t.Error("the cloud can dial an edge")
	}
	if err := dial(edge1, lab.Uplink(2).Addr(), "80", short); err == nil {
		t.Error("an edge can dial another through the router")
	}
	must(t, dial(client, lab.LAN(1).Addr(), "80", long))
	must(t, dial(edge1, lab.LAN(2).Addr(), "80", long))
	must(t, dial(client, lab.LAN6(1).Addr(), "80", long))
	must(t, dial(edge2, lab.Client6().Addr(), "80", long))

	t.Run("a kubelet that the cloud may dial", func(t *testing.T) {
		listen(t, edge2, "10250")
		if err := dial(cloud, lab.Uplink(2).Addr(), "10250", short); err == nil {
			t.Error("it could before")
		}
		must(t, lab.OfferKubelet(router, cloud, 1, 2))
		must(t, lab.OfferKubelet(router, cloud, 1, 2))
		must(t, dial(cloud, lab.Uplink(2).Addr(), "10250", long))
		if err := dial(cloud, lab.Uplink(2).Addr(), "80", short); err == nil {
			t.Error("other ports can be dialled too")
		}
	})

	t.Run("the cloud's replicas behind its address", func(t *testing.T) {
		second := hosts(t, "cloud2")[0]
		must(t, lab.ConnectCloud(router, second, 2))
		must(t, lab.Balance(router, []lab.Port{{Protocol: "tcp", Number: 10000}}, 2))
		// The second has no listener yet: one dial in two is refused.
		seen := map[bool]bool{}
		for range 64 {
			seen[dial(edge1, lab.Cloud(), "10000", long) == nil] = true
		}
		if !seen[true] || !seen[false] {
			t.Errorf("only one replica was dialled: %v", seen)
		}
		listen(t, second, "10000")
		for range 16 {
			must(t, dial(edge1, lab.Cloud(), "10000", long))
		}
		must(t, lab.Balance(router, nil, 1))
	})

	t.Run("IPv6", func(t *testing.T) {
		for range 2 {
			must(t, lab.LinkIPv6(router, edge1, []lab.Port{{Protocol: "tcp", Number: 10000}}, 1))
		}
		must(t, dial(edge1, lab.Replica6(1), "10000", long))
		if err := dial(edge1, lab.Replica6(1), "6443", long); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port that is not offered: want a refusal, got %v", err)
		}
		if err := dial(cloud, lab.Uplink6(1).Addr(), "80", short); err == nil {
			t.Error("the cloud can dial an edge")
		}
		for _, cut := range []lab.Cut{lab.Carrier, lab.Silent} {
			must(t, lab.SetCut(router, 1, cut))
			if err := dial(edge1, lab.Replica6(1), "10000", short); err == nil {
				t.Errorf("%s: the uplink is not cut", cut)
			}
			must(t, lab.SetCut(router, 1, lab.Whole))
			must(t, dial(edge1, lab.Replica6(1), "10000", long))
		}
		must(t, lab.SetShape(router, edge1, 1, lab.Shape{Loss: 1}))
		if err := dial(edge1, lab.Replica6(1), "10000", short); err == nil {
			t.Error("nothing is lost")
		}
		must(t, lab.SetShape(router, edge1, 1, lab.Shape{}))
		must(t, dial(edge1, lab.Replica6(1), "10000", long))
	})

	carrier := func(h host.Host) string {
		links, err := h.Netlink()
		must(t, err)
		defer links.Close()
		l, err := links.LinkByName("wan0")
		must(t, err)
		return l.Attrs().OperState.String()
	}
	for _, c := range []struct {
		cut   lab.Cut
		state string
	}{{lab.Carrier, "lower-layer-down"}, {lab.Silent, "up"}} {
		t.Run("cut "+string(c.cut), func(t *testing.T) {
			must(t, lab.SetCut(router, 1, c.cut))
			must(t, lab.SetCut(router, 1, c.cut))
			if got := carrier(edge1); got != c.state && !(c.cut == lab.Carrier && got == "down") {
				t.Errorf("the edge sees its uplink %s, want %s", got, c.state)
			}
			if err := dial(edge1, lab.Cloud(), "10000", short); err == nil {
				t.Error("the uplink is not cut")
			}
			must(t, dial(client, lab.LAN(1).Addr(), "80", long))
			must(t, dial(edge2, lab.Cloud(), "10000", long))
			must(t, lab.SetCut(router, 1, lab.Whole))
			must(t, dial(edge1, lab.Cloud(), "10000", long))
		})
	}

	t.Run("shape", func(t *testing.T) {
		must(t, lab.SetShape(router, edge1, 1, lab.Shape{Rate: 256_000, Loss: 1}))
		if err := dial(edge1, lab.Cloud(), "10000", short); err == nil {
			t.Error("nothing is lost")
		}
		must(t, dial(edge2, lab.Cloud(), "10000", long))
		must(t, lab.SetShape(router, edge1, 1, lab.Shape{Rate: 256_000}))
		must(t, dial(edge1, lab.Cloud(), "10000", long))
		must(t, lab.SetShape(router, edge1, 1, lab.Shape{}))
		must(t, lab.SetShape(router, edge1, 1, lab.Shape{}))
	})

	t.Run("an edge that reboots comes back with its uplink", func(t *testing.T) {
		must(t, edge2.Halt(t.Context()))
		again := hosts(t, "edge2")[0]
		// The kernel takes the old cables down a moment after the host.
		for try := 0; ; try++ {
			err := lab.ConnectEdge(router, again, 2)
			if err == nil {
				err = dial(again, lab.Cloud(), "10000", long)
			}
			if err == nil {
				break
			}
			if try == 50 {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

func TestFreeNetwork(t *testing.T) {
	a, err := lab.FreeNetwork("a")
	must(t, err)
	if !netip.MustParsePrefix("198.18.0.0/16").Contains(a.Addr()) || a.Bits() != 30 || a != a.Masked() {
		t.Errorf("unexpected network %v", a)
	}
	machine, cloud := lab.MachineLink(a)
	if !a.Contains(machine.Addr()) || !a.Contains(cloud.Addr()) || machine == cloud || !strings.HasSuffix(machine.String(), "/30") {
		t.Errorf("unexpected ends %v and %v", machine, cloud)
	}
}
