package iptables_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
)

// A client that always connects from one port, as machines in a plant do, is served by the new pod
// at once when the old one has ended its connection: with a reset, whose entry the kernel keeps for
// 10 s, or with a FIN.
func TestOnePort(t *testing.T) {
	for _, end := range []string{"reset", "FIN"} {
		t.Run(end, func(t *testing.T) { onePort(t, end == "reset") })
	}
}

func onePort(t *testing.T, reset bool) {
	lan := lantest.New(t)
	node, client := lan.Host("10.78.0.1/24"), lan.Host("10.78.0.200/24")
	vip := netip.MustParseAddr("10.78.0.100")
	node.Shell(fmt.Sprintf("ip addr add %s/32 dev %s", vip, lantest.Interface))
	pods := map[string]netip.AddrPort{"one": netip.MustParseAddrPort("10.244.1.2:8080"), "two": netip.MustParseAddrPort("10.244.1.3:8080")}
	for word, at := range pods {
		serve(t, node.Pod(at.Addr()), at, word, reset)
	}
	apply := func(pod string) {
		t.Helper()
		err := node.Do(func() error {
			p, err := iptables.New()
			if err != nil {
				return err
			}
			return p.Apply(t.Context(), []balance.Service{{
				Address: vip, Interface: lantest.Interface, Ports: []balance.Port{{Protocol: balance.TCP, Number: 80, Backends: []netip.AddrPort{pods[pod]}}},
			}})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, pod := range []string{"one", "two", "one", "two"} {
		apply(pod)
		if word, err := fromOnePort(client, netip.AddrPortFrom(vip, 80), reset); err != nil || word != pod {
			t.Errorf("%d: %q answers (%v), want %q", i, word, err, pod)
		}
	}
}

// serve starts a pod that sends its word and ends each connection with a reset, without a FIN, or
// with a FIN before its client's.
func serve(t *testing.T, pod *lantest.Host, at netip.AddrPort, word string, reset bool) {
	t.Helper()
	err := pod.Do(func() error {
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(word))
				_, _ = c.Read(make([]byte, 1)) // the client has it, and confirms
				if reset {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fromOnePort asks from a port that is always the same, and waits for the reset or the FIN.
func fromOnePort(client *lantest.Host, at netip.AddrPort, reset bool) (word string, err error) {
	err = client.Do(func() error {
		d := net.Dialer{
			Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{Port: 4000},
			Control: func(_, _ string, c syscall.RawConn) error {
				var set error
				err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
				if err == nil {
					err = set
				}
				return err
			},
		}
		c, err := d.DialContext(context.Background(), "tcp", at.String())
		if err != nil {
			return err
		}
		defer c.Close()
		buffer := make([]byte, 16)
		n, err := c.Read(buffer)
		if err != nil {
			return err
		}
		word = string(buffer[:n])
		if _, err := c.Write([]byte("!")); err != nil {
			return err
		}
		if _, err := c.Read(buffer); err == nil || (err == io.EOF) == reset {
			return fmt.Errorf("it ended otherwise: %v", err)
		}
		return nil
	})
	return word, err
}
