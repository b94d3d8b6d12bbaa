package trial

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestInotifyRoom asks a kernel that gives few: the one of a user namespace, which has limits of
// its own (user_namespaces(7), /proc/sys/user).
func TestInotifyRoom(t *testing.T) {
	const inside = "SKERRY_TEST_INOTIFY"
	if os.Getenv(inside) != "" {
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("10"), 0); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the instances are given back
			if err := inotifyRoom(8); err != nil {
				t.Error(err)
			}
		}
		fmt.Println("said:", inotifyRoom(20))
		return
	}
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("namespaces are made only as root and without -short")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInotifyRoom$")
	cmd.Env = append(os.Environ(), inside+"=1")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"said: this trial needs 20 inotify instances and 10 are free", "sysctl -w fs.inotify.max_user_instances="} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

// Programs that run already need no more instances.
func TestInotifyNeed(t *testing.T) {
	tr := open(t, t.TempDir())
	o := DefaultOptions()
	if got, want := tr.inotifyNeed(o), inotifyPlane+2*inotifyNode; got != want {
		t.Errorf("a new trial needs %d, want %d", got, want)
	}
	if err := tr.begin(o); err != nil {
		t.Fatal(err)
	}
	self, err := findSelf()
	if err != nil {
		t.Fatal(err)
	}
	for host, program := range map[string]string{Cloud: "kubeplane", "edge1": "containerd"} {
		if err := tr.change(func(s *State) { s.Hosts[host].Processes = self(program) }); err != nil {
			t.Fatal(err)
		}
	}
	if got := tr.inotifyNeed(o); got != inotifyNode {
		t.Errorf("one that lacks a node needs %d, want %d", got, inotifyNode)
	}
	o.Plain, o.InCluster = 1, true
	if got, want := tr.inotifyNeed(o), 2*inotifyNode+inotifyProxy; got != want {
		t.Errorf("one that lacks an edge and an ordinary node needs %d, want %d", got, want)
	}
}
