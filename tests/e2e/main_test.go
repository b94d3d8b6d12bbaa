// Package e2e_test runs against one whole trial: two edges, a real control plane, real containers. The trial is brought up once for the package and is always
// taken down, also when tests fail, hang or panic.
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	// inner marks the process that runs the tests. The one that brings the trial up and down is its parent, so that a test which runs out of time, or panics,
	// can't keep the trial from being taken down.
	inner = "SKERRY_E2E_TRIAL"
	// upTimeout is for a loaded machine; 15 s is usual.
	upTimeout = 5 * time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(inner) != "" || short() || os.Getuid() != 0 {
		os.Exit(m.Run())
	}
	code, err := outer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// short reports -short before the flags are parsed.
func short() bool {
	return slices.ContainsFunc(os.Args, func(a string) bool { return a == "-test.short" || a == "-test.short=true" })
}

// options are the trial's. Lost nodes are noticed quickly, so that tests need not wait for minutes; cloudcore has two replicas
// behind one address.
func options() trial.Options {
	o := trial.DefaultOptions()
	o.Quick, o.Audit = true, true
	o.Clouds = 2
	o.Set = []string{
		"modules.edged.kubelet.syncFrequency=5s",                         // how often volumes follow their ConfigMaps
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s", // how soon a silent link is given up
	}
	o.Set = append(o.Set, drainSettings()...)
	return o
}

func trialDir(root string) string { return filepath.Join(root, ".trial-e2e") }

func outer() (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	defer stop()
	root, err := binary.Root()
	if err != nil {
		return 1, err
	}
	if _, err := binary.Build(ctx, root, "kubeplane", "cloudcore", "edgecore", "trial"); err != nil {
		return 1, err
	}
	t, err := trial.Open(root, trialDir(root), os.Stderr)
	if err != nil && t == nil {
		return 1, err
	}
	// What a killed run left behind goes first.
	if err := t.Down(ctx); err != nil {
		return 1, err
	}
	defer func() {
		downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, t.Down(downCtx))
	}()
	upCtx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	if err := t.Up(upCtx, options()); err != nil {
		return 1, err
	}
	tests := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	tests.Env = append(os.Environ(), inner+"="+trialDir(root))
	tests.Stdin, tests.Stdout, tests.Stderr = nil, os.Stdout, os.Stderr
	tests.Cancel = func() error { return tests.Process.Signal(syscall.SIGQUIT) } // shows what hangs
	tests.WaitDelay = 10 * time.Second
	err = tests.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		keepLogs(root)
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// keepLogs saves the programs' logs of a failed run where `make clean` finds them.
func keepLogs(root string) {
	logs, err := filepath.Glob(filepath.Join(trialDir(root), "hosts", "*", "log", "*.log"))
	if err != nil {
		return
	}
	out := filepath.Join(root, "build", "out", "e2e")
	if err := os.MkdirAll(out, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: keeping the logs:", err)
		return
	}
	for _, log := range logs {
		host := filepath.Base(filepath.Dir(filepath.Dir(log)))
		if err := copyFile(filepath.Join(out, host+"-"+filepath.Base(log)), log); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: keeping a log:", err)
		}
	}
	fmt.Fprintln(os.Stderr, "e2e: the logs of this run are in", out)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
