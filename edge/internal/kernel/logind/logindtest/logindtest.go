// Package logindtest plays systemd-logind for tests, on a real dbus-daemon with a socket of its
// own: no systemd runs where tests run. It does what is written of inhibitor locks of mode delay in
// https://systemd.io/INHIBITOR_LOCKS and org.freedesktop.login1(5), and nothing else.
//
// It owns the daemon and all locks; both go with the test. A Logind may be used from any goroutine.
package logindtest

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	name    = "org.freedesktop.login1"
	manager = name + ".Manager"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
)

// Logind is the one of a test.
type Logind struct {
	// Bus is the bus's address.
	Bus string

	t    testing.TB
	conn *dbus.Conn

	mu    sync.Mutex
	locks []lock
	asked []string
}

// lock is a pipe: held is at its end once all copies of given are closed.
type lock struct{ held, given *os.File }

// configuration lets any process that can reach the socket do anything on the bus.
const configuration = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>custom</type>
  <listen>unix:path=SOCKET</listen>
  <auth>EXTERNAL</auth>
  <policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy>
</busconfig>
`

// New starts a bus with a logind on it that waits delay for locks.
func New(t testing.TB, delay time.Duration) *Logind {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // a socket's path is short: t.TempDir may not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(file, []byte(strings.Replace(configuration, "SOCKET", filepath.Join(dir, "s"), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+file, "--nofork", "--nopidfile", "--print-address=1")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n') // once it listens
	if err != nil {
		t.Fatal(err)
	}
	l := &Logind{t: t, Bus: strings.TrimSpace(address)}
	if l.conn, err = dbus.Connect(l.Bus); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.conn.Close() })
	if err := l.conn.Export(l, path, manager); err != nil {
		t.Fatal(err)
	}
	if _, err := prop.Export(l.conn, path, prop.Map{manager: {"InhibitDelayMaxUSec": {Value: uint64(delay / time.Microsecond)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return l
}

// Inhibit is called over the bus.
func (l *Logind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	held, given, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks = append(l.locks, lock{held, given})
	l.asked = append(l.asked, strings.Join([]string{what, who, why, mode}, " / "))
	return dbus.UnixFD(given.Fd()), nil
}

// Asked are the locks that were taken so far, as `systemd-inhibit --list` has them.
func (l *Logind) Asked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.asked...)
}

// Prepare announces a shutdown, or that it was given up.
func (l *Logind) Prepare(down bool) {
	l.t.Helper()
	if err := l.conn.Emit(path, manager+".PrepareForShutdown", down); err != nil {
		l.t.Fatal(err)
	}
}

// Wait returns when the newest lock was given up.
func (l *Logind) Wait() {
	l.t.Helper()
	l.mu.Lock()
	newest := l.locks[len(l.locks)-1]
	l.mu.Unlock()
	_ = newest.given.Close() // our copy, of what was sent long ago
	if err := newest.held.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		l.t.Fatal(err)
	}
	var b [1]byte
	if n, err := newest.held.Read(b[:]); n != 0 || !errors.Is(err, io.EOF) {
		l.t.Fatalf("the lock is not given up: %d, %v", n, err)
	}
}
