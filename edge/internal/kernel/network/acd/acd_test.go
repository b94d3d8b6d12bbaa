package acd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
)

func probe(t *testing.T, h *lantest.Host, addresses ...string) (map[netip.Addr]net.HardwareAddr, error) {
	t.Helper()
	var targets []acd.Target
	for _, a := range addresses {
		targets = append(targets, acd.Target{Address: netip.MustParseAddr(a), Patience: 5 * time.Second})
	}
	var found map[netip.Addr]net.HardwareAddr
	err := h.Do(func() (err error) {
		found, err = acd.Probe(t.Context(), lantest.Interface, targets)
		return err
	})
	return found, err
}

func mac(h *lantest.Host) string {
	return strings.TrimSpace(h.Shell("ip -o link show dev " + lantest.Interface + " | sed 's/.*link.ether \\([^ ]*\\) .*/\\1/'"))
}

func TestProbe(t *testing.T) {
	lan := lantest.New(t)
	asking := lan.Host("10.80.0.1/24", "2001:db8:80::1/64", "10.80.0.9/32")
	other := lan.Host("10.80.0.2/24", "2001:db8:80::2/64", "192.0.2.7/32")
	// In a neighbour table only.
	asking.Shell("ip neigh replace 10.80.0.77 lladdr 02:00:00:00:00:07 dev lan0")
	found, err := probe(t, asking, "10.80.0.2", "10.80.0.3", "192.0.2.7", "10.80.0.9", "2001:db8:80::2", "2001:db8:80::3", "10.80.0.77")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.80.0.2", "192.0.2.7", "2001:db8:80::2"} {
		if got := found[netip.MustParseAddr(a)].String(); got != mac(other) {
			t.Errorf("%s: %q answers, want %q", a, got, mac(other))
		}
		delete(found, netip.MustParseAddr(a))
	}
	if len(found) > 0 {
		t.Errorf("no host has these: %v", found)
	}
	// No host has learnt anything from the probe.
	if table := other.Shell("ip neigh show"); strings.Contains(table, "10.80.0.3") || strings.Contains(table, "0.0.0.0 ") {
		t.Errorf("the other's table after it was asked:\n%s", table)
	}
}

func TestProbe_NoCarrier(t *testing.T) {
	lan := lantest.New(t)
	h := lan.Host("10.80.0.1/24")
	h.Plug(false)
	if found, err := probe(t, h, "10.80.0.2"); !errors.Is(err, acd.ErrNoCarrier) {
		t.Errorf("without carrier: %v, %v", found, err)
	}
	err := h.Do(func() error {
		_, err := acd.Probe(t.Context(), "nothing0", nil)
		return err
	})
	if !errors.Is(err, acd.ErrNoCarrier) {
		t.Errorf("without interface: %v", err)
	}
}

// Two that ask at once don't take each other for the owner.
func TestProbe_AtOnce(t *testing.T) {
	lan := lantest.New(t)
	hosts := []*lantest.Host{lan.Host("10.80.0.1/24", "2001:db8:80::1/64"), lan.Host("10.80.0.2/24", "2001:db8:80::2/64")}
	errs := make(chan error, len(hosts))
	for _, h := range hosts {
		go func() {
			found, err := probe(t, h, "10.80.0.9", "2001:db8:80::9")
			if len(found) > 0 {
				err = fmt.Errorf("%v answer", found)
			}
			errs <- err
		}()
	}
	for range hosts {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A real keepalived that holds the address is no conflict, of either family; once it is gone and
// the address is still there, it is one.
func TestProbe_HolderByVRRP(t *testing.T) {
	if _, err := exec.LookPath("keepalived"); err != nil {
		t.Skip("needs keepalived")
	}
	lan := lantest.New(t)
	asking := lan.Host("10.80.0.1/24", "2001:db8:80::1/64")
	holder := lan.Host("10.80.0.2/24", "2001:db8:80::2/64")
	dir := t.TempDir()
	conf := filepath.Join(dir, "conf")
	text := "global_defs {\n script_user root\n vrrp_version 3\n}\n"
	for i, a := range []string{"10.80.0.9/32", "2001:db8:80::9/128"} {
		text += fmt.Sprintf("vrrp_instance i%d {\n state MASTER\n interface lan0\n virtual_router_id %d\n priority 200\n advert_int 1\n virtual_ipaddress {\n %s dev lan0\n }\n}\n", i, i+7, a)
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := holder.Command(context.Background(), "keepalived", "-n", "-P", "-l", "-f", conf, "-p", filepath.Join(dir, "p"), "-r", filepath.Join(dir, "r"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); !holder.Has("10.80.0.9") || !holder.Has("2001:db8:80::9"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("keepalived never took the addresses")
		}
	}
	// Another host in addition to it is reported.
	lan.Host("10.80.0.3/24")
	found, err := probe(t, asking, "10.80.0.9", "2001:db8:80::9", "10.80.0.3")
	if err != nil || len(found) != 1 || found[netip.MustParseAddr("10.80.0.3")] == nil {
		t.Errorf("while keepalived holds: %v, %v", found, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	holder.Shell("ip addr replace 10.80.0.9/32 dev lan0; ip addr replace 2001:db8:80::9/128 dev lan0")
	if found, err := probe(t, asking, "10.80.0.9", "2001:db8:80::9"); err != nil || len(found) != 2 {
		t.Errorf("left behind: %v, %v", found, err)
	}
}
