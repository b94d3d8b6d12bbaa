// Package services_test runs the tests of Services, Ingresses and their marks against one whole
// trial: two edges with marks on, and a client on their LAN.
package services_test

import (
	"context"
	"encoding/json"
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

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// The addresses of the trial's hosts on the LAN.
const (
	edge1 = "192.168.100.11"
	lan   = "lan0"
)

func TestMain(m *testing.M) { os.Exit(tests().Main(m)) }

func tests() suite.Suite {
	o := trial.DefaultOptions()
	o.Quick = true
	// Marks are tested with Kubernetes' own proxy; the devices' stays off.
	o.Set = []string{"modules.services.enable=false", "modules.names.enable=false", "modules.marks.enable=true", "modules.passthrough.enable=true", "modules.passthrough.ports=[eth8, eth9]", "modules.console.enable=true", "modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s"}
	return suite.Suite{Name: "services", Options: o}
}

type system struct{ *suite.System }

func newSystem(t *testing.T) *system {
	t.Helper()
	return &system{tests().Use(t)}
}

// make applies objects, which go with the test.
func (s *system) make(yaml string) {
	s.T.Helper()
	file := filepath.Join(s.T.TempDir(), "objects.yaml")
	s.Check(os.WriteFile(file, []byte(yaml), 0o600))
	s.Kubectl("apply", "-f", file)
	s.T.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "--ignore-not-found", "-f", file))
	})
}

// on runs a line of shell on a host.
func (s *system) on(host, line string) string {
	s.T.Helper()
	return s.Must(s.tryOn(s.T.Context(), host, line))
}

func (s *system) tryOn(ctx context.Context, host, line string) (string, error) {
	var out, errs strings.Builder
	code, err := s.Trial.Exec(ctx, host, trial.Streams{Out: &out, Err: &errs}, nil, "sh", "-c", line)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: code %d: %s", line, code, errs.String())
	}
	return out.String(), err
}

// cloudcore runs a command of cloudcore as the administrator.
func (s *system) cloudcore(ctx context.Context, line string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Root, "bin", "cloudcore"), append(strings.Fields(line), "--kubeconfig", s.Trial.Kubeconfig())...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cloudcore %s: %w: %s", line, err, out)
	}
	return string(out), err
}

// marks is the part of edgecore's status about marks.
type marks struct {
	Entries  []string
	Rules    int
	LeftOut  int
	Problems []string
}

func (s *system) status(ctx context.Context, node string) (m marks, err error) {
	out, err := s.tryOn(ctx, node, s.Root+"/bin/edgecore status -o json")
	if err != nil {
		return m, err
	}
	var all struct{ Marks *marks }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return m, err
	}
	if all.Marks == nil {
		return m, errors.New("edgecore's status has no marks")
	}
	return *all.Marks, nil
}

// collected waits until a node has collected exactly these entries that have the word in them.
func (s *system) collected(node, word string, want ...string) {
	s.T.Helper()
	s.WaitFor("what "+node+" collects", func(ctx context.Context) error {
		m, err := s.status(ctx, node)
		if err != nil {
			return err
		}
		var have []string
		for _, e := range m.Entries {
			if strings.Contains(e, word) {
				have = append(have, e)
			}
		}
		if strings.Join(have, "\n") != strings.Join(want, "\n") {
			return fmt.Errorf("it has %q, want %q; problems %q", have, want, m.Problems)
		}
		return nil
	})
}

// rules are those of our chains on a node, of both families.
func (s *system) rules(ctx context.Context, node string) (string, error) {
	out, err := s.tryOn(ctx, node, "iptables-save -t mangle; ip6tables-save -t mangle")
	var ours []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "SKERRY-MARKS") || strings.Contains(line, "SKERRY-ACE") {
			ours = append(ours, strings.TrimSpace(line))
		}
	}
	return strings.Join(ours, "\n"), err
}

// waitRule waits until a rule of ours has the text in it, or, with there false, no rule has.
func (s *system) waitRule(node, text string, there bool) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("a rule with %q on %s: %v", text, node, there), func(ctx context.Context) error {
		rules, err := s.rules(ctx, node)
		if err == nil && strings.Contains(rules, text) != there {
			err = fmt.Errorf("there is:\n%s", rules)
		}
		return err
	})
}

// listen serves on a host, at all its addresses, until the test ends: each connection gets a line.
func (s *system) listen(host string, port int) {
	s.T.Helper()
	h, err := s.Trial.Host(host)
	s.Check(err)
	var l net.Listener
	s.Check(h.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }))
	s.T.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64)) // unread bytes at the end would reset the connection
			_, _ = conn.Write([]byte("hello\n"))
			_ = conn.Close()
		}
	}()
}

// ask dials from the LAN's client and waits for an answer over TCP; over UDP it sends a packet.
func (s *system) ask(ctx context.Context, network, to string) (from netip.AddrPort, err error) {
	h, err := s.Trial.Host("client")
	if err != nil {
		return from, err
	}
	ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond) // a refused client waits as long
	defer cancel()
	conn, err := h.Dial(ctx, network, to)
	if err != nil {
		return from, err
	}
	defer conn.Close()
	from = netip.MustParseAddrPort(conn.LocalAddr().String())
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil || network == "udp" {
		return from, err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return from, err
	}
	_, err = conn.Read(make([]byte, 1))
	return from, err
}

// mark sends from the client to an address of a node, and returns the connection's mark there.
func (s *system) mark(ctx context.Context, node, network, to string) (uint32, error) {
	from, err := s.ask(ctx, network, to)
	if err != nil {
		return 0, err
	}
	h, err := s.Trial.Host(node)
	if err != nil {
		return 0, err
	}
	dst := netip.MustParseAddrPort(to)
	family := netlink.InetFamily(netlink.FAMILY_V4)
	if dst.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	var flows []*netlink.ConntrackFlow
	if err := h.Do(func() (err error) {
		flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
		return err
	}); err != nil {
		return 0, err
	}
	for _, f := range flows {
		to, _ := netip.AddrFromSlice(f.Forward.DstIP)
		if to.Unmap() == dst.Addr() && f.Forward.DstPort == dst.Port() && f.Forward.SrcPort == from.Port() {
			return f.Mark, nil
		}
	}
	return 0, fmt.Errorf("%s knows no connection from %s to %s", node, from, to)
}

// marked waits until connections to an address of edge1 bear a mark.
func (s *system) marked(want uint32, network, to string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to %s to be marked %d", network, to, want), func(ctx context.Context) error {
		got, err := s.mark(ctx, "edge1", network, to)
		if err == nil && got != want {
			err = fmt.Errorf("it is marked %d", got)
		}
		return err
	})
}
