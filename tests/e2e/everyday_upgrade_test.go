package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// otherVersion puts a copy of a program on a device that differs from it in its version alone,
// which it prints where it is asked by the argument. It returns the numbers of that version.
func (s *system) otherVersion(node, program, argument string) (path, version string) {
	s.T.Helper()
	out, err := exec.CommandContext(s.T.Context(), program, argument).Output()
	s.Check(err)
	for _, word := range strings.Fields(string(out)) {
		if word = strings.TrimPrefix(word, "v"); word[0] >= '0' && word[0] <= '9' {
			version = word
			break
		}
	}
	if version == "" {
		s.T.Fatalf("%s %s printed %q", program, argument, out)
	}
	raw, err := os.ReadFile(program)
	s.Check(err)
	// Only the numbers are in a kubelet's report. It keeps its length: texts of a program have
	// their lengths next to them.
	end := strings.IndexFunc(version, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end < 0 {
		end = len(version)
	}
	last := "7"
	if version[end-1:end] == last {
		last = "8"
	}
	other := version[:end-1] + last + version[end:]
	path = "/var/lib/upgraded/" + filepath.Base(program)
	s.Check(os.MkdirAll(filepath.Dir(s.path(node, path)), 0o755))
	s.Check(os.WriteFile(s.path(node, path), bytes.ReplaceAll(raw, []byte(version), []byte(other)), 0o755))
	return path, other[:end]
}

// otherContainerd puts another containerd on a device, and returns its version: the machine's own
// with another number, or with SKERRY_LONG=1 the next one, with its shim.
func (s *system) otherContainerd(node string) (path, version string) {
	s.T.Helper()
	if os.Getenv("SKERRY_LONG") == "" {
		own, err := exec.LookPath("containerd")
		s.Check(err)
		return s.otherVersion(node, own, "--version")
	}
	dir, err := binary.Containerd(s.T.Context(), s.Root, binary.NextContainerd)
	s.Check(err)
	for _, program := range []string{"containerd", "containerd-shim-runc-v2"} { // it looks for its shim beside itself, too
		raw, err := os.ReadFile(filepath.Join(dir, program))
		s.Check(err)
		path = "/var/lib/upgraded/" + program
		s.Check(os.MkdirAll(filepath.Dir(s.path(node, path)), 0o755))
		s.Check(os.WriteFile(s.path(node, path), raw, 0o755))
	}
	return "/var/lib/upgraded/containerd", strings.TrimPrefix(binary.NextContainerd, "v")
}

// upgrade stops a device's program and starts another in its place, as a package does, until the
// test ends.
func (s *system) upgrade(node, program, path string) {
	s.T.Helper()
	s.Check(s.Trial.Replace(s.T.Context(), node, program, []string{path}))
	s.Check(s.Trial.Stop(s.T.Context(), node, program))
	s.Start(node, program)
}

// TestEveryday_20: edgecore and containerd are upgraded while pods run, with a link and without:
// containers keep running, and the device, and later the cluster, report both versions. The
// upgraded programs restart a container that crashes. In `make long-test` the containerd is really
// a newer one, and is downgraded in between.
func TestEveryday_20_UpgradesWithPodsRunning(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := s.pod(ns, "bare", "edge1")
	edgecorePath, edgecoreVersion := s.otherVersion("edge1", filepath.Join(s.Root, "bin", "edgecore"), "version")
	containerdPath, containerdVersion := s.otherContainerd("edge1")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, program := range []string{"containerd", "edgecore"} {
			if err := s.Trial.Replace(ctx, "edge1", program, nil); err != nil {
				t.Error(err)
			}
			_ = s.Trial.Stop(ctx, "edge1", program) // the next test starts it
		}
		_ = os.RemoveAll(s.path("edge1", filepath.Dir(edgecorePath)))
	})
	changed := s.follow(ns)
	for _, offline := range []bool{true, false} {
		if offline {
			s.Cut("edge1")
			s.waitUnlinked("edge1")
		}
		running := s.Containers("edge1")
		for _, order := range [][2]string{{"edgecore", edgecorePath}, {"containerd", containerdPath}} {
			s.upgrade("edge1", order[0], order[1])
			if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
				t.Errorf("after %s (-before +after):\n%s", order[0], diff)
			}
		}
		s.waitKubelet("edge1")
		if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
			t.Errorf("with the kubelet (-before +after):\n%s", diff)
		}
		s.WaitFor("the device to have both versions", func(ctx context.Context) error {
			if out := s.onHost("edge1", "sh", "-c", edgecorePath+" version"); !strings.Contains(out, edgecoreVersion) {
				return fmt.Errorf("%s printed %s", edgecorePath, out)
			}
			node, err := s.device("edge1").CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
			if err == nil && !strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "containerd://"+containerdVersion) {
				err = fmt.Errorf("its runtime is %s", node.Status.NodeInfo.ContainerRuntimeVersion)
			}
			return err
		})
		s.post(pod, "/crash")
		s.WaitFor("a crashed container to run again", func(context.Context) error { return s.replaced("edge1", running) })
		s.waitRunningHere("edge1", *pod)
		if offline {
			s.Heal("edge1")
			s.waitLinked("edge1")
			for _, program := range []string{"containerd", "edgecore"} { // and back again, for the second time
				s.Check(s.Trial.Replace(t.Context(), "edge1", program, nil))
				s.Check(s.Trial.Stop(t.Context(), "edge1", program))
				s.Start("edge1", program)
			}
		}
		s.waitLinked("edge1")
		s.WaitReady("edge1", true)
	}
	s.waitDelivered("edge1")
	s.WaitFor("the cluster to have the runtime's version", func(ctx context.Context) error {
		node, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "containerd://"+containerdVersion) {
			err = fmt.Errorf("it has %s", node.Status.NodeInfo.ContainerRuntimeVersion)
		}
		return err
	})
	if now := s.WaitPods(ns, "", "edge1", 1)[0]; now.UID != pod.UID || len(changed()) > 0 {
		t.Errorf("the pod was %s, is %s; %q", pod.UID, now.UID, changed())
	}
}
