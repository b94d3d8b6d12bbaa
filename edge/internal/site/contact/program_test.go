package contact_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// echo sends back the bytes that it reads.
func echo(_ context.Context, node string, s *contact.Stream) {
	_, _ = s.Write([]byte(node + ":"))
	_, _ = io.Copy(s, s)
}

// exchange sends text to a device and returns its answer.
func (d *device) exchange(t *testing.T, to *device, text string) (string, error) {
	t.Helper()
	s, err := d.agent.DialPrograms(t.Context(), to.name)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if err := errors.Join(s.SetReadDeadline(time.Now().Add(patience)), s.SetWriteDeadline(time.Now().Add(patience))); err != nil {
		return "", err
	}
	if _, err := s.Write([]byte(text)); err != nil {
		return "", err
	}
	b := make([]byte, len(d.name)+1+len(text))
	_, err = io.ReadFull(s, b)
	return string(b), err
}

// Devices of a site connect for programs in either direction, whoever has opened their connection
// for statuses. One of an older release, which offers no such protocol, is asked in vain, and
// stays met.
func TestPrograms(t *testing.T) {
	w := newSystem(t, 3)
	a, b, old := w.devices[0], w.devices[1], w.devices[2]
	a.programs, b.programs = echo, echo
	w.startAll()
	w.allMet()
	for _, pair := range [][2]*device{{a, b}, {b, a}} {
		if got, err := pair[0].exchange(t, pair[1], "bytes"); err != nil || got != pair[0].name+":bytes" {
			t.Errorf("%s asks %s: %q, %v", pair[0].name, pair[1].name, got, err)
		}
		if all := pair[0].agent.Connected(); !slices.Contains(all, pair[1].name) || !slices.Contains(all, old.name) {
			t.Errorf("%s is connected with %v", pair[0].name, all)
		}
	}
	before := a.changes(old.name)
	if got, err := a.exchange(t, old, "bytes"); err == nil {
		t.Errorf("an older release answers %q", got)
	}
	if refused := a.agent.State().Refused + old.agent.State().Refused; a.changes(old.name) != before || a.agent.Contact(old.name) != contact.Met || refused != 0 {
		t.Errorf("the older release is %v after %d changes, %d connections were refused", a.agent.Contact(old.name), a.changes(old.name)-before, refused)
	}
	if _, err := a.agent.DialPrograms(t.Context(), "nobody"); err == nil {
		t.Error("a device that is not in the site is dialled")
	}
}

// dialPrograms connects from a device's host for programs, with any certificate.
func (d *device) dialPrograms(t *testing.T, to *device, cert tls.Certificate) (*quic.Conn, error) {
	t.Helper()
	var udp *net.UDPConn
	if err := d.host.Do(func() (err error) { udp, err = net.ListenUDP("udp4", nil); return err }); err != nil {
		t.Fatal(err)
	}
	transport := &quic.Transport{Conn: udp}
	t.Cleanup(func() { _ = transport.Close(); _ = udp.Close() })
	return transport.Dial(t.Context(), &net.UDPAddr{IP: net.IPv4(10, 90, 0, byte(to.number)), Port: sitePort}, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"skerry-program/1"}, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
	}, &quic.Config{MaxIdleTimeout: 2 * time.Second, KeepAlivePeriod: 500 * time.Millisecond, MaxIncomingUniStreams: 1})
}

// ends waits until a connection is over.
func ends(t *testing.T, conn *quic.Conn, what string) {
	t.Helper()
	select {
	case <-conn.Context().Done():
	case <-time.After(patience):
		t.Error(what + " continues")
	}
}

// Only members get programs: a device of another pool, of another cluster, or without a node's
// certificate is refused, and one that is revoked loses its transfer. A member has one connection,
// and may not connect without end. Statuses are exchanged all the time.
func TestFleet_26_OnlyMembersGetPrograms(t *testing.T) {
	w := newSystem(t, 2)
	a, b := w.devices[0], w.devices[1]
	a.programs, b.programs = echo, echo
	thief := w.add("edge00", "10.90.0.66/24")
	w.startHostile(a, b)
	before := a.changes(b.name)
	good := func() { // a member is served whatever the others do
		poll.True(t, b.name+" is answered", func() bool { got, err := b.exchange(t, a, "x"); return err == nil && got == b.name+":x" })
	}
	for name, cert := range map[string]tls.Certificate{
		"a device of another pool": w.authority.Node(t, "edge0x"), "no node's certificate": w.authority.Server(t), "a's own name": w.authority.Node(t, a.name),
	} {
		if conn, err := thief.dialPrograms(t, a, cert); err == nil {
			ends(t, conn, name)
		}
	}
	good()
	dial := func() (conn *quic.Conn) {
		t.Helper()
		poll.True(t, "the member connects", func() bool {
			c, err := thief.dialPrograms(t, a, thief.cert)
			if err != nil {
				return false
			}
			s, err := c.OpenUniStream()
			if err != nil {
				return false
			}
			if _, err := s.Write([]byte("hello")); err != nil {
				return false
			}
			r, err := c.AcceptUniStream(t.Context())
			if err != nil {
				return false
			}
			_, err = io.ReadFull(r, make([]byte, len("edge00:hello")))
			conn = c
			return err == nil
		})
		return conn
	}
	first := dial()
	second := dial()
	ends(t, first, "the older connection of a member")
	accepted := 0
	for range 30 {
		conn, err := thief.dialPrograms(t, a, thief.cert)
		if err != nil {
			continue
		}
		if _, err := conn.AcceptUniStream(t.Context()); err == nil {
			accepted++
		}
	}
	if accepted > 20 {
		t.Errorf("%d of 30 connections in a row were accepted", accepted)
	}
	ends(t, second, "the second connection of a member")
	good()
	third := dial()
	for _, m := range w.members {
		if m.GetNode() == thief.name {
			m.ValidFrom = time.Now().Add(time.Hour).Unix()
		}
	}
	a.tell()
	ends(t, third, "the connection of a revoked device")
	if conn, err := thief.dialPrograms(t, a, thief.cert); err == nil {
		ends(t, conn, "a new connection of a revoked device")
	}
	good()
	if got := a.agent.Contact(b.name); got != contact.Met || a.changes(b.name) != before {
		t.Errorf("a sees b as %v, after %d changes", got, a.changes(b.name)-before)
	}
}

// A network of 2 Mbit/s with a long queue, which a sender without a bound fills for seconds: while
// one device takes a program from another, neither loses sight of the other, and few of the
// program's bytes are in front of a pod's new status.
func TestFleet_26_ProgramDoesNotDelayStatuses(t *testing.T) {
	w := newSystem(t, 2)
	a, b := w.devices[0], w.devices[1]
	var came, atChange atomic.Int64
	a.changed = func() { atChange.Store(came.Load()) }
	b.programs = func(ctx context.Context, _ string, s *contact.Stream) {
		for ctx.Err() == nil {
			if _, err := s.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	}
	w.startAll()
	w.allMet()
	for _, d := range w.devices {
		d.host.Shell("tc qdisc add dev lan0 root tbf rate 2mbit burst 16k limit 4m")
	}
	before := a.changes(b.name)
	s, err := a.agent.DialPrograms(t.Context(), b.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SetReadDeadline(time.Now().Add(patience)), s.SetWriteDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for buffer := make([]byte, 4<<10); ; {
			n, err := s.Read(buffer)
			came.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	const statuses = 4
	most := int64(0)
	for i := range statuses {
		poll.True(t, "bytes of the program", func() bool { return came.Load() > int64(i+1)<<19 })
		from := came.Load()
		b.agent.SetPods([]contact.Pod{b.pod(1), b.pod(2 + i)})
		poll.True(t, "the new status", func() bool { _, ok := a.agent.Pod(b.name, b.pod(2+i).UID); return ok })
		most = max(most, atChange.Load()-from)
	}
	t.Logf("at most %d bytes of the program came before a new status", most)
	if most > 96<<10 {
		t.Errorf("%d bytes of the program came before a new status", most)
	}
	if n := a.changes(b.name) - before; n != statuses || b.agent.Contact(a.name) != contact.Met {
		t.Errorf("%d changes for %d statuses; a sees b as %v, b sees a as %v", n, statuses, a.agent.Contact(b.name), b.agent.Contact(a.name))
	}
	s.Close()
	reading.Wait()
}
