// Package trial is a whole Skerry system on one machine: a cloud with a real control plane and
// cloudcore, edges with containerd and edgecore behind NAT, a LAN with a client, and the faults
// that a site can have.
//
// It is above 2,500 lines because a trial is one thing with one state, which each of its
// verbs changes.
//
// It owns a directory and the things in its file state.json: the hosts (see package host), their
// cgroups and the cable to the machine. The state is written before each change, so that Down also
// cleans after a crash. Each changing method holds a lock on the directory, across processes;
// methods of one Trial are called one at a time.
package trial

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
	"github.com/skerry-io/skerry/tests/cluster/process"
	guests "github.com/skerry-io/skerry/tests/machine"
)

// Names of the hosts that every trial has; edges are edge1, edge2, ... and plain1, ...
const (
	router = "router"
	Cloud  = "cloud"
	Client = "client"
)

// Ways of kube-apiserver to kubelets.
const (
	StreamsEgress   = "egress"
	StreamsEndpoint = "endpoint"
)

// Pool is the NodePool of all edges: they are one site, and the network of their pods is of
// its podSubnets.
const Pool = "plant"

// Options configure a trial.
type Options struct {
	// Edges is the number of edge nodes with edgecore.
	Edges int `json:"edges"`
	// Clouds is the number of cloudcore's replicas, each on a host of its own, behind one
	// address; 0 means one.
	Clouds int `json:"clouds,omitempty"`
	// Plain is the number of nodes with an ordinary kubelet that talks to kube-apiserver,
	// for comparison.
	Plain int `json:"plain,omitempty"`
	// Machines is the number of nodes that are real machines: guests of user-mode Linux with
	// systemd and edgecore's package.
	Machines int `json:"machines,omitempty"`
	// Link is edgecore's transport: auto, websocket or quic.
	Link string `json:"link"`
	// Set are changes to every edgecore.yaml, each path=value.
	Set []string `json:"set,omitempty"`
	// Logs is the OTLP/HTTP receiver of the applications' logs, as cloudcore reaches it; ""
	// disables it.
	Logs string `json:"logs,omitempty"`
	// Quick makes the cloud notice a lost node within 12 s and evict after 10 s more.
	Quick bool `json:"quick,omitempty"`
	// Audit makes kube-apiserver write an audit log: audit.log in the cloud's log directory.
	Audit bool `json:"audit,omitempty"`
	// CertificateLife is how long the certificates are good that the cloud signs for nodes; 0
	// leaves Kubernetes its year.
	CertificateLife time.Duration `json:"certificateLife,omitempty"`
	// Streams is kube-apiserver's way to kubelets: egress (or empty), as it is configured to take,
	// or endpoint, by which it needs no configuration.
	Streams string `json:"streams,omitempty"`
	// InCluster runs cloudcore as its own Deployment on the plain nodes, as `cloudcore install`
	// prints it, behind a load balancer. Edges are as they are by default.
	InCluster bool `json:"inCluster,omitempty"`
	// Bare, with InCluster, leaves Skerry out: there are the cluster, the load balancer and, for
	// edges, hosts with containerd that have not joined.
	Bare bool `json:"bare,omitempty"`
	// IPv6 gives the edges' links to the cloud IPv6 in addition to IPv4. edgecore is configured
	// with the cloud's IPv4 address all the same.
	IPv6 bool `json:"ipv6,omitempty"`
	// Paths are programs in place of those of bin/, by name, such as those of another release.
	Paths map[string]string `json:"paths,omitempty"`
	// Sample runs the sample application on every edge.
	Sample bool `json:"sample"`
}

// DefaultOptions are two edges with the sample application.
func DefaultOptions() Options { return Options{Edges: 2, Link: "auto", Sample: true} }

// minCertificateLife leaves a busy machine time between the moment at which a certificate is
// renewed (70 to 90 % of its life) and its end.
const minCertificateLife = 30 * time.Second

// plainOffset keeps the numbers of plain nodes apart from those of edges.
const plainOffset = 50

// Validate reports every mistake at once.
func (o Options) Validate() error {
	var errs []error
	if o.Edges < 0 || o.Edges >= plainOffset {
		errs = append(errs, fmt.Errorf("--edges: %d is not between 0 and %d", o.Edges, plainOffset-1))
	}
	if o.Plain < 0 || o.Plain > guestOffset-plainOffset {
		errs = append(errs, fmt.Errorf("--plain: %d is not between 0 and %d", o.Plain, guestOffset-plainOffset))
	}
	if o.Machines < 0 || o.Machines > maxGuests {
		errs = append(errs, fmt.Errorf("--machine: %d is not between 0 and %d", o.Machines, maxGuests))
	}
	if o.Machines > 0 && o.InCluster {
		errs = append(errs, errors.New("--machine: not possible with --in-cluster"))
	}
	if o.Clouds < 0 || o.Clouds > lab.MaxClouds {
		errs = append(errs, fmt.Errorf("--clouds: %d is not between 1 and %d", o.Clouds, lab.MaxClouds))
	}
	if o.InCluster && o.Plain == 0 {
		errs = append(errs, errors.New("--plain: cloudcore in the cluster needs a node to run on"))
	}
	if o.Bare && (!o.InCluster || o.Sample) {
		errs = append(errs, errors.New("bare: only with cloudcore in the cluster, and without the sample application"))
	}
	if o.InCluster && o.Clouds > 1 {
		errs = append(errs, fmt.Errorf("--clouds: %d: in the cluster the Deployment says how many replicas there are", o.Clouds))
	}
	if o.InCluster && o.Streams == StreamsEndpoint {
		errs = append(errs, errors.New("--streams: endpoint is not possible with --in-cluster"))
	}
	if o.Edges+o.Plain+o.Machines == 0 {
		errs = append(errs, errors.New("--edges: a trial needs at least one node"))
	}
	if !slices.Contains([]string{"auto", "websocket", "quic"}, o.Link) {
		errs = append(errs, fmt.Errorf("--link: %q is none of auto, websocket, quic", o.Link))
	}
	if o.CertificateLife != 0 && o.CertificateLife < minCertificateLife {
		errs = append(errs, fmt.Errorf("--certificate-life: %v is less than %v, in which a node could not renew its own", o.CertificateLife, minCertificateLife))
	}
	if !slices.Contains([]string{"", StreamsEgress, StreamsEndpoint}, o.Streams) {
		errs = append(errs, fmt.Errorf("--streams: %q is none of %s, %s", o.Streams, StreamsEgress, StreamsEndpoint))
	}
	for _, s := range o.Set {
		if _, _, err := parseSet(s); err != nil {
			errs = append(errs, fmt.Errorf("--set: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Programs are those of bin/ that a trial with these options runs.
func (o Options) Programs() []string {
	programs := []string{"kubeplane", "cloudcore"}
	if o.Edges+o.Machines > 0 {
		programs = append(programs, "edgecore")
	}
	if o.Machines > 0 {
		programs = append(programs, "skerry-launch")
	}
	if o.Plain > 0 {
		programs = append(programs, "plainkubelet")
	}
	if o.InCluster {
		programs = append(programs, "kubeproxy", "loadbalancer")
	}
	return programs
}

// A Node is an edge or a plain node.
type Node struct {
	Name   string
	Number int // its number in the lab
	Plain  bool
}

// Replicas lists the hosts that run cloudcore; the first also has the control plane.
func (o Options) Replicas() []string {
	names := []string{Cloud}
	for n := 2; n <= o.Clouds; n++ {
		names = append(names, Cloud+strconv.Itoa(n))
	}
	return names
}

// Nodes lists the nodes that the options ask for.
func (o Options) Nodes() []Node {
	var all []Node
	for i := range o.Edges {
		all = append(all, Node{Name: fmt.Sprintf("edge%d", i+1), Number: i + 1})
	}
	for i := range o.Plain {
		all = append(all, Node{Name: fmt.Sprintf("plain%d", i+1), Number: plainOffset + i + 1, Plain: true})
	}
	return all
}

// State is the content of state.json.
type State struct {
	// ID identifies a trial on its machine.
	ID      string              `json:"id"`
	Options Options             `json:"options"`
	Network netip.Prefix        `json:"network"` // between the machine and the cloud
	Hosts   map[string]*Machine `json:"hosts"`
	Guests  map[string]*Guest   `json:"guests,omitempty"`
}

// A Machine is a host with the changes made to it.
type Machine struct {
	host.Host
	Processes map[string]process.Identity `json:"processes,omitempty"`
	// Joined is true once the edge has its identity, which it keeps over reboots.
	Joined bool      `json:"joined,omitempty"`
	Cut    lab.Cut   `json:"cut,omitempty"`
	Shape  lab.Shape `json:"shape,omitzero"`
	Lease  lab.Lease `json:"lease,omitzero"`
	IPv6   bool      `json:"ipv6,omitempty"` // LinkIPv6 was called
	// Set are changes to this edge's edgecore.yaml beyond the trial's.
	Set []string `json:"set,omitempty"`
	// Replaced are commands that stand for the programs of this host, by name.
	Replaced map[string][]string `json:"replaced,omitempty"`
}

// Trial is the trial of one repository.
type Trial struct {
	root  string // of the repository
	dir   string // everything of the trial's own
	say   func(string)
	began time.Time

	mu    sync.Mutex // guards state, which parts of Up change at the same time
	state *State     // nil when there is no trial
}

// Open finds the trial in dir; there may be none. root is the repository that its programs come
// from. Progress goes to out, a line for each step.
func Open(root, dir string, out io.Writer) (*Trial, error) {
	t := &Trial{root: root, dir: dir, began: time.Now()}
	var outMu sync.Mutex
	t.say = func(what string) {
		outMu.Lock()
		defer outMu.Unlock()
		fmt.Fprintf(out, "[%5.1fs] %s\n", time.Since(t.began).Seconds(), what)
	}
	return t, t.load()
}

func (t *Trial) load() error {
	raw, err := os.ReadFile(t.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		t.state = nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the trial's state: %w", err)
	}
	s := new(State)
	if err := json.Unmarshal(raw, s); err != nil {
		return fmt.Errorf("reading %s: %w", t.statePath(), err)
	}
	t.state = s
	return nil
}

// save writes the state so that a reader, or a crash, never sees half of it. Callers hold
// mu or are alone.
func (t *Trial) save() error {
	raw, err := json.MarshalIndent(t.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the trial's state: %w", err)
	}
	if err := os.WriteFile(t.statePath()+".new", append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the trial's state: %w", err)
	}
	if err := os.Rename(t.statePath()+".new", t.statePath()); err != nil {
		return fmt.Errorf("writing the trial's state: %w", err)
	}
	return nil
}

// change changes the state and saves it.
func (t *Trial) change(f func(*State)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(t.state)
	return t.save()
}

// machine is a copy of a host's entry in the state.
func (t *Trial) machine(name string) Machine {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.state.Hosts[name]; m != nil {
		c := *m
		c.Processes = make(map[string]process.Identity, len(m.Processes))
		for k, v := range m.Processes {
			c.Processes[k] = v
		}
		return c
	}
	return Machine{}
}

func (t *Trial) statePath() string          { return filepath.Join(t.dir, "state.json") }
func (t *Trial) hostDir(name string) string { return filepath.Join(t.dir, "hosts", name) }
func (t *Trial) initPath() string           { return filepath.Join(t.dir, "images", "pause") }
func (t *Trial) logind() string             { return filepath.Join(t.dir, "images", "logind") } // stands for systemd on edges
func (t *Trial) mark(name string) string    { return t.markPrefix() + name }
func (t *Trial) markPrefix() string         { return "skerry-trial-" + t.identify() + "/" }

// Cgroup is that of a node, below which its kubelet makes its own.
func (t *Trial) Cgroup(name string) string { return t.cgroup(name) }

func (t *Trial) cgroup(name string) string { return t.cgroupRoot() + "/" + name }
func (t *Trial) cgroupRoot() string        { return "skerry-trial-" + t.identify() }
func (t *Trial) cable() string             { return "sk" + t.identify() }
func (t *Trial) LogPath(name, process string) string {
	return filepath.Join(host.Log(t.hostDir(name)), process+".log")
}

// binary is where a program is.
func (t *Trial) binary(name string) string {
	if t.state != nil {
		if path := t.state.Options.Paths[name]; path != "" {
			return path
		}
	}
	return filepath.Join(t.root, "bin", name)
}

// Kubeconfig is the administrator's, for use on the machine.
func (t *Trial) Kubeconfig() string { return filepath.Join(t.dir, "kubeconfig") }

// identify names a trial in a few characters that fit into the name of an interface: by its
// directory and the checkout's inode. Two checkouts, each bound to the same path in a mount
// namespace of its own, have trials of different names.
func (t *Trial) identify() string {
	text := t.dir
	var root unix.Stat_t
	if err := unix.Stat(t.root, &root); err == nil {
		text = fmt.Sprintf("%s %d %d", t.dir, root.Dev, root.Ino)
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:8]
}

// lock keeps other processes from changing this trial at the same time. The file goes with the
// directory, so its identity is checked after the wait.
func (t *Trial) lock(ctx context.Context) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(t.dir, 0o755); err != nil {
			return nil, fmt.Errorf("making the trial's directory: %w", err)
		}
		path := filepath.Join(t.dir, "lock")
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("opening the trial's lock: %w", err)
		}
		if err := flock(ctx, f, func() { t.say("waiting for another trial command to end") }); err != nil {
			f.Close()
			return nil, err
		}
		var held, there unix.Stat_t
		if unix.Fstat(int(f.Fd()), &held) == nil && unix.Stat(path, &there) == nil && held.Ino == there.Ino {
			// Changes by another command in the meantime count.
			if err := t.load(); err != nil {
				f.Close()
				return nil, err
			}
			return func() {
				if t.state == nil {
					// The directory is empty except for the lock.
					os.Remove(path)
					os.Remove(t.dir)
				}
				f.Close()
			}, nil
		}
		f.Close()
	}
}

func flock(ctx context.Context, f *os.File, waiting func()) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("locking the trial: %w", err)
		}
		if first {
			waiting()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for another trial command to end: %w", context.Cause(ctx))
		}
	}
}

// exists is the answer to every verb but up and down when there is no trial.
func (t *Trial) exists() error {
	if t.state == nil {
		return cli.Badf("no trial is up: start one with 'trial up'")
	}
	return nil
}

// Hosts lists the names of the hosts one can name in a verb.
func (t *Trial) Hosts() []string {
	if t.state == nil {
		return nil
	}
	names := append(t.state.Options.Replicas(), Client)
	for _, n := range t.state.Options.Nodes() {
		names = append(names, n.Name)
	}
	return names
}

// node finds a node by name; an unknown one is the caller's mistake.
func (t *Trial) node(name string) (Node, error) {
	if err := t.exists(); err != nil {
		return Node{}, err
	}
	if _, ok := t.guestNode(name); ok {
		return Node{}, notForGuests(name)
	}
	var names []string
	for _, n := range t.state.Options.Nodes() {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return Node{}, cli.Badf("there is no node %q: this trial has %s", name, strings.Join(names, ", "))
}

// Host finds a running host by name.
func (t *Trial) Host(name string) (host.Host, error) {
	if err := t.exists(); err != nil {
		return host.Host{}, err
	}
	if _, ok := t.guestNode(name); ok {
		return host.Host{}, notForGuests(name)
	}
	if name != router && !slices.Contains(t.Hosts(), name) {
		return host.Host{}, cli.Badf("there is no host %q: this trial has %s", name, strings.Join(t.Hosts(), ", "))
	}
	m := t.machine(name)
	if !m.Running() {
		return host.Host{}, cli.Badf("host %s is not running: 'trial up' boots it", name)
	}
	return m.Host, nil
}

// server is the address by which edges reach cloudcore.
func (t *Trial) server() string {
	if t.state.Options.InCluster {
		return lab.LoadBalancer().String()
	}
	return lab.Cloud().String()
}

const (
	// guestOffset keeps the numbers of guests apart from those of plain nodes.
	guestOffset = 90
	maxGuests   = lab.MaxEdges - guestOffset
	guestMemory = 1200 // MiB
)

// A Guest is a node that is no host of namespaces: Debian with systemd as a guest of user-mode
// Linux (package machine).
type Guest struct {
	First  process.Identity `json:"first,omitzero"`
	Joined bool             `json:"joined,omitempty"` // edgecore is installed, and has its identity
	Cut    lab.Cut          `json:"cut,omitempty"`
}

// Guests lists the guests that the options ask for.
func (o Options) Guests() []Node {
	var all []Node
	for i := range o.Machines {
		all = append(all, Node{Name: fmt.Sprintf("machine%d", i+1), Number: guestOffset + i + 1})
	}
	return all
}

// Guest finds a guest by name.
func (t *Trial) Guest(name string) (*guests.Machine, error) {
	if err := t.exists(); err != nil {
		return nil, err
	}
	n, ok := t.guestNode(name)
	if !ok {
		return nil, cli.Badf("there is no machine %q in this trial", name)
	}
	return guests.Open(t.guestSpec(n), t.guest(name).First), nil
}

// guestNode reports whether a name is a guest's.
func (t *Trial) guestNode(name string) (Node, bool) {
	if t.state == nil {
		return Node{}, false
	}
	all := t.state.Options.Guests()
	i := slices.IndexFunc(all, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, false
	}
	return all[i], true
}

// notForGuests is the answer of a verb that guests don't have.
func notForGuests(name string) error {
	return cli.Badf("not possible for %s, which is a real machine: use its own programs, like 'trial exec %s -- systemctl restart edgecore' (docs/trial.md)", name, name)
}

// guest is a copy of a guest's entry in the state.
func (t *Trial) guest(name string) Guest {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.state.Guests[name]; g != nil {
		return *g
	}
	return Guest{}
}

func (t *Trial) changeGuest(name string, f func(*Guest)) error {
	return t.change(func(s *State) {
		if s.Guests == nil {
			s.Guests = map[string]*Guest{}
		}
		if s.Guests[name] == nil {
			s.Guests[name] = new(Guest)
		}
		f(s.Guests[name])
	})
}

func (t *Trial) guestSpec(n Node) guests.Spec {
	return guests.Spec{Name: n.Name, Number: n.Number, Memory: guestMemory, Dir: t.hostDir(n.Name), Mark: t.mark(n.Name), Router: t.machine(router).Host}
}

// record is the file of applied objects with a name.
func (t *Trial) record(name, inputs string) manifest.Record {
	return manifest.Record{File: filepath.Join(t.dir, "applied-"+name+".json"), Inputs: inputs}
}
