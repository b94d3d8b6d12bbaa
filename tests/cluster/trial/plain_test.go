package trial_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// TestTraps_29_PlainNodesHaveLogsAndExec: an ordinary kubelet's features are there to compare
// edgecore with.
func TestTraps_29_PlainNodesHaveLogsAndExec(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("a trial is made only as root and without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Build(t.Context(), root, "kubeplane", "cloudcore", "plainkubelet", "trial"); err != nil {
		t.Fatal(err)
	}
	// Not below /tmp: where that is a file system of its own, containerd's layers may not fit.
	dir := filepath.Join(root, ".trial-plain")
	var progress bytes.Buffer
	tr, err := trial.Open(root, dir, &progress)
	if err != nil && tr == nil {
		t.Fatal(err)
	}
	if err := tr.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(progress.String())
		}
		if err := tr.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	o := trial.DefaultOptions()
	o.Edges, o.Plain = 0, 1
	if err := tr.Up(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "trial"), append([]string{"kubectl", "-n", "sample"}, args...)...)
		cmd.Env = append(os.Environ(), "TRIAL_DIR="+dir)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = errors.Join(err, errors.New(errs.String()))
		}
		return string(out), err
	}
	pod, err := kubectl("get", "pods", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	pod = strings.TrimSpace(pod)
	if out, err := kubectl("logs", pod); err != nil || out == "" {
		t.Errorf("logs of %s: %q, %v", pod, out, err)
	}
	if out, err := kubectl("exec", pod, "--", "/app", "get", "http://127.0.0.1:8080/healthz"); err != nil || out == "" {
		t.Errorf("exec in %s: %q, %v", pod, out, err)
	}
}
