package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/process"
	guests "github.com/skerry-io/skerry/tests/machine"
)

// Streams are a command's.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exec runs a command on a host and returns its exit code. When ctx ends, the command is killed.
func (t *Trial) Exec(ctx context.Context, name string, s Streams, env []string, command string, args ...string) (int, error) {
	if s.Out == nil {
		s.Out = io.Discard
	}
	if _, ok := t.guestNode(name); ok {
		return t.execGuest(ctx, name, s, append([]string{command}, args...)...)
	}
	h, err := t.Host(name)
	if err != nil {
		return 0, err
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return 0, cli.Bad(err)
	}
	child, err := h.Start(process.Spec{Path: path, Args: args, Env: env, Dir: "/", Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
	if err != nil {
		return 0, err
	}
	select {
	case <-child.Done():
	case <-ctx.Done():
		if err := child.Kill(context.WithoutCancel(ctx)); err != nil {
			return 0, err
		}
		return 0, context.Cause(ctx)
	}
	if exit, ok := errors.AsType[*exec.ExitError](child.Err()); ok {
		return exit.ExitCode(), nil
	}
	return 0, child.Err()
}

// EdgeKubeconfig is the kubeconfig for an edge's own API, as a path on that edge.
func (t *Trial) EdgeKubeconfig() string { return edgeKube }

// A Variable is one of the environment.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Env is the environment by which other programs on the machine find the trial.
func (t *Trial) Env() ([]Variable, error) {
	if err := t.exists(); err != nil {
		return nil, err
	}
	_, far := lab.MachineLink(t.state.Network)
	env := []Variable{{"KUBECONFIG", t.Kubeconfig()}, {"TRIAL_CLOUD", far.Addr().String()}}
	for _, name := range t.Hosts() {
		// For nsenter --target $TRIAL_PID_edge1 --all.
		env = append(env, Variable{"TRIAL_PID_" + name, strconv.Itoa(t.machine(name).Init.PID)})
	}
	return env, nil
}

// Share copies a program into the shared folder of a guest, unless it is there, and returns its
// path in the guest. For a host it returns "": hosts have the programs of this computer.
func (t *Trial) Share(name, program string) (path string, err error) {
	n, ok := t.guestNode(name)
	if !ok {
		return "", nil
	}
	from, err := os.Stat(program)
	if err != nil {
		return "", fmt.Errorf("finding a program: %w", err)
	}
	file := filepath.Join(guests.Open(t.guestSpec(n), process.Identity{}).Share(), filepath.Base(program))
	path = "/host/" + filepath.Base(program)
	if have, err := os.Stat(file); err == nil && have.Size() == from.Size() && !have.ModTime().Before(from.ModTime()) {
		return path, nil
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("reading a program: %w", err)
	}
	// Not over the old file, which the guest may be running.
	if err := errors.Join(os.WriteFile(file+".new", raw, 0o755), os.Rename(file+".new", file)); err != nil {
		return "", fmt.Errorf("sharing a program with %s: %w", name, err)
	}
	return path, nil
}

// execGuest runs a command in a guest. It has no standard input.
func (t *Trial) execGuest(ctx context.Context, name string, s Streams, command ...string) (int, error) {
	m, err := t.Guest(name)
	if err != nil {
		return 0, err
	}
	if !m.On() {
		return 0, cli.Badf("%s is off: 'trial reboot %s' switches it on", name, name)
	}
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return m.Stream(ctx, strings.Join(words, " "), s.Out)
}
