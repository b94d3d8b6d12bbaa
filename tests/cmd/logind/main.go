// Command logind stands for systemd on a host of the trial: a login1 on the system bus, and the end
// of all processes there, as at `systemctl reboot`. It ends when it is the last process of the
// host; the power is the trial's.
//
// "logind reboot" asks the one on this host for that.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/common/login1test"
)

const (
	socket = "/run/dbus/system_bus_socket"
	conf   = "/etc/systemd/logind.conf.d"
	// delay is logind's default (logind.conf(5)).
	delay = 5 * time.Second
	// stopTimeout is how long processes have after SIGTERM; systemd's is 90 s.
	stopTimeout = 5 * time.Second
	// edgecoreTimeout is how long edgecore has, which its unit lets end before containerd.
	edgecoreTimeout = 20 * time.Second
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "reboot":
		return login1test.Reboot("unix:path=" + socket)
	case len(args) != 0:
		return fmt.Errorf("unknown arguments %q", args)
	}
	// Otherwise its reboot would stop the machine's own processes.
	if first, err := os.Readlink("/proc/1/exe"); err != nil || filepath.Base(first) != "pause" {
		return errors.New("this is no host of a trial")
	}
	rebooting := make(chan struct{}, 1)
	l, err := login1test.Start(login1test.Options{
		Socket: socket, Delay: delay, Conf: conf, Log: func(text string) { log.Print(text) }, Reboot: func() { rebooting <- struct{}{} },
	})
	if err != nil {
		return err
	}
	defer l.Close()
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	log.Print("serving")
	select {
	case <-stop.Done():
		return nil
	case <-rebooting:
	}
	log.Print("a shutdown begins")
	if err := l.Announce(true); err != nil {
		return err
	}
	for _, held := range l.Released(context.Background()) {
		log.Print("held for too long: " + held)
	}
	log.Print("ending edgecore")
	end("edgecore", syscall.SIGTERM, edgecoreTimeout)
	log.Print("ending all")
	if left := end("", syscall.SIGTERM, stopTimeout); len(left) > 0 {
		log.Printf("killing %s", strings.Join(left, ", "))
		end("", syscall.SIGKILL, stopTimeout)
	}
	log.Print("nothing runs any more")
	return nil
}

// end signals the processes of a name, "" for all, and waits until they have ended. It returns the
// names of those that have not.
func end(name string, sig syscall.Signal, limit time.Duration) []string {
	first := true
	for until := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		left := others(name)
		if len(left) == 0 || time.Now().After(until) {
			var names []string
			for _, n := range left {
				names = append(names, n)
			}
			return names
		}
		if !first {
			continue
		}
		first = false
		for pid := range left {
			_ = syscall.Kill(pid, sig) // it may have ended in the meantime
		}
	}
}

// others are the processes of this host except its first, this one, and those that have ended.
func others(name string) map[int]string {
	all := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		open, shut := strings.IndexByte(string(raw), '('), strings.LastIndexByte(string(raw), ')')
		if open < 0 || shut < open || strings.HasPrefix(string(raw[shut+1:]), " Z") {
			continue
		}
		if is := string(raw[open+1 : shut]); name == "" || is == name {
			all[pid] = is
		}
	}
	return all
}
