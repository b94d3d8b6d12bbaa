package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Worst orders the devices for a screen: those with problems first, then by name.
func Worst(nodes []Node) []Node {
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(min(1, len(b.Problems)), min(1, len(a.Problems))), cmp.Compare(a.Name, b.Name))
	})
	return nodes
}

// Summary is the fleet in a line.
func Summary(nodes []Node) string {
	links := map[LinkState]int{}
	var troubled, running int
	for _, n := range nodes {
		links[n.Link]++
		if len(n.Problems) > 0 {
			troubled++
		}
		running += len(n.Operations)
	}
	parts := []string{fmt.Sprintf("%d up", links[Up])}
	for _, other := range []struct {
		state LinkState
		text  string
	}{{Down, "down"}, {NoKubelet, "without a kubelet"}, {Never, "never linked"}} {
		if links[other.state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", links[other.state], other.text))
		}
	}
	text := fmt.Sprintf("%d devices: %s; %d with problems", len(nodes), strings.Join(parts, ", "), troubled)
	if running > 0 {
		text += fmt.Sprintf("; %d operations in progress", running)
	}
	return text
}

// Table returns a table with a row for each device. Columns with a priority above 0 are for -o
// wide.
func Table(nodes []Node, now time.Time) *metav1.Table {
	column := func(name string, wide bool) metav1.TableColumnDefinition {
		c := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if wide {
			c.Priority = 1
		}
		return c
	}
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Name", false), column("Link", false), column("Since", false), column("Transport", false), column("Contact", false), column("Backlog", false),
		column("Version", false), column("Certificate", false), column("Operation", false), column("Pods", false),
		column("Ready", true), column("Pool", true), column("Kubelet", true), column("Cloudcore", true), column("Problem", false),
	}}
	for i := range nodes {
		n := &nodes[i]
		t.Rows = append(t.Rows, metav1.TableRow{Cells: []any{
			n.Name, string(n.Link), past(n.Since, now), dash(n.Transport), past(n.LastContact, now), n.backlog(now),
			dash(n.Version), until(n.CertificateEnd, now), dash(n.operations()), fmt.Sprintf("%d/%d", n.Running, n.Pods),
			dash(n.Ready), dash(n.Pool), dash(n.Kubelet), dash(n.Cloudcore), n.problem(),
		}})
	}
	return t
}

// maxRemedies bounds the lines below a table; -o json has the action of each problem.
const maxRemedies = 8

// Remedies lists the remedies of the devices' problems, a line for each kind of problem: the kind,
// the devices that have it, and the action of the first. The commonest kind is first.
func Remedies(nodes []Node) []string {
	type kind struct {
		reason, action, first string
		devices               int
	}
	kinds := map[string]*kind{}
	var order []*kind
	for i := range nodes {
		for _, p := range nodes[i].Problems {
			k := kinds[p.Reason]
			if k == nil {
				k = &kind{reason: p.Reason, action: p.Action, first: nodes[i].Name}
				kinds[p.Reason] = k
				order = append(order, k)
			}
			k.devices++
		}
	}
	slices.SortStableFunc(order, func(a, b *kind) int { return cmp.Compare(b.devices, a.devices) })
	var lines []string
	for i, k := range order {
		if i == maxRemedies {
			lines = append(lines, fmt.Sprintf("-> %d more kinds of problems: -o json", len(order)-i))
			break
		}
		devices := k.first
		if k.devices > 1 {
			devices = fmt.Sprintf("%s and %d more", k.first, k.devices-1)
		}
		lines = append(lines, fmt.Sprintf("-> %s (%s): %s", k.reason, devices, k.action))
	}
	return lines
}

func dash(text string) string { return cmp.Or(text, "-") }

func past(t *metav1.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(t.Time)))
}

func until(t *metav1.Time, now time.Time) string {
	switch {
	case t == nil:
		return "-"
	case !now.Before(t.Time):
		return "ended"
	}
	return duration.HumanDuration(t.Sub(now))
}

// backlog is the backlog at the last contact.
func (n *Node) backlog(now time.Time) string {
	switch {
	case n.Backlog > 0:
		return fmt.Sprintf("%d (%s)", n.Backlog, past(n.Oldest, now))
	case n.Link == Up:
		return "0"
	}
	return "?" // only the device has its queue's changes since then
}

func (n *Node) operations() string {
	var all []string
	for _, o := range n.Operations {
		all = append(all, o.Type+" "+o.State)
	}
	return strings.Join(all, ", ")
}

func (n *Node) problem() string {
	var all []string
	for _, p := range n.Problems {
		all = append(all, p.Message)
	}
	return strings.Join(all, "; ")
}

// Details returns the status of one device as text, with the action for each problem.
func (n *Node) Details(now time.Time) string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-14s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("node", "%s", n.Name)
	row("link", "%s for %s", n.Link, past(n.Since, now))
	row("last contact", "%s ago", past(n.LastContact, now))
	row("transport", "%s, with cloudcore %s", dash(n.Transport), dash(n.Cloudcore))
	row("edgecore", "%s (kubelet %s)", dash(n.Version), dash(n.Kubelet))
	row("backlog", "%s", n.backlog(now))
	row("certificate", "%s", until(n.CertificateEnd, now))
	row("operation", "%s", dash(n.operations()))
	row("pods", "%d of %d running", n.Running, n.Pods)
	for _, p := range n.NotRunning {
		row("", "%s/%s: %s", p.Namespace, p.Name, strings.TrimSpace(p.Reason+" "+p.Message))
	}
	for _, p := range n.Problems {
		row("PROBLEM", "%s", p.Message)
		row("", "-> %s", p.Action)
	}
	return b.String()
}

// OperationsTable returns a table of operations.
func OperationsTable(all []v1alpha1.NodeOperation, now time.Time) *metav1.Table {
	t := &metav1.Table{}
	for _, name := range []string{"Name", "Node", "Operation", "State", "Phase", "Attempts", "Requested by", "Age", "Message"} {
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: name, Type: "string"})
	}
	for i := range all {
		o := &all[i]
		message := ""
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone); c != nil {
			message = c.Message
		}
		for _, p := range o.Status.BlockedPods {
			message += fmt.Sprintf("; %s/%s: %s", p.Namespace, p.Name, strings.TrimSpace(string(p.Reason)+" "+p.PDB))
		}
		if last := lastLine(o.Status.Output); o.Status.ExitCode != nil && *o.Status.ExitCode != 0 && last != "" {
			message += ": " + last
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: []any{
			o.Name, o.Spec.NodeName, string(o.Spec.Operation), OperationOf(o).State, dash(string(o.Status.Phase)), fmt.Sprint(o.Status.Attempts),
			dash(Printable(o.Status.RequestedBy, 60)), past(&o.CreationTimestamp, now), Printable(strings.TrimPrefix(message, "; "), 500),
		}})
	}
	return t
}

// SetsTable is NodeOperationSets as a table.
func SetsTable(all []v1alpha1.NodeOperationSet, now time.Time) *metav1.Table {
	t := &metav1.Table{}
	for _, name := range []string{"Set", "Operation", "Wave", "Done", "Running", "Offline", "Failed", "Refused", "State", "Requested by", "Age", "Message"} {
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: name, Type: "string"})
	}
	for i := range all {
		s := &all[i]
		state, message := "New", ""
		if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.SetReady); c != nil {
			state, message = c.Reason, c.Message
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: []any{
			s.Name, string(s.Spec.Template.Operation), dash(s.Status.Wave), dash(s.Status.Progress), fmt.Sprint(s.Status.Running), fmt.Sprint(s.Status.Offline),
			fmt.Sprint(s.Status.Failed), fmt.Sprint(s.Status.Refused), Printable(state, 40), dash(Printable(s.Annotations[v1alpha1.RequestedByAnnotation], 60)),
			past(&s.CreationTimestamp, now), Printable(message, 500),
		}})
	}
	return t
}

// lastLine returns the last line that is not blank.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
