package machine_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/registry"
)

// TestEveryday_23: the power is cut as soon as new pods run, of which one's image was just pulled,
// and the link with it. What the kernel has not written to the disk is lost: no other test knows
// that.
func TestEveryday_23_PowerIsCutRightAfterPodsStarted(t *testing.T) {
	s := newSystem(t)
	s.serve("./tests/images/devices")
	before := s.pods
	s.Apply(s.namespace, pulled())
	t.Cleanup(func() {
		s.pods = before
		_, err := s.Run(context.WithoutCancel(t.Context()), "kubectl", "delete", "-n", s.namespace, "pod/fresh", "pod/pulled", "--ignore-not-found", "--timeout="+patience.String())
		if err != nil {
			t.Error(err)
		}
	})
	s.awaitPods(len(before) + 1)
	s.Apply(s.namespace, barePod("fresh", podSpec("", ""))) // after the pull, whose end writes to the disk
	s.pods = s.awaitPods(len(before) + 2)
	running, boot := s.running(), s.run("cat /proc/sys/kernel/random/boot_id")
	s.cut()
	s.Check(s.guest.Cut(t.Context()))
	s.switchOn()
	s.again(running)
	if now := s.run("cat /proc/sys/kernel/random/boot_id"); now == boot {
		t.Error("the machine has not booted")
	}
	s.recordsPowerLoss()
	s.heal()
	t.Log(s.run("journalctl --boot --unit edgecore --no-pager | grep -E 'Deleted files|Removed an image' | cut -c -300; true"))
}

// TestEveryday_29: the power of a new device is cut as soon as its first pods run, and its link.
// Nothing but edgecore has written to the disk what containerd unpacked: the image of sandboxes,
// from edgecore's package, and one that was imported with ctr.
func TestEveryday_29_PowerIsCutAfterTheFirstPods(t *testing.T) {
	s := newSystem(t)
	before := s.running()
	s.emptyRuntime()
	s.again(before)
	before = s.running()
	s.cut()
	s.Check(s.guest.Cut(t.Context()))
	s.switchOn()
	s.again(before)
	s.heal()
}

// emptyRuntime gives the machine a containerd that has never run, and edgecore its first start with
// it. The sample's image is imported once that of sandboxes is there: what wrote that has not
// written this. The rest of the machine stays, on the disk.
func (s *system) emptyRuntime() {
	s.T.Helper()
	s.run(`set -e
		systemctl stop edgecore containerd
		for pods in /sys/fs/cgroup/kubepods*; do echo 1 >$pods/cgroup.kill; done
		pkill -KILL -f /usr/bin/containerd-shim || true
		while pgrep -f /usr/bin/containerd-shim; do sleep .2; done
		grep -o ' /run/containerd/[^ ]* ' /proc/mounts | xargs -r umount
		rm -rf /var/lib/containerd /run/containerd
		sync
		systemctl start containerd edgecore
		until [ -n "$(ctr -n k8s.io images ls -q)" ]; do sleep 1; done
		ctr -n k8s.io images import /host/sample.tar`)
}

// pulled is a pod with an image of the test's registry.
func pulled() string {
	return barePod("pulled", `
  nodeSelector: {kubernetes.io/hostname: `+node+`}
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "`+registry.Address+`/fresh/devices:1", args: [wait]}]
`)
}

// serve has a registry with an image of that program on the machine's router, which the machine
// finds on its own loopback interface, until its boot.
func (s *system) serve(program string) {
	s.T.Helper()
	r, err := registry.New(s.T.Context(), s.Root, s.T.TempDir(), program, "app")
	s.Check(err)
	router, err := s.Trial.Host("router")
	s.Check(err)
	_, port, err := net.SplitHostPort(registry.Address)
	s.Check(err)
	there := net.JoinHostPort(strings.TrimSpace(s.run("ip -4 route show default | grep -om1 'via [0-9.]*' | cut -d ' ' -f 2")), port)
	var l net.Listener
	s.Check(router.Do(func() (err error) { l, err = net.Listen("tcp", there); return err }))
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	s.T.Cleanup(func() { _ = server.Close() })
	s.run(fmt.Sprintf("systemd-run --quiet --unit=registry --socket-property=ListenStream=%s /lib/systemd/systemd-socket-proxyd %s", registry.Address, there))
}
