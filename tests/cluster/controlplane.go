// Package cluster gives tests a real Kubernetes control plane: upstream's etcd,
// kube-apiserver, controller manager and scheduler in a child process on free loopback ports,
// with a directory of its own.
//
// There are two kinds. One that is lent (Run for a test, Shared for all tests of a process) comes
// from a pool and is as new: its user gives it back running, or ends, and before the next one gets
// it all stored objects are reset, beneath kube-apiserver (kubeplane --owner). The pool belongs to
// the `go test` that runs the tests, so that packages which it runs one after the other start one
// between them; to the process that SKERRY_PLANES_OWNER names, where a runner has several `go
// test`; or to the test's own process, where that was started by hand. A control plane of the pool
// watches that process, ends when it does, in whichever way, and removes its directory: a Ctrl-C or
// a crash needs no clean-up. One process at a time has it; while all are lent a further one is
// started.
//
// One of a test's own (Own) may have flags, and be stopped, killed and restored; it ends with the
// test, also when the test process is killed. A lent one refuses that.
//
// Several control planes may run side by side. The methods of ControlPlane may be called from any
// goroutine, except Stop, Kill and Start, which a test calls one at a time.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/cluster/tally"
)

const (
	// startTimeout is for the start of a control plane on a loaded machine; 3 s is usual.
	startTimeout = 2 * time.Minute
	stopPatience = 20 * time.Second
)

var errLent = errors.New("this control plane is lent, others use it after this test: ask for one with cluster.Own")

// A ControlPlane is a running control plane.
type ControlPlane struct {
	Dir        string // keys, etcd's data, logs
	Server     string // https://127.0.0.1:PORT; the port stays the same over Stop and Start
	Kubeconfig string // the administrator's

	path  string
	args  []string
	port  string
	child *process.Started // nil where another process has started it
	lock  *os.File         // of one from the pool, which may neither be stopped nor started
	admin *rest.Config
}

// New starts a control plane in dir with further flags of kubeplane (such as "--quick",
// "--audit=FILE") and returns when it is ready.
func New(ctx context.Context, dir string, flags ...string) (*ControlPlane, error) {
	c, err := prepare(ctx, dir, flags...)
	if err != nil {
		return nil, err
	}
	return c, c.Start(ctx)
}

func prepare(ctx context.Context, dir string, flags ...string) (*ControlPlane, error) {
	root, err := binary.Root()
	if err != nil {
		return nil, err
	}
	paths, err := binary.Build(ctx, root, "kubeplane")
	if err != nil {
		return nil, err
	}
	return &ControlPlane{Dir: dir, path: paths[0], args: flags, port: "0"}, nil
}

// Own starts a control plane with further flags of kubeplane for one test alone, which may stop,
// kill and restore it, and ends it with the test.
func Own(t testing.TB, flags ...string) *ControlPlane {
	t.Helper()
	skipShort(t)
	c, err := New(t.Context(), t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		showLog(t, c)
		if err := c.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a real control plane is started only without -short")
	}
}

func showLog(t testing.TB, c *ControlPlane) {
	if t.Failed() {
		t.Logf("end of the control plane's log:\n%s", c.LogTail())
	}
}

// Start starts the control plane again after Stop or Kill, with everything it had, on the
// same port.
func (c *ControlPlane) Start(ctx context.Context) error {
	if c.lock != nil {
		return errLent
	}
	return c.start(ctx)
}

func (c *ControlPlane) start(ctx context.Context) error {
	args := append([]string{"--dir=" + c.Dir, "--bind=127.0.0.1", "--advertise=127.0.0.1", "--port=" + c.port}, c.args...)
	tally.Add(tally.ControlPlane)
	child, err := process.Start(process.Spec{Path: c.path, Args: args, Log: c.log(), Bound: c.lock == nil, TimerSlack: process.Relaxed})
	if err != nil {
		return err
	}
	c.child = child
	if err := c.await(ctx); err != nil {
		return errors.Join(err, child.Kill(context.WithoutCancel(ctx)))
	}
	return nil
}

// await waits for the ready file, which kubeplane makes when all is up and removes when it
// starts or stops.
func (c *ControlPlane) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ready, err := c.ready()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err == nil && ready.PID == c.child.PID {
			return c.adopt(ready.Server, ready.Kubeconfig)
		}
		select {
		case <-tick.C:
		case <-c.child.Done():
			return fmt.Errorf("the control plane ended at its start: %w\n%s", c.child.Err(), c.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("waiting for the control plane: %w\n%s", context.Cause(ctx), c.LogTail())
		}
	}
}

// ready is the content of the ready file.
type ready struct {
	PID                int
	Server, Kubeconfig string
}

func (c *ControlPlane) ready() (r ready, err error) {
	raw, err := os.ReadFile(filepath.Join(c.Dir, "ready.json"))
	if err != nil {
		return r, fmt.Errorf("reading the ready file: %w", err)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("reading the ready file: %w", err)
	}
	return r, nil
}

func (c *ControlPlane) adopt(server, kubeconfig string) error {
	u, err := url.Parse(server)
	if err != nil {
		return fmt.Errorf("reading the server's address: %w", err)
	}
	c.Server, c.port, c.Kubeconfig = server, u.Port(), kubeconfig
	if c.admin, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	// Tests are not held back by client-go's own limit of 5 requests a second.
	c.admin.QPS = -1
	return nil
}

// Stop ends the control plane in an orderly way; clients see their connections closed.
func (c *ControlPlane) Stop(ctx context.Context) error {
	if c.lock != nil {
		return errLent
	}
	return c.child.Stop(ctx, stopPatience)
}

// Kill ends the control plane as a crash would. Stored objects are there again after Start.
func (c *ControlPlane) Kill(ctx context.Context) error {
	if c.lock != nil {
		return errLent
	}
	return c.child.Kill(ctx)
}

// Admin is a copy of the administrator's client configuration (group system:masters).
func (c *ControlPlane) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// Client is the administrator's client.
func (c *ControlPlane) Client() kubernetes.Interface { return kubernetes.NewForConfigOrDie(c.Admin()) }

// CA is the cluster's CA certificate, PEM.
func (c *ControlPlane) CA() []byte { return slices.Clone(c.admin.CAData) }

// CAFile and CAKeyFile are the paths of the CA's certificate and its key: a test may sign
// certificates with it.
func (c *ControlPlane) CAFile() string    { return filepath.Join(c.Dir, "pki", "ca.crt") }
func (c *ControlPlane) CAKeyFile() string { return filepath.Join(c.Dir, "pki", "ca.key") }

func (c *ControlPlane) log() string { return filepath.Join(c.Dir, "kubeplane.log") }

// LogTail is the end of the control plane's log.
func (c *ControlPlane) LogTail() string {
	raw, err := os.ReadFile(c.log())
	if err != nil {
		return err.Error()
	}
	const most = 4000
	if len(raw) > most {
		raw = raw[len(raw)-most:]
		if i := bytes.IndexByte(raw, '\n'); i >= 0 {
			raw = raw[i+1:]
		}
	}
	return string(raw)
}
