package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// A terminal on this side, kubectl in it, and a program in a pod that prints its own terminal.
func TestTunnel_04_ExecOnATerminal(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.Root, "bin", "trial"), "kubectl", "exec", "-it", "-n", "sample", pod.Name, "--", "/app", "terminal")
	cmd.Dir, cmd.Env = s.Root, append(os.Environ(), "TRIAL_DIR="+s.Dir)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 101, Rows: 31})
	s.Check(err)
	defer terminal.Close()
	var shown text
	go func() { // until the terminal's other side is closed
		b := make([]byte, 4096)
		for {
			n, err := terminal.Read(b)
			_, _ = shown.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	shows := func(what string) {
		t.Helper()
		s.WaitFor("the terminal to show "+what, func(context.Context) error {
			if !strings.Contains(shown.String(), what) {
				return fmt.Errorf("it shows %q", shown.String())
			}
			return nil
		})
	}
	// kubectl sends the size as soon as the stream stands, the program may have looked before that:
	// it sees both.
	shows("size 101x31")
	s.Check(pty.Setsize(terminal, &pty.Winsize{Cols: 77, Rows: 22}))
	shows("size 77x22")
	_, err = terminal.Write([]byte{3}) // Ctrl-C: an interrupt there, not here
	s.Check(err)
	shows("interrupted")
	if exit, ok := errors.AsType[*exec.ExitError](cmd.Wait()); !ok || exit.ExitCode() != 130 {
		t.Errorf("kubectl ended with %v, want the program's own code", exit)
	}
}

func TestTunnel_07_CopyBothWays(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("copies", "edge2"))
	s.WaitPods(ns, "app=copies", "edge2", 1)
	dir := t.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	content := make([]byte, 100<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(content)
	s.Check(os.WriteFile(there, content, 0o600))
	want := fmt.Sprintf("%x", sha256.Sum256(content))

	s.Kubectl("cp", "-n", ns, there, "copies:/tmp/big")
	if got := strings.TrimSpace(s.Kubectl("exec", "-n", ns, "copies", "--", "/app", "sum", "/tmp/big")); got != want {
		t.Errorf("what arrived in the pod has the sum %s, want %s", got, want)
	}
	s.Kubectl("cp", "-n", ns, "copies:/tmp/big", back)
	got, err := os.ReadFile(back)
	s.Check(err)
	if sum := fmt.Sprintf("%x", sha256.Sum256(got)); sum != want {
		t.Errorf("what came back has %d bytes and the sum %s, want %s", len(got), sum, want)
	}
}

// A file comes from a device behind a thin link: the kubelet has closed the connection long before
// its last megabytes have crossed the link, and kubectl sends pings meanwhile.
func TestTunnel_07_CopyFromADeviceBehindAThinLink(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("copies", "edge2"))
	s.WaitPods(ns, "app=copies", "edge2", 1)
	dir := t.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	content := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{8}).Read(content)
	s.Check(os.WriteFile(there, content, 0o600))
	s.Kubectl("cp", "-n", ns, there, "copies:/tmp/big")

	s.waitLinked("edge2")
	s.Check(s.Trial.Shape(t.Context(), "edge2", lab.Shape{Rate: 3_000_000}))
	s.Kubectl("cp", "-n", ns, "copies:/tmp/big", back)
	got, err := os.ReadFile(back)
	s.Check(err)
	if !bytes.Equal(got, content) {
		t.Errorf("what came back has %d bytes, of %d, or others", len(got), len(content))
	}
}

// kubectl debug puts a container into a pod that runs; its output and its end come back as
// those of any other.
func TestStreams_Debug(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("debugged", "edge1"))
	s.WaitPods(ns, "app=debugged", "edge1", 1)
	s.Kubectl("debug", "-n", ns, "debugged", "--image=skerry.local/sample:1", "--image-pull-policy=IfNotPresent", "--container=looks", "--target=sample",
		"--", "/app", "get", "http://127.0.0.1:8080/")
	s.WaitFor("the debugging container to have ended", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, "debugged", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var states []corev1.ContainerState
		for _, c := range p.Status.EphemeralContainerStatuses {
			if states = append(states, c.State); c.State.Terminated != nil && c.State.Terminated.ExitCode == 0 {
				return nil
			}
		}
		return fmt.Errorf("its states are %v", states)
	})
	if out := s.Kubectl("logs", "-n", ns, "debugged", "-c", "looks"); !strings.Contains(out, "pod ") {
		t.Errorf("it says %q", out)
	}
}

// Every node has its figures, and every pod memory.
func TestTunnel_08_TopShowsNodesAndPods(t *testing.T) {
	s := newSystem(t)
	shown := func(args ...string) func(context.Context) (map[string][]string, error) {
		return func(ctx context.Context) (map[string][]string, error) {
			out, err := s.Run(ctx, append(append([]string{"kubectl", "top"}, args...), "--no-headers")...)
			rows := map[string][]string{}
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) > 2 {
					rows[f[0]] = f[1:]
				}
			}
			return rows, err
		}
	}
	s.WaitFor("kubectl top nodes", func(ctx context.Context) error {
		rows, err := shown("nodes")(ctx)
		if err != nil {
			return err
		}
		for _, node := range []string{"edge1", "edge2"} {
			// NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%)
			if row := rows[node]; len(row) != 4 || strings.Contains(strings.Join(row, " "), "unknown") || row[2] == "0Mi" {
				return fmt.Errorf("%s is shown as %v", node, row)
			}
		}
		return nil
	})
	pods := append(s.WaitPods("sample", "app=sample", "edge1", 1), s.WaitPods("sample", "app=sample", "edge2", 1)...)
	s.WaitFor("kubectl top pods", func(ctx context.Context) error {
		rows, err := shown("pods", "-n", "sample")(ctx)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if row := rows[p.Name]; len(row) != 2 || row[1] == "0Mi" { // CPU(cores) MEMORY(bytes)
				return fmt.Errorf("%s is shown as %v", p.Name, row)
			}
		}
		return nil
	})
	// One that can't be reached is explained.
	s.Cut("edge2")
	s.WaitFor("kubectl top to say that there is no link", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "top", "node", "edge2")
		if err == nil || !strings.Contains(err.Error(), "edge2 has had no link since ") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}
