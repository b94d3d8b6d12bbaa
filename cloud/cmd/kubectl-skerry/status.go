package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/cli"
)

// fleetStatus is the output of -o json.
type fleetStatus struct {
	metav1.TypeMeta `json:",inline"`
	At              metav1.Time  `json:"at"` // by kube-apiserver's clock
	Items           []fleet.Node `json:"items"`
}

// DeepCopyObject implements runtime.Object for printers, which only read.
func (s *fleetStatus) DeepCopyObject() runtime.Object {
	c := *s
	c.Items = slices.Clone(s.Items)
	return &c
}

func newFleetStatus(nodes []fleet.Node, now time.Time) *fleetStatus {
	kind := schema.GroupVersionKind{Group: "cli.skerry.io", Version: "v1alpha1", Kind: "FleetStatus"}
	s := &fleetStatus{At: metav1.NewTime(now.UTC().Truncate(time.Second)), Items: nodes}
	s.SetGroupVersionKind(kind)
	return s
}

// output is -o: a table, a wide one, or a format of cli-runtime.
type output struct {
	flags     *genericclioptions.PrintFlags
	noHeaders bool
}

func (o *output) addTo(c *cobra.Command) {
	o.flags = genericclioptions.NewPrintFlags("")
	o.flags.TypeSetterPrinter = nil // the objects have their kind
	o.flags.AddFlags(c)
	c.Flag("output").Usage = "Output format. One of: (wide, " + strings.Join(o.flags.AllowedFormats(), ", ") + ")."
	c.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Print no headers, summary and remedies")
}

func (o *output) table() bool { return *o.flags.OutputFormat == "" || *o.flags.OutputFormat == "wide" }

func (o *output) printer() (printers.ResourcePrinter, error) {
	if o.table() {
		return printers.NewTablePrinter(printers.PrintOptions{Wide: *o.flags.OutputFormat == "wide", NoHeaders: o.noHeaders}), nil
	}
	p, err := o.flags.ToPrinter()
	if err != nil {
		return nil, usage(err)
	}
	return p, nil
}

// usageError is a wrong call.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usage marks a wrong call.
func usage(err error) error { return usageError{err} }

// namesHelp has the errors of wrong calls of a command, and of those below it, name its help.
func namesHelp(c *cobra.Command) {
	for _, sub := range c.Commands() {
		namesHelp(sub)
	}
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			err := run(c, args)
			if wrong, ok := errors.AsType[usageError](err); ok {
				return fmt.Errorf("%w\nSee '%s --help'.", wrong.error, c.CommandPath()) //nolint:staticcheck // as common/cli prints it
			}
			return err
		}
	}
}

// statusOptions are the flags of status.
type statusOptions struct {
	output
	streams  genericiooptions.IOStreams
	labels   string
	watch    bool
	problems bool
	limits   fleet.Limits
}

func statusCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &statusOptions{streams: streams, limits: fleet.DefaultLimits()}
	c := &cobra.Command{
		Use: "status", Short: "Show the devices of the cluster on one screen: links, backlogs, certificates, operations, pods",
		Long: `Show the devices of the cluster: those with problems first. It asks kube-apiserver for Nodes, their Leases, pods and NodeOperations, and no device; the ClusterRole
skerry:viewer is enough. What cloudcore knows of a link is as old as the last contact: at most 23 s where the link is up. Below the table each kind of problem has
a line with the remedy; with -o json each problem has one.

Exit code 0: all is well. 1: something is wrong, or the cluster can't be asked.`,
		Example: `  kubectl skerry status
  kubectl skerry status -l skerry.io/node-pool=ferries --problems
  kubectl skerry status -w
  kubectl skerry status -o json | jq -r '.items[] | select(.link == "Down") | .name'`,
		Args: cli.Args(cobra.NoArgs), SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), f) },
	}
	o.addTo(c)
	c.Flags().StringVarP(&o.labels, "selector", "l", "", "Selector (label query) of Nodes")
	c.Flags().BoolVarP(&o.watch, "watch", "w", false, "Then print each device whose state changes")
	c.Flags().BoolVar(&o.problems, "problems", false, "Show the devices with problems alone")
	cli.DurationVar(c.Flags(), &o.limits.Backlog, "backlog-age", o.limits.Backlog, "From which age on a backlog is a problem")
	cli.DurationVar(c.Flags(), &o.limits.Certificate, "certificate-left", o.limits.Certificate, "How long before its end a certificate is a problem")
	cli.DurationVar(c.Flags(), &o.limits.Start, "pod-start", o.limits.Start, "For how long a pod may be starting")
	return c
}

func (o *statusOptions) run(ctx context.Context, f getter) error {
	if err := selector(o.labels); err != nil {
		return usage(err)
	}
	printer, err := o.printer()
	if err != nil {
		return err
	}
	c, err := connect(f)
	if err != nil {
		return err
	}
	c.labels = o.labels
	facts, err := c.read(ctx)
	if err != nil {
		return err
	}
	now := c.now()
	nodes := fleet.Of(facts, o.limits, now)
	out := printers.GetNewTabWriter(o.streams.Out)
	if o.table() && !o.noHeaders {
		fmt.Fprintln(o.streams.Out, fleet.Summary(nodes))
	}
	if err := o.print(out, printer, fleet.Worst(nodes), now); err != nil {
		return err
	}
	if o.table() && !o.noHeaders {
		for _, line := range fleet.Remedies(nodes) {
			fmt.Fprintln(o.streams.Out, line)
		}
	}
	if o.watch {
		seen := states(nodes)
		return c.follow(ctx, func(facts fleet.Facts) error {
			now := c.now()
			nodes := fleet.Of(facts, o.limits, now)
			changed := slices.DeleteFunc(slices.Clone(nodes), func(n fleet.Node) bool { return seen[n.Name] == state(n) })
			seen = states(nodes)
			if len(changed) == 0 {
				return nil
			}
			return o.print(out, printer, changed, now)
		})
	}
	if slices.ContainsFunc(nodes, func(n fleet.Node) bool { return len(n.Problems) > 0 }) {
		return cmdutil.ErrExit
	}
	return nil
}

func (o *statusOptions) print(out interface {
	io.Writer
	Flush() error
}, printer printers.ResourcePrinter, nodes []fleet.Node, now time.Time) error {
	if o.problems && !o.watch {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n fleet.Node) bool { return len(n.Problems) == 0 })
	}
	var object runtime.Object = newFleetStatus(nodes, now)
	if o.table() {
		object = fleet.Table(nodes, now)
	}
	if err := printer.PrintObj(object, out); err != nil {
		return err
	}
	return out.Flush()
}

// state is the part of a device's line whose change people want to see: without the ages.
func state(n fleet.Node) string {
	var problems []string
	for _, p := range n.Problems {
		problems = append(problems, p.Reason)
	}
	return fmt.Sprint(n.Link, n.Ready, n.Transport, n.Version, n.Backlog > 0, n.Operations, n.Pods, n.Running, n.NotRunning, problems)
}

func states(nodes []fleet.Node) map[string]string {
	all := map[string]string{}
	for _, n := range nodes {
		all[n.Name] = state(n)
	}
	return all
}

// topCommand shows the traffic of links.
func topCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &output{}
	var labels string
	c := &cobra.Command{
		Use: "top", Short: "Show what the links of the devices cost: bytes and messages by class, since each link came up",
		Long: `Show the bytes that each device's link took in both directions since it came up, the busiest first. UP and DOWN are bytes on the wire, with headers,
acknowledgements and the handshake; the classes are messages alone, the most urgent first: heartbeats (urgent), requests and answers (answer), objects and
writes (normal), events (bulk), metrics and streams such as kubectl logs (stream). -o wide counts messages too. It comes from the devices' Leases, asks no
device, and is at most 23 s old where the link is up.`,
		Example: "  kubectl skerry top\n  kubectl skerry top -o wide -l skerry.io/node-pool=ferries\n  kubectl skerry top -o json | jq '.items[] | {name, traffic}'",
		Args:    cli.Args(cobra.NoArgs), SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := selector(labels); err != nil {
				return usage(err)
			}
			printer, err := o.printer()
			if err != nil {
				return err
			}
			cluster, err := connect(f)
			if err != nil {
				return err
			}
			cluster.labels = labels
			facts, err := cluster.read(c.Context())
			if err != nil {
				return err
			}
			now := cluster.now()
			nodes := fleet.Busiest(fleet.Of(facts, fleet.DefaultLimits(), now))
			var object runtime.Object = newFleetStatus(nodes, now)
			if o.table() {
				object = fleet.TrafficTable(nodes, now)
			}
			out := printers.GetNewTabWriter(streams.Out)
			if err := printer.PrintObj(object, out); err != nil {
				return err
			}
			return out.Flush()
		},
	}
	o.addTo(c)
	c.Flags().StringVarP(&labels, "selector", "l", "", "Selector (label query) of Nodes")
	return c
}

// nodeOptions are the flags of node.
type nodeOptions struct {
	streams genericiooptions.IOStreams
	json    string
	limits  fleet.Limits
}

func nodeCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &nodeOptions{streams: streams, limits: fleet.DefaultLimits()}
	c := &cobra.Command{
		Use: "node NODE", Short: "Show what `edgecore status` shows on a device, or what was last known of it",
		Long: `Ask a device, over its link, for what 'edgecore status' shows there. Where it can't be asked, show what the cluster last knew of it, and how old that is.
With -o json the answer is edgecore's own status, or an item of 'kubectl skerry status -o json'.

Exit code 0: the device answered. 1: it did not, or there is none.`,
		Example: "  kubectl skerry node edge-17",
		Args:    cli.Args(cobra.ExactArgs(1)), SilenceUsage: true,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c.Context(), f, args[0]) },
	}
	c.Flags().StringVarP(&o.json, "output", "o", "", "Output format: json, or none for people")
	return c
}

func (o *nodeOptions) run(ctx context.Context, f getter, name string) error {
	if o.json != "" && o.json != "json" {
		return usage(fmt.Errorf("--output: %q is not json", o.json))
	}
	c, err := connect(f)
	if err != nil {
		return err
	}
	live, problem := c.live(ctx, name, o.json == "")
	if problem == nil {
		_, err := fmt.Fprint(o.streams.Out, live)
		return err
	}
	problem = noAPI(rights(problem))
	nodes, now, err := c.device(ctx, name, o.limits)
	if err != nil {
		return err
	}
	n := nodes[0]
	if o.json != "" {
		if err := (&printers.JSONPrinter{}).PrintObj(newFleetStatus(nodes, now), o.streams.Out); err != nil {
			return err
		}
	} else {
		fmt.Fprint(o.streams.Out, n.Details(now))
	}
	age := "of unknown age"
	if n.LastContact != nil {
		age = duration.HumanDuration(now.Sub(n.LastContact.Time)) + " old"
	}
	return fmt.Errorf("this is what was last known, %s; the device could not be asked: %w", age, problem)
}

// device is one device as the cluster knows it: one element, or an error if there is none.
func (c *cluster) device(ctx context.Context, name string, limits fleet.Limits) ([]fleet.Node, time.Time, error) {
	c.name = name
	facts, err := c.read(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	now := c.now()
	nodes := fleet.Of(facts, limits, now)
	if len(nodes) == 0 {
		return nil, now, fmt.Errorf("there is no device %s: no Node with an edge's label and no Lease of it (kubectl skerry status lists all)", fleet.Printable(name, 253))
	}
	return nodes, now, nil
}

// unanswered is the error of a command that needs a device's answer, and did not get it: of a
// device that there is not, it has no link.
func (c *cluster) unanswered(ctx context.Context, name string, err error) error {
	if apierrors.IsServiceUnavailable(err) {
		if _, _, none := c.device(ctx, name, fleet.DefaultLimits()); none != nil {
			return none
		}
	}
	return noAPI(rights(err))
}

// live is the device's own current state.
func (c *cluster) live(ctx context.Context, name string, text bool) (string, error) {
	r := c.client.Discovery().RESTClient().Get().AbsPath("/apis/subresources.skerry.io/v1alpha1/nodes", name, "status")
	if text {
		r = r.Param("format", "text")
	}
	result := r.Do(ctx)
	if err := result.Error(); err != nil { // that of Raw lacks the message
		return "", err
	}
	body, err := result.Raw()
	if err != nil || !text {
		return string(body), err
	}
	lines := strings.Split(string(body), "\n")
	for i, line := range lines {
		lines[i] = fleet.Printable(line, 4096)
	}
	return strings.Join(lines, "\n"), nil
}

// operationsCommand lists operations.
func operationsCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &output{}
	var all bool
	c := &cobra.Command{
		Use: "operations", Short: "Show the rollouts and operations of devices that have not ended, and what they wait for",
		Long: `Show NodeOperationSets that are not complete, with their progress, and then NodeOperations that have not ended, with what they wait for. Nothing is printed where
there are none. With -o the NodeOperations alone are printed; the sets are kubectl get nodeopset -o yaml.`,
		Example: "  kubectl skerry operations\n  kubectl skerry operations --all",
		Args:    cli.Args(cobra.NoArgs), SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			printer, err := o.printer()
			if err != nil {
				return err
			}
			cluster, err := connect(f)
			if err != nil {
				return err
			}
			list, err := cluster.operations(c.Context(), all)
			if err != nil {
				return err
			}
			if !o.table() {
				return printer.PrintObj(list, streams.Out)
			}
			sets, err := cluster.sets(c.Context(), all)
			if err != nil {
				return err
			}
			out := printers.GetNewTabWriter(streams.Out)
			if len(sets) > 0 {
				if err := printer.PrintObj(fleet.SetsTable(sets, cluster.now()), out); err != nil {
					return err
				}
				if err := out.Flush(); err != nil {
					return fmt.Errorf("printing: %w", err)
				}
				fmt.Fprintln(streams.Out)
			}
			if err := printer.PrintObj(fleet.OperationsTable(list.Items, cluster.now()), out); err != nil {
				return err
			}
			return out.Flush()
		},
	}
	o.addTo(c)
	c.Flags().BoolVar(&all, "all", false, "Show those that have ended, too")
	return c
}
