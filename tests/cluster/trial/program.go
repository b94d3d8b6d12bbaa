package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

const (
	apiPort = "6443"
	// readyTimeout is for one program on a loaded machine.
	readyTimeout = time.Minute
	stopPatience = 15 * time.Second
	// pollFirst and pollMost are the pauses between two questions: the first, and those after it
	// have doubled. A question may list all of kube-apiserver's pods.
	pollFirst, pollMost = 20 * time.Millisecond, 250 * time.Millisecond
	// systemBus is where login1 is (D-Bus specification, "System message bus").
	systemBus = "/run/dbus/system_bus_socket"
)

// A program is a daemon of a host.
type program struct {
	name  string
	path  string
	args  []string
	slack time.Duration // of its timers; 0: the kernel's own
	// ready returns nil once the program serves; nil means that it is ready when it runs.
	ready func(context.Context) error
}

// EdgecoreTimerSlack is TimerSlackNSec= of edgecore's unit.
const EdgecoreTimerSlack = 10 * time.Millisecond

// programs lists a host's daemons in the order they start.
func (t *Trial) programs(name string) []program {
	h := t.machine(name).Host
	core := program{
		name: "cloudcore", path: t.binary("cloudcore"), args: []string{"--config", cloudcoreConfig},
		ready: func(ctx context.Context) error { return healthy(ctx, h, "http://127.0.0.1:10003/readyz") },
	}
	switch name {
	case Cloud:
		if t.state.Options.InCluster {
			return []program{t.kubeplane(h), t.kubeProxy(name)}
		}
		return []program{t.kubeplane(h), core}
	case router:
		if t.state.Options.InCluster {
			return []program{t.loadBalancer()}
		}
		return nil
	case Client:
		return nil
	}
	if slices.Contains(t.state.Options.Replicas(), name) {
		return []program{core}
	}
	containerd := program{
		name: "containerd", path: "containerd", args: []string{"--config", "/etc/containerd/config.toml"},
		ready: func(ctx context.Context) error {
			c, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.Root(), containerdSocket))
			if err == nil {
				c.Close()
			}
			return err
		},
	}
	if n, err := t.node(name); err == nil && n.Plain {
		all := []program{containerd, {
			name: "kubelet", path: t.binary("plainkubelet"),
			args: []string{"--config=" + kubeletConfig, "--kubeconfig=" + kubeletKube, "--hostname-override=" + name, "--v=2"},
		}}
		if t.state.Options.InCluster {
			all = append(all, t.kubeProxy(name))
		}
		return all
	}
	logind := program{
		name: "logind", path: t.logind(),
		ready: func(ctx context.Context) error {
			c, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.Root(), systemBus))
			if err == nil {
				c.Close()
			}
			return err
		},
	}
	return []program{logind, containerd, {
		name: "edgecore", path: t.binary("edgecore"), args: []string{"--config", edgecoreConfig}, slack: EdgecoreTimerSlack,
	}}
}

func (t *Trial) kubeplane(h host.Host) program {
	_, far := lab.MachineLink(t.state.Network)
	args := []string{
		"--dir=" + planeDir, "--bind=0.0.0.0", "--advertise=" + lab.Cloud().String(), "--port=" + apiPort, "--sans=" + far.Addr().String(),
	}
	var replicas []string
	for n := range t.state.Options.Replicas() {
		replicas = append(replicas, net.JoinHostPort(lab.Replica(n+1).String(), tunnelPort))
	}
	if t.state.Options.InCluster {
		replicas = []string{net.JoinHostPort(tunnelName, tunnelPort)}
	}
	if t.state.Options.Streams != StreamsEndpoint && !t.state.Options.Bare {
		args = append(args, "--egress-selector="+egressFile, "--egress-listen="+egressAddress, "--egress-to="+strings.Join(replicas, ","))
	}
	if t.state.Options.Quick {
		args = append(args, "--quick")
	}
	if t.state.Options.Audit {
		args = append(args, "--audit=/var/log/audit.log")
	}
	if life := t.state.Options.CertificateLife; life != 0 {
		args = append(args, "--controller-arg=--cluster-signing-duration="+life.String())
	}
	return program{
		name: "kubeplane", path: t.binary("kubeplane"), args: args, slack: process.Relaxed,
		ready: func(context.Context) error {
			_, err := os.Stat(filepath.Join(h.Root(), planeDir, "ready.json"))
			return err
		},
	}
}

func (t *Trial) loadBalancer() program {
	var nodes []string
	for _, n := range t.state.Options.Nodes() {
		if n.Plain {
			nodes = append(nodes, lab.Uplink(n.Number).Addr().String())
		}
	}
	return program{name: "loadbalancer", path: t.binary("loadbalancer"), args: []string{
		"--kubeconfig=" + t.balancerKube(), "--address=" + lab.LoadBalancer().String(), "--nodes=" + strings.Join(nodes, ","),
	}}
}

// kubeProxy serves Services on a host of the cloud's own network. On the host of the control plane,
// which is no node, it looks for one for half a minute at its start.
func (t *Trial) kubeProxy(name string) program {
	h := t.machine(name).Host
	args := []string{
		"--kubeconfig=" + proxyKube, "--proxy-mode=iptables", "--hostname-override=" + name, "--cluster-cidr=" + lab.AllPods().String(),
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "--v=2",
	}
	if name == Cloud {
		args = append(args, "--bind-address="+lab.Cloud().String())
	}
	return program{
		name: "kube-proxy", path: t.binary("kubeproxy"), args: args,
		ready: func(ctx context.Context) error { return healthy(ctx, h, "http://127.0.0.1:10256/livez") },
	}
}

func healthy(ctx context.Context, h host.Host, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		var body bytes.Buffer
		body.ReadFrom(res.Body)
		return fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(body.String()))
	}
	return nil
}

func (t *Trial) program(host, name string) (program, error) {
	var names []string
	for _, p := range t.programs(host) {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	if name == "kubelet" {
		return program{}, cli.Badf("the kubelet of %s is a part of edgecore: name that", host)
	}
	if len(names) == 0 {
		return program{}, cli.Badf("no program of ours runs on %s", host)
	}
	return program{}, cli.Badf("%s has no program %q: it has %s", host, name, strings.Join(names, ", "))
}

// start starts a program unless it runs, and waits until it is ready.
func (t *Trial) start(ctx context.Context, name string, p program) error {
	m := t.machine(name)
	if m.Processes[p.name].Alive() {
		return t.await(ctx, name, p, m.Processes[p.name])
	}
	if p.name == "kubeplane" {
		// The one of a killed process would speak for the new one.
		if err := os.Remove(filepath.Join(m.Root(), planeDir, "ready.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing an old ready file: %w", err)
		}
	}
	command := append([]string{p.path}, p.args...)
	if other := m.Replaced[p.name]; len(other) > 0 {
		command = append(slices.Clone(other), p.args...)
	}
	child, err := m.Host.Start(process.Spec{Path: command[0], Args: command[1:], Dir: "/", Log: t.LogPath(name, p.name), TimerSlack: p.slack})
	if err != nil {
		return fmt.Errorf("starting %s on %s: %w", p.name, name, err)
	}
	err = t.change(func(s *State) {
		h := s.Hosts[name]
		if h.Processes == nil {
			h.Processes = map[string]process.Identity{}
		}
		h.Processes[p.name] = child.Identity
	})
	if err != nil {
		return err
	}
	return t.await(ctx, name, p, child.Identity)
}

func (t *Trial) await(ctx context.Context, name string, p program, id process.Identity) error {
	err := poll(ctx, readyTimeout, func(ctx context.Context) (bool, error) {
		if !id.Alive() {
			return true, errors.New("it ended")
		}
		if p.ready == nil {
			return true, nil
		}
		err := p.ready(ctx)
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("%s on %s did not get ready: %w\nend of its log (%s):\n%s", p.name, name, err, t.LogPath(name, p.name), t.logTail(name, p.name))
	}
	return nil
}

// poll repeats try until it reports that it is done, patience is over or ctx ends; then the result
// is try's last error.
func poll(ctx context.Context, patience time.Duration, try func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		done, err := try(ctx)
		if done {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("after %v: %w", patience, context.Cause(ctx)), err)
		}
	}
}

// logTail is the end of a program's log, for an error message.
func (t *Trial) logTail(host, program string) string {
	raw, err := os.ReadFile(t.LogPath(host, program))
	if err != nil {
		return err.Error()
	}
	const most = 2000
	if len(raw) > most {
		raw = raw[len(raw)-most:]
		if i := bytes.IndexByte(raw, '\n'); i >= 0 {
			raw = raw[i+1:]
		}
	}
	return strings.TrimSpace(string(raw))
}

// run runs a program on a host to its end and returns its standard output.
func (t *Trial) run(name, path string, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	child, err := t.machine(name).Host.Start(process.Spec{Path: path, Args: args, Dir: "/", Stdout: &out, Stderr: &errs})
	if err != nil {
		return nil, fmt.Errorf("running %s on %s: %w", filepath.Base(path), name, err)
	}
	<-child.Done()
	if err := child.Err(); err != nil {
		return nil, fmt.Errorf("%s %s on %s: %w: %s", filepath.Base(path), args[0], name, err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// Replace has a host's program started by another command from its next start on, over reboots too;
// the program's arguments come after the command's. No command: by its own again.
func (t *Trial) Replace(ctx context.Context, host, name string, command []string) error {
	return t.withProgram(ctx, host, name, func(p program) error {
		return t.change(func(s *State) {
			m := s.Hosts[host]
			if m.Replaced == nil {
				m.Replaced = map[string][]string{}
			}
			m.Replaced[p.name] = command
		})
	})
}

// Kill ends a program as a crash would.
func (t *Trial) Kill(ctx context.Context, host, name string) error {
	return t.withProgram(ctx, host, name, func(p program) error {
		id, err := t.running(host, p)
		if err != nil {
			return err
		}
		return id.Kill(ctx)
	})
}

// Stop ends a program in its own way.
func (t *Trial) Stop(ctx context.Context, host, name string) error {
	return t.withProgram(ctx, host, name, func(p program) error {
		id, err := t.running(host, p)
		if err != nil {
			return err
		}
		return id.Stop(ctx, stopPatience)
	})
}

// Start starts a program that was killed or stopped, and returns when it is ready.
func (t *Trial) Start(ctx context.Context, host, name string) error {
	return t.withProgram(ctx, host, name, func(p program) error {
		if t.machine(host).Processes[p.name].Alive() {
			return cli.Badf("%s on %s runs already", p.name, host)
		}
		return t.start(ctx, host, p)
	})
}

// Signal sends a signal to a program, such as SIGSTOP for one that hangs.
func (t *Trial) Signal(ctx context.Context, host, name string, sig syscall.Signal) error {
	return t.withProgram(ctx, host, name, func(p program) error {
		id, err := t.running(host, p)
		if err != nil {
			return err
		}
		return id.Signal(sig)
	})
}

func (t *Trial) withProgram(ctx context.Context, host, name string, f func(program) error) error {
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := t.Host(host); err != nil {
		return err
	}
	p, err := t.program(host, name)
	if err != nil {
		return err
	}
	return f(p)
}

func (t *Trial) running(host string, p program) (process.Identity, error) {
	id := t.machine(host).Processes[p.name]
	if !id.Alive() {
		return id, cli.Badf("%s on %s is not running: 'trial start %s %s' starts it", p.name, host, host, p.name)
	}
	return id, nil
}
