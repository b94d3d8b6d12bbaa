// Command skerry-launch executes the edgecore whose turn it is: the version that is tried, the
// confirmed one, or the package's. The unit of edgecore runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

const usage = `skerry-launch executes edgecore: the version that is tried (at most 3 starts), else the confirmed one, else the package's.

  skerry-launch [--dir DIR] [--version-file FILE] [--] PROGRAM [ARG...]

Example:
  skerry-launch --dir /var/lib/skerry/bin -- /usr/bin/edgecore --config /etc/skerry/edgecore.yaml

`

func main() {
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	dir := flag.String("dir", "/var/lib/skerry/bin", "directory of the slots: bin in edgecore's dataDir")
	version := flag.String("version-file", "/usr/share/skerry/version", "file with the version of the package")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	err = launch.Launch{
		Directory: launch.Directory{Path: *dir, Disk: launch.System{}}, Self: append([]string{self}, os.Args[1:]...),
		Program: flag.Arg(0), Args: flag.Args()[1:], Version: *version, Log: os.Stderr, Exec: syscall.Exec, Watch: notifyWatchdog,
	}.Run(time.Now())
	fmt.Fprintln(os.Stderr, "skerry-launch:", err)
	os.Exit(1)
}

// notifyWatchdog sends WATCHDOG=1 to systemd (sd_notify(3)), whose watchdog runs from then on, also
// before READY=1. Package net would double this program.
func notifyWatchdog() error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making a socket: %w", err)
	}
	defer syscall.Close(fd)
	if err := syscall.Sendto(fd, []byte("WATCHDOG=1"), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, &syscall.SockaddrUnix{Name: socket}); err != nil {
		return fmt.Errorf("notifying %s: %w", socket, err)
	}
	return nil
}
