package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/tally"
	guests "github.com/skerry-io/skerry/tests/machine"
)

// ports are those that edges can dial: cloudcore's. No other port of the cloud is open to them,
// kube-apiserver's least of all.
func ports() []lab.Port {
	return []lab.Port{{Protocol: "tcp", Number: 443}, {Protocol: "udp", Number: 443}}
}

// Up brings the trial to the state of the options, from whatever there is: it boots hosts, starts
// programs and joins nodes that are missing, and returns when every node is Ready and the sample
// application runs. A cut link stays cut.
func (t *Trial) Up(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return cli.Bad(err)
	}
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := errors.Join(t.check(ctx, o), inotifyRoom(t.inotifyNeed(o))); err != nil {
		return cli.Bad(err)
	}
	if t.state == nil {
		if err := t.begin(o); err != nil {
			return err
		}
	} else if !reflect.DeepEqual(normal(t.state.Options), normal(o)) {
		return cli.Badf("a trial with other options is up (%s): 'trial down' first, or change edges with 'trial set'", describe(t.state.Options))
	} else {
		t.say("a trial is up here already: " + describe(o) + "; bringing up what is missing")
	}

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.images(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := t.bootAll(ctx); err != nil {
		return err
	}
	nodes := t.state.Options.Nodes()

	// The cloud and the nodes get ready side by side; an edge joins once both are, a plain node
	// once there is a kube-apiserver.
	apiReady, cloudReady := make(chan struct{}), make(chan struct{})
	g, gctx = errgroup.WithContext(ctx)
	var token string
	g.Go(func() (err error) {
		if err := t.startPlane(gctx); err != nil {
			return err
		}
		close(apiReady)
		if err := t.startCloud(gctx); err != nil {
			return err
		}
		if !o.Bare {
			if token, err = t.token(gctx, nodes); err != nil {
				return err
			}
		}
		close(cloudReady)
		return nil
	})
	if o.InCluster {
		g.Go(func() error {
			select {
			case <-apiReady:
				return t.startProxy(gctx, Cloud)
			case <-gctx.Done():
				return gctx.Err()
			}
		})
	}
	for _, n := range t.state.Options.Guests() {
		g.Go(func() error { return t.upGuest(gctx, n, cloudReady) })
	}
	for _, n := range nodes {
		g.Go(func() error {
			if err := t.prepare(gctx, n); err != nil || o.Bare && !n.Plain {
				return err
			}
			ready := cloudReady
			if n.Plain {
				ready = apiReady
			}
			select {
			case <-ready:
				return t.joinAndStart(gctx, n, token)
			case <-gctx.Done():
				return gctx.Err()
			}
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if o.Bare {
		nodes = slices.DeleteFunc(nodes, func(n Node) bool { return !n.Plain })
	}
	return t.awaitNodes(ctx, nodes)
}

// normal makes options comparable: nil and empty are the same.
func normal(o Options) Options {
	if o.Clouds == 1 {
		o.Clouds = 0
	}
	if o.Streams == StreamsEgress {
		o.Streams = ""
	}
	if len(o.Set) == 0 {
		o.Set = nil
	}
	if len(o.Paths) == 0 {
		o.Paths = nil
	}
	return o
}

func describe(o Options) string {
	parts := []string{fmt.Sprintf("%d edges", o.Edges)}
	if n := len(o.Replicas()); n > 1 {
		parts = append(parts, fmt.Sprintf("%d clouds", n))
	}
	if o.Plain > 0 {
		parts = append(parts, fmt.Sprintf("%d plain nodes", o.Plain))
	}
	if o.Machines > 0 {
		parts = append(parts, fmt.Sprintf("%d machines", o.Machines))
	}
	if o.InCluster {
		parts = append(parts, "cloudcore in the cluster")
	}
	parts = append(parts, "link "+o.Link)
	if o.Streams != "" {
		parts = append(parts, "streams by the "+o.Streams)
	}
	parts = append(parts, o.Set...)
	return strings.Join(parts, ", ")
}

// check looks for missing prerequisites before the first change.
func (t *Trial) check(ctx context.Context, o Options) error {
	if os.Getuid() != 0 {
		return errors.New("a trial makes network namespaces and containers: run it as root (sudo)")
	}
	var missing []string
	for _, tool := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "iptables", "nft", "conntrack", "dbus-daemon"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if o.Machines > 0 {
		if err := guests.Possible(ctx); err != nil {
			return fmt.Errorf("--machine: %w; 'build/deps.sh machine' installs what it needs", err)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing on this machine: %s; 'make deps' installs what a trial needs", strings.Join(missing, ", "))
	}
	if _, err := cniDir(); err != nil {
		return err
	}
	for _, hidden := range []string{"/etc/", "/run/", "/var/lib/", "/var/log/"} {
		if strings.HasPrefix(t.dir, hidden) {
			return fmt.Errorf("this checkout is below %s, where a trial's hosts have their own files: move it elsewhere", strings.TrimSuffix(hidden, "/"))
		}
	}
	for _, p := range o.Programs() {
		if _, err := os.Stat(cmp.Or(o.Paths[p], t.binary(p))); err != nil {
			return fmt.Errorf("bin/%s is missing: 'make build-%s' makes it", p, p)
		}
	}
	return nil
}

// begin records the planned changes.
func (t *Trial) begin(o Options) error {
	id := t.identify()
	network, err := lab.FreeNetwork(id)
	if err != nil {
		return err
	}
	s := &State{ID: id, Options: normal(o), Network: network, Hosts: map[string]*Machine{}}
	for _, name := range append(o.Replicas(), router, Client) {
		s.Hosts[name] = &Machine{}
	}
	for _, n := range o.Nodes() {
		s.Hosts[n.Name] = &Machine{}
	}
	t.state = s
	tally.Add(tally.Trial)
	return t.save()
}

// bootAll boots every host that is not running and wires it.
func (t *Trial) bootAll(ctx context.Context) error {
	if !t.machine(router).Running() {
		// Cables end at the router: with it gone, all others would be half wired.
		for name := range t.state.Hosts {
			if err := t.halt(ctx, name); err != nil {
				return err
			}
		}
		if err := t.boot(ctx, router); err != nil {
			return err
		}
		if err := lab.Router(t.machine(router).Host, t.offered()); err != nil {
			return err
		}
		if err := lab.Balance(t.machine(router).Host, ports(), len(t.state.Options.Replicas())); err != nil {
			return err
		}
		if t.state.Options.InCluster {
			if err := lab.OfferLoadBalancer(t.machine(router).Host); err != nil {
				return err
			}
		}
	}
	for _, name := range append(append(t.state.Options.Replicas(), Client), nodeNames(t.state.Options.Nodes())...) {
		if t.machine(name).Running() {
			continue
		}
		if err := t.boot(ctx, name); err != nil {
			return err
		}
		if err := t.wire(name); err != nil {
			return err
		}
	}
	t.say("hosts are up: " + strings.Join(t.Hosts(), ", "))
	return nil
}

// offered are the ports of the cloud that edges may dial.
func (t *Trial) offered() []lab.Port {
	switch {
	case t.state.Options.InCluster:
		return nil // but at its nodes, see connectNode
	case t.state.Options.Plain > 0:
		return append(ports(), lab.Port{Protocol: "tcp", Number: 6443})
	}
	return ports()
}

func nodeNames(nodes []Node) []string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

// boot starts an empty host.
func (t *Trial) boot(ctx context.Context, name string) error {
	spec := host.Spec{Hostname: name, Init: t.initPath(), Mark: t.mark(name)}
	if name != router && name != Client {
		spec.Dir = t.hostDir(name)
	}
	h, err := host.Boot(ctx, spec)
	if err != nil {
		return err
	}
	return t.change(func(s *State) { s.Hosts[name].Host, s.Hosts[name].Processes = h, nil })
}

// wire connects a host that was just booted.
func (t *Trial) wire(name string) error {
	r, m := t.machine(router).Host, t.machine(name)
	if err := t.writeNames(name); err != nil {
		return err
	}
	if n := 1 + slices.Index(t.state.Options.Replicas(), name); n > 0 {
		if err := lab.ConnectCloud(r, m.Host, n); err != nil {
			return err
		}
	}
	switch name {
	case Cloud:
		return errors.Join(
			lab.ConnectMachine(m.Host, t.cable(), t.state.Network),
			lab.BalanceMachine(m.Host, t.state.Network, ports(), len(t.state.Options.Replicas())),
		)
	case Client:
		return lab.ConnectClient(r, m.Host)
	}
	if slices.Contains(t.state.Options.Replicas(), name) {
		return nil
	}
	n, err := t.node(name)
	if err != nil {
		return err
	}
	if err := lab.ConnectEdge(r, m.Host, n.Number); err != nil {
		return err
	}
	if n.Plain && t.state.Options.InCluster {
		if err := t.connectNode(n); err != nil {
			return err
		}
	}
	if t.state.Options.IPv6 || m.IPv6 {
		if err := lab.LinkIPv6(r, m.Host, t.offered(), n.Number); err != nil {
			return err
		}
	}
	// As it was before a reboot.
	if m.Lease != (lab.Lease{}) {
		if err := lab.SetLease(m.Host, n.Number, m.Lease); err != nil {
			return err
		}
	}
	if err := lab.SetShape(r, m.Host, n.Number, m.Shape); err != nil {
		return err
	}
	return lab.SetCut(r, n.Number, m.Cut)
}

// writeNames lets a host resolve its own name and the cloud's. The machine's own name servers are
// out of its reach, and a kubelet that asks them for its node's name at each report would wait for
// the time-out.
func (t *Trial) writeNames(name string) error {
	if name == router || name == Client {
		return nil // the machine's own files
	}
	own := lab.Cloud()
	if n := slices.Index(t.state.Options.Replicas(), name); n > 0 {
		own = lab.Replica(n + 1)
	} else if n, err := t.node(name); err == nil {
		own = lab.Uplink(n.Number).Addr()
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s cloud\n", lab.Cloud())
	switch {
	case name != Cloud:
		hosts += fmt.Sprintf("%s %s\n", own, name)
	case t.state.Options.Streams == StreamsEndpoint:
		// Like a wildcard record in the DNS elsewhere: nodes' names lead to cloudcore.
		for _, n := range t.state.Options.Nodes() {
			hosts += fmt.Sprintf("%s %s\n", lab.Cloud(), n.Name)
		}
	}
	for path, content := range map[string]string{"/etc/hosts": hosts, "/etc/resolv.conf": "# No name server can be reached from here.\n"} {
		// It may be a link to somewhere else.
		if err := os.Remove(filepath.Join(t.machine(name).Root(), path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replacing %s on %s: %w", path, name, err)
		}
		if err := t.writeHost(name, path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// halt ends a host and removes its cgroup.
func (t *Trial) halt(ctx context.Context, name string) error {
	m := t.machine(name)
	if err := m.Halt(ctx); err != nil {
		return err
	}
	return host.RemoveCgroup(t.cgroup(name))
}

// prepare gives a node its files and containerd with the images.
func (t *Trial) prepare(ctx context.Context, n Node) error {
	if err := host.MakeCgroup(t.cgroup(n.Name)); err != nil {
		return err
	}
	bin, err := cniDir()
	if err != nil {
		return err
	}
	snapshotter, err := snapshotterFor(t.dir)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"/etc/containerd/config.toml":          containerdFile(bin, snapshotter),
		"/etc/skerry/manifests/.keep":          nil,
		"/var/lib/kubelet/volumeplugins/.keep": nil,
	}
	if n.Plain {
		// In the cloud's own network pods are routed.
		if files["/etc/cni/net.d/10-pods.conflist"], err = cniFile(n, !t.state.Options.InCluster); err != nil {
			return err
		}
	}
	if t.state.Options.Bare && !n.Plain {
		// The settings that this machine's kubelets need, as its owner would set them; all else is
		// edgecore's own.
		if files[edgecoreConfig], err = t.kubeletAlone(n); err != nil {
			return err
		}
	}
	for path, content := range files {
		if err := t.writeHost(n.Name, path, content, 0o644); err != nil {
			return err
		}
	}
	if !n.Plain {
		logind, err := t.program(n.Name, "logind")
		if err != nil {
			return err
		}
		if err := t.start(ctx, n.Name, logind); err != nil {
			return err
		}
	}
	containerd, err := t.program(n.Name, "containerd")
	if err != nil {
		return err
	}
	if err := t.start(ctx, n.Name, containerd); err != nil {
		return err
	}
	return t.loadImages(n)
}
