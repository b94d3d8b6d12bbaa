package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/sample"
	guests "github.com/skerry-io/skerry/tests/machine"
)

// Status is how the whole trial is, as far as each part answers.
type Status struct {
	Options Options      `json:"options"`
	Cloud   CloudStatus  `json:"cloud"`
	Nodes   []NodeStatus `json:"nodes"`
}

// CloudStatus is how the cloud is.
type CloudStatus struct {
	Programs   map[string]bool `json:"programs"` // running? Those of further replicas bear their host's name: cloud2/cloudcore
	Kubeconfig string          `json:"kubeconfig"`
	Error      string          `json:"error,omitempty"` // why kube-apiserver does not answer
}

// NodeStatus is the cloud's state of a node, its faults, and its own state.
type NodeStatus struct {
	Name     string          `json:"name"`
	Machine  bool            `json:"machine,omitempty"` // a real machine, whose programs systemd runs
	Running  bool            `json:"running"`
	Programs map[string]bool `json:"programs,omitempty"`
	Cut      lab.Cut         `json:"cut,omitempty"`
	Shape    lab.Shape       `json:"shape,omitzero"`
	Ready    string          `json:"ready"`   // True, False, Unknown, or "" when the cloud does not answer or does not know it
	Version  string          `json:"version"` // of the kubelet
	Pods     int             `json:"pods"`    // bound to the node, as the cloud sees it
	PodsUp   int             `json:"podsReady"`
	// Sample is the answer of the device's pod of the sample application when the LAN's client asks
	// for its store; "" without the application.
	Sample string `json:"sample,omitempty"`
	// Edge is the answer of `edgecore status -o json` on the device.
	Edge json.RawMessage `json:"edge,omitempty"`
	// EdgeError is why Edge is empty.
	EdgeError string `json:"edgeError,omitempty"`
}

// statusTimeout bounds each question, so that a part which hangs does not hide the others.
const statusTimeout = 5 * time.Second

// Status asks every part how it is.
func (t *Trial) Status(ctx context.Context) (Status, error) {
	if err := t.exists(); err != nil {
		return Status{}, err
	}
	s := Status{Options: t.state.Options, Cloud: CloudStatus{Programs: t.alive(Cloud), Kubeconfig: t.Kubeconfig()}}
	for _, name := range t.state.Options.Replicas()[1:] {
		for program, alive := range t.alive(name) {
			s.Cloud.Programs[name+"/"+program] = alive
		}
	}
	for _, n := range t.state.Options.Nodes() {
		m := t.machine(n.Name)
		ns := NodeStatus{Name: n.Name, Running: m.Running(), Programs: t.alive(n.Name), Cut: m.Cut, Shape: m.Shape}
		if m.Running() && !n.Plain {
			raw, err := t.edgeStatus(ctx, n.Name)
			if err != nil {
				ns.EdgeError = err.Error()
			} else {
				ns.Edge = raw
			}
			if t.state.Options.Sample {
				ns.Sample = t.askSample(ctx, n)
			}
		}
		s.Nodes = append(s.Nodes, ns)
	}
	for _, n := range t.state.Options.Guests() {
		s.Nodes = append(s.Nodes, t.guestStatus(ctx, n))
	}
	if err := t.askCloud(ctx, &s); err != nil {
		s.Cloud.Error = err.Error()
	}
	return s, nil
}

// guestStatus asks a guest how it is.
func (t *Trial) guestStatus(ctx context.Context, n Node) NodeStatus {
	g := t.guest(n.Name)
	m := guests.Open(t.guestSpec(n), g.First)
	s := NodeStatus{Name: n.Name, Machine: true, Running: m.On(), Cut: g.Cut}
	if !s.Running {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, 2*statusTimeout) // its processor is slow
	defer cancel()
	out, err := m.Run(ctx, "edgecore status -o json 2>/dev/null || true")
	switch {
	case err != nil:
		s.EdgeError = err.Error()
	case !json.Valid([]byte(out)):
		s.EdgeError = "edgecore does not answer"
	default:
		s.Edge = json.RawMessage(out)
	}
	return s
}

func (t *Trial) alive(name string) map[string]bool {
	m := t.machine(name)
	alive := map[string]bool{}
	for _, p := range t.programs(name) {
		alive[p.name] = m.Processes[p.name].Alive()
	}
	return alive
}

func (t *Trial) edgeStatus(ctx context.Context, name string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var out, errs strings.Builder
	code, err := t.Exec(ctx, name, Streams{Out: &out, Err: &errs}, nil, t.binary("edgecore"), "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	if !json.Valid([]byte(out.String())) {
		return nil, fmt.Errorf("edgecore status ended with code %d: %s", code, strings.TrimSpace(errs.String()))
	}
	return json.RawMessage(out.String()), nil
}

// askSample asks an edge's pod of the sample application as a machine on the LAN does.
func (t *Trial) askSample(ctx context.Context, n Node) string {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	client, err := t.Host(Client)
	if err != nil {
		return err.Error()
	}
	return sample.Store(ctx, client, lab.LAN(n.Number).Addr())
}

func (t *Trial) askCloud(ctx context.Context, s *Status) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	cfg, err := t.Admin()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, node := range nodes.Items {
			if node.Name != n.Name {
				continue
			}
			n.Version = node.Status.NodeInfo.KubeletVersion
			for _, c := range node.Status.Conditions {
				if c.Type == "Ready" {
					n.Ready = string(c.Status)
				}
			}
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == n.Name {
				n.Pods++
				if sample.Ready(&p) {
					n.PodsUp++
				}
			}
		}
	}
	return nil
}

// edgeSummary is the part of `edgecore status -o json` that fits into a line.
type edgeSummary struct {
	Running bool `json:"running"`
	Link    *struct {
		Linked      bool      `json:"linked"`
		Transport   string    `json:"transport"`
		LastContact time.Time `json:"lastContact"`
	} `json:"link"`
	Data *struct {
		Outbox struct {
			Waiting map[string]int `json:"waiting"`
		} `json:"outbox"`
	} `json:"data"`
}

// Write writes the status as one screen.
func (s Status) Write(out io.Writer) error {
	fmt.Fprintf(out, "cloud: %s", programs(s.Cloud.Programs))
	if s.Cloud.Error != "" {
		fmt.Fprintf(out, "; kube-apiserver does not answer: %s", s.Cloud.Error)
	}
	fmt.Fprintf(out, "\nexport KUBECONFIG=%s\n\n", s.Cloud.Kubeconfig)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tREADY\tVERSION\tPODS\tUPLINK\tLINK\tBACKLOG\tKNOWN AS OF\tPROGRAMS\tSAMPLE, SERVED BY")
	for _, n := range s.Nodes {
		link, backlog, age := n.edge()
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, dash(n.Ready), dash(n.Version), n.PodsUp, n.Pods, n.uplink(), link, backlog, age, n.programs(), dash(n.Sample))
	}
	return w.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (n NodeStatus) uplink() string {
	var parts []string
	switch n.Cut {
	case lab.Carrier:
		parts = append(parts, "cut")
	case lab.Silent:
		parts = append(parts, "cut (silent)")
	}
	if n.Shape.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%d kbit/s", n.Shape.Rate/1000))
	}
	if n.Shape.Loss > 0 {
		parts = append(parts, fmt.Sprintf("%g%% loss", n.Shape.Loss*100))
	}
	if len(parts) == 0 {
		return "whole"
	}
	return strings.Join(parts, ", ")
}

func (n NodeStatus) programs() string {
	if !n.Running {
		return "the host is off"
	}
	if n.Machine {
		return "systemd's"
	}
	return programs(n.Programs)
}

func programs(alive map[string]bool) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(alive)) {
		if alive[name] {
			parts = append(parts, name)
		} else {
			parts = append(parts, name+" (not running)")
		}
	}
	return strings.Join(parts, ", ")
}

// edge summarizes the device's own state: its link, the backlog for the cloud, and the age of its
// data.
func (n NodeStatus) edge() (link, backlog, age string) {
	var e edgeSummary
	link, backlog, age = "-", "-", "-"
	if n.Edge == nil || json.Unmarshal(n.Edge, &e) != nil || !e.Running {
		return link, backlog, age
	}
	if l := e.Link; l != nil {
		link = "down"
		if l.Linked {
			link = l.Transport
		}
		if !l.LastContact.IsZero() {
			age = duration.HumanDuration(time.Since(l.LastContact)) + " ago"
		}
	}
	if e.Data != nil {
		waiting := 0
		for _, n := range e.Data.Outbox.Waiting {
			waiting += n
		}
		backlog = strconv.Itoa(waiting)
	}
	return link, backlog, age
}
