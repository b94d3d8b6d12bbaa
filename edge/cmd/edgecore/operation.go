package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

func operationCommand(file *string) *cobra.Command {
	c := &cobra.Command{
		Use: "operation", Aliases: []string{"operations"}, Short: "Reboot, shut down, update or drain this device after its pods have moved safely; upgrade edgecore from a file",
		Long: `Request, list, cancel and force operations of this device. An operation waits until the node's pods have been evicted with respect for every
PodDisruptionBudget. Works without the cloud: then an operation waits for it, unless it was requested with --when-unreachable Proceed, or is forced. A request made here becomes a NodeOperation in the cloud, as soon as there is a link.

Exit code 0: the request is on the device's disk. 1: edgecore is unreachable, or can't accept it now. 2: invalid request, and nothing was done.`,
		Example: `  edgecore operation reboot
  edgecore operation update registry.example.com/os:17 --drain BestEffort
  edgecore operation upgrade /media/usb/skerry-v1.4.0.tar    # edgecore itself
  edgecore operation list
  edgecore operation cancel edge-17-reboot-x7k2p
  edgecore operation force edge-17-reboot-x7k2p --complete   # at once, with the pods that are still here`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return cli.Badf("name a subcommand\nSee '%s --help'.", c.CommandPath())
		},
	}
	c.AddCommand(
		requestCommand(file, "reboot", "Reboot this device (hook modules.drain.hooks.reboot)", v1alpha1.OperationReboot),
		requestCommand(file, "shutdown", "Shut this device down (hook modules.drain.hooks.shutdown)", v1alpha1.OperationShutdown),
		requestCommand(file, "update IMAGE", "Switch to another system image (hook modules.drain.hooks.update)", v1alpha1.OperationImageUpdate),
		requestCommand(file, "drain", "Drain this node and nothing more; it stays drained until that is cancelled, or the device boots", v1alpha1.OperationDrain),
		upgradeCommand(file), listCommand(file), cancelCommand(file), forceCommand(file),
	)
	return c
}

func requestCommand(file *string, use, short string, operation v1alpha1.OperationType) *cobra.Command {
	q := app.OperationRequest{Operation: operation}
	var policy, unreachable string
	var output cli.Output
	args := 0
	if operation == v1alpha1.OperationImageUpdate {
		args = 1
	}
	c := &cobra.Command{
		Use: use, Short: short, Args: cli.Args(cobra.ExactArgs(args)),
		Example: "  edgecore operation " + use + "\n  edgecore operation " + use + " --when-unreachable Proceed --drain-timeout 10m",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				q.Image = args[0]
			}
			q.Drain, q.WhenUnreachable = v1alpha1.DrainPolicy(policy), v1alpha1.UnreachablePolicy(unreachable)
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			var made drain.Operation
			if err := askLocal(c.Context(), cfg, http.MethodPost, app.OperationsPath, q, &made); err != nil {
				return err
			}
			return output.Print(c.OutOrStdout(), made, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "Requested %s; `edgecore operation list` shows its progress\n", made.Name)
				return err
			})
		},
	}
	f := c.Flags()
	f.StringVar(&q.Name, "name", "", "name of the operation (default NODE-OPERATION-RANDOM)")
	f.StringVar(&policy, "drain", string(v1alpha1.DrainRequired), "Required: a drain that fails ends the operation; BestEffort: it goes ahead then; Skip: no drain")
	cli.DurationVar(f, &q.DrainTimeout, "drain-timeout", 0, "bound of one attempt to drain (default modules.drain.timeout)")
	f.StringVar(&unreachable, "when-unreachable", string(v1alpha1.UnreachableDefer), "while the API can't be reached: Defer waits, Proceed goes ahead after modules.drain.proceedAfter")
	output.AddTo(c)
	return c
}

func upgradeCommand(file *string) *cobra.Command {
	var downgrade bool
	var output cli.Output
	c := &cobra.Command{
		Use: "upgrade FILE", Short: "Upgrade edgecore from a bundle of signed programs, without the cloud", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Upgrade edgecore to the newest version in FILE, a tar with the metadata and files of a repository of artefacts (docs/fleet.md). No container
restarts. The device tries the version first, and returns to the previous one if it is not healthy. FILE must be signed by keys that this device trusts
(/etc/skerry/keys.d); expired metadata cause only a warning.`,
		Example: "  edgecore operation upgrade /media/usb/skerry-v1.4.0.tar\n  edgecore operation list",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return cli.Bad(err)
			}
			defer f.Close()
			spec, err := app.ReadBundle(cfg, f)
			if err != nil {
				return cli.Bad(err)
			}
			spec.AllowDowngrade = downgrade
			var made drain.Operation
			if err := askLocal(c.Context(), cfg, http.MethodPost, app.OperationsPath, app.OperationRequest{Operation: v1alpha1.OperationUpgrade, Upgrade: spec}, &made); err != nil {
				return err
			}
			return output.Print(c.OutOrStdout(), made, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "Requested %s, to %s; `edgecore operation list` shows its progress\n", made.Name, spec.Version)
				return err
			})
		},
	}
	c.Flags().BoolVar(&downgrade, "allow-downgrade", false, "also to a version that is older than the running one")
	output.AddTo(c)
	return c
}

func listCommand(file *string) *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "list", Short: "List the operations of this device, and the progress of its drain", Args: cli.Args(cobra.NoArgs),
		Example: "  edgecore operation list\n  edgecore operation list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			var s drain.State
			if err := askLocal(c.Context(), cfg, http.MethodGet, app.OperationsPath, nil, &s); err != nil {
				return err
			}
			return output.Print(c.OutOrStdout(), s, func(w io.Writer) error { return writeOperations(w, s, time.Now()) })
		},
	}
	output.AddTo(c)
	return c
}

func writeOperations(out io.Writer, s drain.State, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tOPERATION\tSTATE\tPHASE\tNO\tATTEMPTS\tREQUESTED\tMESSAGE")
	for _, o := range s.Operations {
		message := o.Message
		if message == "" && o.Stage == drain.Waiting {
			message = s.Drain.Message
		}
		message, _, _ = strings.Cut(message, "\n")
		if last := lastLine(o.Output); o.ExitCode != nil && *o.ExitCode != 0 && last != "" {
			message += ": " + last // the hook's own reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", o.Name, o.Spec.Operation, o.Stage, o.Phase, o.Phase.Number(), o.Attempts, ago(o.RequestedAt, now), message)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, b := range s.Drain.Blocked {
		pdb := ""
		if b.PDB != "" {
			pdb = " " + b.PDB
		}
		if _, err := fmt.Fprintf(out, "blocked: %s/%s: %s%s: %s\n", b.Namespace, b.Name, b.Reason, pdb, b.Message); err != nil {
			return err
		}
	}
	return nil
}

// lastLine returns the last line that is not blank.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndex(text, "\n")+1:])
}

func cancelCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME", Short: "Cancel a pending operation, and remove the node's cordon", Args: cli.Args(cobra.ExactArgs(1)),
		Long: "Cancel a pending operation, or a drain that holds the node. Evictions stop, and the cordon is removed if it is ours.\n" +
			"One whose hook has ended although the device did not boot can be cancelled too.",
		Example: "  edgecore operation cancel edge-17-reboot-x7k2p",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			if err := askLocal(c.Context(), cfg, http.MethodPost, app.OperationsPath+"/"+url.PathEscape(args[0])+"/cancel", nil, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "Requested the cancellation of %s; `edgecore operation list` shows its progress\n", args[0])
			return err
		},
	}
}

func forceCommand(file *string) *cobra.Command {
	var complete, off bool
	c := &cobra.Command{
		Use: "force NAME --complete|--off", Short: "Run an operation at once, regardless of the drain", Args: cli.Args(cobra.ExactArgs(1)),
		Long: "Run an operation that waits for the drain at once, also without a link. The drain ends: as complete, or as switched off. Nothing overwrites that later.\n" +
			"Pods that are here still end with the device, and PodDisruptionBudgets don't count.",
		Example: "  edgecore operation force edge-17-reboot-x7k2p --complete\n  edgecore operation force edge-17-reboot-x7k2p --off",
		RunE: func(c *cobra.Command, args []string) error {
			if complete == off {
				return cli.Badf("say how: --complete (the drain counts as complete) or --off (as switched off)")
			}
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			if err := askLocal(c.Context(), cfg, http.MethodPost, app.OperationsPath+"/"+url.PathEscape(args[0])+"/force", app.Force{Off: off}, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s no longer waits for the drain; `edgecore operation list` shows its progress\n", args[0])
			return err
		},
	}
	c.Flags().BoolVar(&complete, "complete", false, "the drain counts as complete")
	c.Flags().BoolVar(&off, "off", false, "the drain counts as switched off")
	return c
}

// writeDrain prints the state of the drain, and the unfinished operations.
func writeDrain(row func(name, format string, args ...any), s *drain.State) {
	open := slices.DeleteFunc(slices.Clone(s.Operations), func(o drain.Operation) bool { return o.Stage != drain.Waiting && o.Stage != drain.Running })
	text := string(s.Drain.Phase)
	if s.Drain.Attempts > 0 {
		text += fmt.Sprintf(", attempt %d of %d", s.Drain.Attempts, s.Drain.Limit)
	}
	if s.Drain.Message != "" {
		text += ": " + s.Drain.Message
	}
	if text == "" || s.Drain.Phase == v1alpha1.DrainNotRequested && len(open) == 0 {
		text = "none"
	}
	row("drain", "%s", text)
	for _, o := range open {
		row("", "%s %s: %s", o.Spec.Operation, o.Name, strings.TrimSuffix(string(o.Stage)+": "+o.Message, ": "))
	}
	const most = 5
	for i, b := range s.Drain.Blocked {
		if i == most {
			row("", "and %d more", len(s.Drain.Blocked)-most)
			break
		}
		row("", "%s", strings.TrimSpace(fmt.Sprintf("%s/%s is held: %s %s", b.Namespace, b.Name, b.Reason, b.PDB)))
	}
}
