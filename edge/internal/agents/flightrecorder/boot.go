package flightrecorder

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is the machine's own record of the end of the boot before.
type Machine struct {
	// Panic is the first line of a kernel's panic that pstore has kept; "": no panic.
	Panic string
	// Watchdog are the reasons that the watchdog's hardware gives, WDIOF_* in linux/watchdog.h.
	Watchdog int64
	// Killed are the processes that the kernel killed in this boot because it was out of memory.
	Killed []string
}

// ReadMachine reads the files below root, "/" but in tests. One that can't be read is absent.
func ReadMachine(root string) Machine {
	var m Machine
	dumps, _ := filepath.Glob(filepath.Join(root, "sys/fs/pstore/dmesg-*"))
	kept, _ := filepath.Glob(filepath.Join(root, "var/lib/systemd/pstore/*/dmesg*")) // systemd-pstore moves them there
	for _, path := range append(dumps, newest(kept)...) {
		raw, err := readSome(path)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(raw) {
			if i := bytes.Index(line, []byte("Kernel panic")); i >= 0 && m.Panic == "" {
				m.Panic = strings.TrimSpace(string(line[i:]))
			}
		}
	}
	dogs, _ := filepath.Glob(filepath.Join(root, "sys/class/watchdog/watchdog*/bootstatus"))
	for _, path := range dogs {
		if raw, err := readSome(path); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 0, 64)
			m.Watchdog |= n
		}
	}
	m.Killed = killed(readKmsg(filepath.Join(root, "dev/kmsg")))
	return m
}

// newest is the last of some files by time, which are of many boots.
func newest(paths []string) []string {
	slices.SortFunc(paths, func(a, b string) int {
		x, errX := os.Stat(a)
		y, errY := os.Stat(b)
		if errX != nil || errY != nil {
			return strings.Compare(a, b)
		}
		return x.ModTime().Compare(y.ModTime())
	})
	return paths[max(0, len(paths)-1):]
}

// maxFile bounds the bytes that are read of a file.
const maxFile = 256 << 10

func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw := make([]byte, maxFile)
	n, err := f.Read(raw)
	if n > 0 {
		return raw[:n], nil
	}
	return nil, err
}

// maxKmsg bounds how many messages of the kernel are read: its buffer has some thousands.
const maxKmsg = 20_000

// readKmsg reads the kernel's messages that there are; each read is one of them
// (Documentation/ABI/testing/dev-kmsg).
func readKmsg(path string) (lines []string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	raw := make([]byte, 8<<10)
	for range maxKmsg {
		n, err := unix.Read(fd, raw)
		switch {
		case err == unix.EPIPE || err == unix.EINTR: //nolint:errorlint // a bare errno
			continue // overwritten while it was read
		case err != nil || n <= 0:
			return lines
		}
		_, text, _ := strings.Cut(string(raw[:n]), ";")
		if strings.Contains(text, "Killed process") {
			lines = append(lines, strings.SplitN(text, "\n", 2)[0])
		}
	}
	return lines
}

// killed are the PIDs and names in the kernel's lines "... Killed process 123 (name) ...".
func killed(lines []string) (all []string) {
	for _, line := range lines {
		_, rest, ok := strings.Cut(line, "Killed process ")
		if pid, _, spaced := strings.Cut(rest, " "); ok && spaced {
			all = append(all, pid)
		}
	}
	return all
}

// WDIOF_* of linux/watchdog.h.
const (
	wdOverheat  = 0x1
	wdFan       = 0x2
	wdPower     = 0x10
	wdCardReset = 0x20
	wdPowerOver = 0x40
)

// began are the records that a process begins with, from those that there are.
func began(before []Record, boot string, pid int, version string, m Machine) (now []Record) {
	var last, run Record // the newest record of all, and the newest Start
	stopped, shutdown := false, ""
	for _, r := range before {
		last = r
		switch r.Kind {
		case Start:
			run, stopped, shutdown = r, false, ""
		case Stop:
			stopped = true
		case Shutdown:
			shutdown = r.Reason
		}
	}
	start := Record{Kind: Start, Object: "edgecore " + version, PID: pid}
	switch {
	case last.Kind == "":
		start.Reason, start.Cause = "First", "there is no earlier record"
		return []Record{start}
	case last.Boot != boot:
		reason, cause := endOfBoot(last, stopped, shutdown, m)
		now = append(now, Record{Kind: Boot, Reason: reason, Cause: cause, ID: "boot/" + boot})
		start.Reason = "Boot"
	case stopped:
		start.Reason, start.Cause = "Restart", "edgecore was stopped in order"
	case slices.Contains(m.Killed, strconv.Itoa(run.PID)) && run.PID != 0:
		now = append(now, Record{Kind: OOM, Object: "edgecore", Reason: "OOMKilled", Cause: fmt.Sprintf("the kernel killed process %d for want of memory", run.PID)})
		start.Reason, start.Cause = "OOMKilled", "the kernel killed edgecore for want of memory"
	default:
		start.Reason = "Killed"
		start.Cause = fmt.Sprintf("edgecore (process %d) ended without being stopped: killed, or crashed; its last record is of %s", run.PID, last.Time.UTC().Format("15:04:05"))
	}
	return append(now, start)
}

// endOfBoot is why the boot before ended.
func endOfBoot(last Record, stopped bool, shutdown string, m Machine) (reason, cause string) {
	at := last.Time.UTC().Format("2006-01-02 15:04:05")
	var dog []string
	for _, w := range []struct {
		bit  int64
		text string
	}{{wdCardReset, "the watchdog reset the device"}, {wdOverheat, "it was too hot"}, {wdFan, "the fan failed"}, {wdPower, "the voltage was too low"}, {wdPowerOver, "the voltage was too high"}} {
		if m.Watchdog&w.bit != 0 {
			dog = append(dog, w.text)
		}
	}
	switch {
	case m.Panic != "":
		return "KernelPanic", m.Panic + "; the last record before it is of " + at
	case len(dog) > 0:
		return "Watchdog", strings.Join(dog, ", ") + "; the last record before it is of " + at
	case shutdown != "":
		return "Shutdown", "the device was shut down in order, at " + at
	case stopped:
		return "Stopped", "edgecore was stopped before the device went down, at " + at
	}
	return "PowerLoss", "the boot before ended without a shutdown: a power cut, a reset or a crash, after " + at
}
