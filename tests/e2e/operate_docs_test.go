package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/doccalls"
)

var (
	// endless are commands that a person interrupts.
	endless = regexp.MustCompile(`kubectl .*(logs -f|port-forward|proxy)|skerry ui|-o wide -w$`)
	// once are commands that may not be repeated where they fail.
	once       = regexp.MustCompile(`bin/trial (cut|heal|reboot|poweroff|up|set)`)
	onDevice   = regexp.MustCompile(`^(edgecore|curl) `)
	samplePods = regexp.MustCompile(`sample-[a-z0-9]{5}\b`)
)

// settle is how long an endless command must run after its first output.
const settle = time.Second

// A reader follows the documents: on edge1, or at a machine with kubectl.
type reader struct {
	*system
	env   []string // of the device
	dir   string   // the working directory on both
	names *strings.Replacer
}

// newReader has what the documents name: a device, and a pod on it.
func newReader(t *testing.T) *reader {
	s := newSystem(t)
	s.plugin()
	r := &reader{system: s, env: s.deviceShell(), dir: t.TempDir()}
	path, _ := strings.CutPrefix(r.env[len(r.env)-1], "PATH=")
	bin, _, _ := strings.Cut(path, ":")
	s.Check(os.Symlink(filepath.Join(s.Root, "bin", "edgecore"), filepath.Join(bin, "edgecore")))
	s.Check(os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n[ \"$*\" = reboot ]\n"), 0o755)) // the hosts have no systemd
	ns := s.Namespace()
	s.Apply(ns, samplePod("till-7xk2p", "edge1"))
	s.WaitPods(ns, "app=till-7xk2p", "edge1", 1)
	s.Check(os.WriteFile(filepath.Join(r.dir, "menu.json"), []byte("{}"), 0o600))
	r.names = strings.NewReplacer(
		"edge-17", "edge1", " NAME", " edge1", "-n shop", "-n "+ns, "namespaces/shop", "namespaces/"+ns,
		"-- sh", "-- /app get http://127.0.0.1:8080/healthz", ":/var/till.log", ":/etc/hosts", // the image has neither
		"kubectl -n skerry-system exec deploy/cloudcore -- /cloudcore", "bin/trial exec "+trial.Cloud+" -- bin/cloudcore", // no Deployment here
		"-l skerry.io/node-pool=plant ", "", // the devices' pool is another
		"bin/trial up", "bin/trial reboot edge2", // what it starts; its flags are the suite's
	)
	return r
}

// output calls first at each write.
type output struct {
	text  bytes.Buffer
	first func()
}

func (o *output) Write(p []byte) (int, error) {
	o.first()
	return o.text.Write(p) //nolint:wrapcheck // a buffer's
}

// shell runs a command where it belongs. first is called at its output, once or more often.
func (r *reader) shell(ctx context.Context, line string, first func()) (out string, err error) {
	if onDevice.MatchString(line) {
		exec := "" // so that it ends with ctx
		if endless.MatchString(line) {
			exec = "exec "
		}
		o, e := output{first: first}, bytes.Buffer{}
		code, err := r.Trial.Exec(ctx, "edge1", trial.Streams{Out: &o, Err: &e}, r.env, "bash", "-euo", "pipefail", "-c", "cd "+r.dir+" && "+exec+line)
		if err == nil && code != 0 {
			err = fmt.Errorf("code %d: %s", code, e.String())
		}
		return o.text.String(), err
	}
	const functions = `kubectl() { TRIAL_EDGE=1 "$ROOT/bin/trial" kubectl "$@"; }; trial() { (cd "$ROOT" && env -u KUBECONFIG bin/trial "$@"); }; `
	c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", functions+strings.ReplaceAll(line, "bin/trial", "trial"))
	c.Dir, c.WaitDelay = r.dir, time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) } // with what the shell has started
	c.Env = append(os.Environ(), "ROOT="+r.Root, "TRIAL_DIR="+r.Dir, "KUBECONFIG="+r.Trial.Kubeconfig())
	o, e := output{first: first}, bytes.Buffer{}
	c.Stdout, c.Stderr = &o, &e
	if err = c.Run(); err != nil {
		err = fmt.Errorf("%w: %s", err, e.String())
	}
	return o.text.String(), err
}

// attempt is shell with a bound: a connection from before a reboot may hang.
func (r *reader) attempt(ctx context.Context, line string) (string, error) {
	if !once.MatchString(line) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
	}
	return r.shell(ctx, line, func() {})
}

// pods puts the name of the sample's pod on edge1 in place of that of a document. The pod need not
// be Ready: the device may be cut off.
func (r *reader) pods(line string) string {
	return samplePods.ReplaceAllStringFunc(line, func(string) string {
		pods, err := r.Client.CoreV1().Pods("sample").List(r.T.Context(), metav1.ListOptions{LabelSelector: "app=sample", FieldSelector: "spec.nodeName=edge1"})
		if r.Check(err); len(pods.Items) == 0 {
			r.T.Fatal("edge1 has no pod of the sample")
		}
		return pods.Items[0].Name
	})
}

// run runs a command as a person would: once more where it fails, unless it changes something.
func (r *reader) run(c doccalls.Command) error {
	line := r.pods(r.names.Replace(c.Line))
	if endless.MatchString(line) {
		patient, stop := context.WithTimeout(r.T.Context(), time.Minute)
		defer stop()
		ctx, cancel := context.WithCancel(patient)
		defer cancel()
		printed := sync.OnceFunc(func() { time.AfterFunc(settle, cancel) })
		out, err := r.shell(ctx, line, printed)
		switch {
		case patient.Err() != nil:
			return errors.New("it printed nothing")
		case ctx.Err() == nil:
			return fmt.Errorf("it ended: %w\n%s", err, out)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(r.T.Context(), time.Minute)
	defer cancel()
	for {
		out, err := r.attempt(ctx, line)
		if len(c.Output) > 0 && strings.HasPrefix(c.Output[0], "Error ") { // as the page shows
			if err != nil && strings.Contains(err.Error(), "edgecore kubectl logs") {
				return nil
			}
			err = errors.Join(errors.New("the page shows an error"), err)
		}
		if err == nil {
			err = c.Differs(out)
		}
		if err == nil || ctx.Err() != nil || once.MatchString(line) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// TestOperate_15_CommandsOfADevice runs what the documents have for a device, and for a trial.
func TestOperate_15_CommandsOfADevice(t *testing.T) {
	r := newReader(t)
	blocks, err := doccalls.Blocks(r.Root)
	r.Check(err)
	t.Cleanup(func() {
		_, _ = r.Run(context.WithoutCancel(t.Context()), "set", "edge1", "modules.edged.reportEvent=false")
	}) // as tests have it
	// The kubelet of a trial that has only begun has renewed no Lease yet: cut off now, its device
	// would be one without a kubelet, and not one without a link.
	r.WaitFor("the devices to have no problem", func(ctx context.Context) error {
		out, err := r.Run(ctx, "kubectl", "skerry", "status")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
	ran, page := 0, ""
	for _, b := range blocks {
		if b.Reason != "" || !b.Shell() || !b.OnDevice() {
			continue
		}
		if page != "" && page != b.Page {
			r.Mend(t.Context()) // what the page has cut
		}
		page = b.Page
		for _, c := range b.Commands() {
			began := time.Now()
			if err := r.run(c); err != nil {
				t.Errorf("%s: %s: %v", b.Name(), c.Line, err)
			}
			t.Logf("%5.1f s  %s: %s", time.Since(began).Seconds(), b.Name(), c.Line)
			ran++
		}
	}
	if ran < 40 {
		t.Errorf("%d commands were found", ran)
	}
	for name, line := range map[string]string{"command": "edgecore states", "flag": "kubectl skerry recorder --since 1h edge-17"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := r.shell(ctx, r.names.Replace(line), func() {}); err == nil {
			t.Errorf("a wrong %s is not noticed", name)
		}
		cancel()
	}
}
