package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

func upCommand() *cobra.Command {
	o := trial.DefaultOptions()
	c := &cobra.Command{
		Use: "up", Short: "Start everything, or what is missing of it", Args: cli.Args(cobra.NoArgs), PreRunE: asRoot,
		Long: `Start everything, or what is missing of it, and wait until all nodes are Ready and the sample application runs on them. An interrupted up can be
repeated, or cleaned by 'trial down'.`,
		Example: `  trial up
  trial up --edges 3 --link quic
  trial up --set modules.edged.reportEvent=true      # in every edge's edgecore.yaml
  trial up --clouds 2                                # two replicas of cloudcore behind one address
  trial up --plain 1                                 # also an ordinary kubelet, to compare
  trial up --machine 1                               # also a real machine: Debian with systemd, edgecore from its package
  trial up --in-cluster                              # cloudcore as its own Deployment on two ordinary nodes`,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := open()
			if err != nil {
				return err
			}
			if o.InCluster && !c.Flags().Changed("plain") {
				o.Plain = 2
			}
			if err := t.Up(c.Context(), o); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "Up. Try:\n  bin/trial status\n  bin/trial kubectl get pods -A -o wide\n  bin/trial --help\n")
			return nil
		},
	}
	f := c.Flags()
	f.IntVar(&o.Edges, "edges", o.Edges, "number of edge nodes")
	f.IntVar(&o.Clouds, "clouds", 1, "number of cloudcore's replicas, behind one address")
	f.IntVar(&o.Plain, "plain", o.Plain, "number of nodes with an ordinary kubelet instead of edgecore")
	f.IntVar(&o.Machines, "machine", 0, "number of nodes that are real machines, guests of user-mode Linux; see docs/trial.md")
	f.StringVar(&o.Link, "link", o.Link, "transport of the edges: auto, websocket or quic")
	f.StringArrayVar(&o.Set, "set", nil, "a setting for every edgecore.yaml, path=value (repeatable)")
	f.StringVar(&o.Streams, "streams", trial.StreamsEgress, "kube-apiserver's way to kubelets: egress, as configured, or endpoint, which needs no configuration")
	f.BoolVar(&o.Quick, "quick", false, "the cloud notices a lost node within 12 s and evicts after 10 s more, instead of 50 s and 5 min")
	f.DurationVar(&o.CertificateLife, "certificate-life", 0, "how long the nodes' certificates are good, like 1m, to see them renewed; 0 leaves Kubernetes its year")
	f.BoolVar(&o.InCluster, "in-cluster", false, "cloudcore runs as 'cloudcore install' prints it, on two ordinary nodes, behind a load balancer")
	f.BoolVar(&o.IPv6, "ipv6", false, "the links to the cloud have IPv6 in addition to IPv4; the cloud is 2001:db8:51::10")
	f.BoolVar(&o.Audit, "audit", false, "kube-apiserver writes an audit log")
	f.BoolVar(&o.Sample, "sample", o.Sample, "run the sample application on every node")
	return c
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Stop everything and leave nothing behind", Args: cli.Args(cobra.NoArgs), PreRunE: asRoot,
		Example: "  trial down",
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := open()
			if t == nil {
				return err
			}
			return t.Down(c.Context()) // also with a state that can't be read
		},
	}
}

func statusCommand() *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "status", Short: "Show the status of everything, on one screen", Args: cli.Args(cobra.NoArgs), PreRunE: asRoot,
		Example: "  trial status\n  trial status -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := open()
			if err != nil {
				return err
			}
			s, err := t.Status(c.Context())
			if err != nil {
				return err
			}
			return output.Print(c.OutOrStdout(), s, s.Write)
		},
	}
	output.AddTo(c)
	return c
}

func edgeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "edge NODE kubectl ...", Short: "kubectl on a device, against its own API; works offline", PreRunE: asRoot,
		Example: `  trial edge edge1 kubectl get pods -A
  trial edge edge1 kubectl get events -A --watch`,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			if wantsHelp(args) {
				return c.Help()
			}
			if len(args) < 2 || args[1] != "kubectl" {
				return cli.Badf("usage: trial %s", c.Use)
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			t, err := open()
			if err != nil {
				return err
			}
			if there, err := t.Share(args[0], self); err != nil {
				return err
			} else if there != "" {
				return execOn(c.Context(), args[0], "env", slices.Concat([]string{"KUBECONFIG=" + t.EdgeKubeconfig(), edgeMark + "=" + args[0], there, "kubectl"}, args[2:]), nil)
			}
			return execOn(c.Context(), args[0], self, append([]string{"kubectl"}, args[2:]...), func(t *trial.Trial) []string {
				return []string{"KUBECONFIG=" + t.EdgeKubeconfig(), edgeMark + "=" + args[0]}
			})
		},
	}
}

func execCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "exec HOST -- COMMAND [ARG...]", Short: "Run a command on a host: a node, cloud or client", PreRunE: asRoot,
		Example: `  trial exec edge1 -- ip route
  trial exec cloud -- ss -tn
  trial exec edge1 -- $PWD/bin/edgecore status
  trial exec machine1 -- systemctl restart edgecore`,
		Args: cli.Args(cobra.MinimumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return cli.Badf("usage: trial %s", c.Use)
			}
			return execOn(c.Context(), args[0], command[0], command[1:], nil)
		},
	}
	c.Flags().SetInterspersed(false)
	return c
}

// execOn runs a command on a host with our own streams, and ends with its code.
func execOn(ctx context.Context, host, command string, args []string, env func(*trial.Trial) []string) error {
	t, err := open()
	if err != nil {
		return err
	}
	var more []string
	if env != nil {
		more = env(t)
	}
	if abs, err := filepath.Abs(command); err == nil && strings.Contains(command, "/") {
		command = abs // the command starts in the host's root directory
	}
	code, err := t.Exec(ctx, host, trial.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, more, command, args...)
	if err != nil {
		return err
	}
	if code != 0 {
		os.Exit(code)
	}
	return nil
}

func cutCommand() *cobra.Command {
	silent := false
	c := &cobra.Command{
		Use: "cut NODE", Short: "Cut a node's uplink", Args: cli.Args(cobra.ExactArgs(1)), PreRunE: asRoot,
		Long:    "Cut a node's uplink: by default as if the cable were pulled. Its LAN stays.",
		Example: "  trial cut edge1\n  trial cut edge1 --silent",
		RunE: func(c *cobra.Command, args []string) error {
			how := lab.Carrier
			if silent {
				how = lab.Silent
			}
			return with(func(t *trial.Trial) error { return t.Cut(c.Context(), args[0], how) })
		},
	}
	c.Flags().BoolVar(&silent, "silent", false, "packets are dropped, while the interface stays up")
	return c
}

func healCommand() *cobra.Command {
	return &cobra.Command{
		Use: "heal NODE", Short: "Restore a node's uplink", Args: cli.Args(cobra.ExactArgs(1)), PreRunE: asRoot,
		Example: "  trial heal edge1",
		RunE: func(c *cobra.Command, args []string) error {
			return with(func(t *trial.Trial) error { return t.Heal(c.Context(), args[0]) })
		},
	}
}

func shapeCommand() *cobra.Command {
	var rate, loss string
	c := &cobra.Command{
		Use: "shape NODE", Short: "Limit a node's uplink", Args: cli.Args(cobra.ExactArgs(1)), PreRunE: asRoot,
		Long: "Limit a node's uplink, both ways. What is not given has no limit: without flags the uplink is fast again.",
		Example: `  trial shape edge1 --rate 256kbit --loss 10%
  trial shape edge1`,
		RunE: func(c *cobra.Command, args []string) error {
			var s lab.Shape
			var err error
			if s.Rate, err = parseRate(rate); err != nil {
				return cli.Badf("--rate: %w", err)
			}
			if s.Loss, err = parseLoss(loss); err != nil {
				return cli.Badf("--loss: %w", err)
			}
			return with(func(t *trial.Trial) error { return t.Shape(c.Context(), args[0], s) })
		},
	}
	c.Flags().StringVar(&rate, "rate", "", "bits a second, like 256kbit or 2mbit")
	c.Flags().StringVar(&loss, "loss", "", "part of all packets that is lost, like 10%")
	return c
}

func rebootCommand() *cobra.Command {
	offline, orderly := false, false
	c := &cobra.Command{
		Use: "reboot NODE", Short: "Cut a node's power and boot it again", Args: cli.Args(cobra.ExactArgs(1)), PreRunE: asRoot,
		Long: `Cut a node's power and boot it again: all its processes, containers, mounts and interfaces are gone, and what it had on disk is there. A node
that is cut stays cut. With --orderly the node is shut down first, as by 'systemctl reboot': a logind announces it and waits for the inhibitor locks,
then everything gets SIGTERM.`,
		Example: "  trial reboot edge1\n  trial reboot edge1 --offline\n  trial reboot edge1 --orderly",
		RunE: func(c *cobra.Command, args []string) error {
			reboot := (*trial.Trial).Reboot
			if orderly {
				reboot = (*trial.Trial).RebootOrderly
			}
			return with(func(t *trial.Trial) error { return reboot(t, c.Context(), args[0], offline) })
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "cut its uplink before it boots")
	c.Flags().BoolVar(&orderly, "orderly", false, "shut it down before the power goes")
	return c
}

func powerOffCommand() *cobra.Command {
	return &cobra.Command{
		Use: "poweroff NODE", Short: "Cut a node's power; 'trial reboot' boots it", Args: cli.Args(cobra.ExactArgs(1)), PreRunE: asRoot,
		Example: "  trial poweroff edge1\n  trial reboot edge1",
		RunE: func(c *cobra.Command, args []string) error {
			return with(func(t *trial.Trial) error { return t.PowerOff(c.Context(), args[0]) })
		},
	}
}

func setCommand() *cobra.Command {
	return &cobra.Command{
		Use: "set NODE PATH=VALUE...", Short: "Change an edge's edgecore.yaml and start edgecore again; pods go on", PreRunE: asRoot,
		Example: `  trial set edge1 modules.edgeHub.transport=quic
  trial set edge2 modules.edged.reportEvent=true log.verbosity=4`,
		Args: cli.Args(cobra.MinimumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			return with(func(t *trial.Trial) error {
				if err := t.Set(c.Context(), args[0], args[1:]); err != nil {
					return err
				}
				return t.Answers(c.Context(), args[0], "edgecore")
			})
		},
	}
}

func programCommand(verb, short string, do func(*trial.Trial, context.Context, string, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " HOST PROGRAM", Short: short, Args: cli.Args(cobra.ExactArgs(2)), PreRunE: asRoot,
		Example: fmt.Sprintf("  trial %s edge1 edgecore\n  trial %s edge1 containerd\n  trial %s cloud cloudcore\n  trial %s cloud kubeplane", verb, verb, verb, verb),
		RunE: func(c *cobra.Command, args []string) error {
			return with(func(t *trial.Trial) error { return do(t, c.Context(), args[0], args[1]) })
		},
	}
}

// startProgram starts a program, and returns when it answers: the next command may be one that
// asks it.
func startProgram(t *trial.Trial, ctx context.Context, host, program string) error {
	if err := t.Start(ctx, host, program); err != nil {
		return err
	}
	return t.Answers(ctx, host, program)
}

func logsCommand() *cobra.Command {
	follow := false
	c := &cobra.Command{
		Use: "logs HOST [PROGRAM]", Short: "The log of edgecore, cloudcore or another program", Args: cli.Args(cobra.RangeArgs(1, 2)), PreRunE: asRoot,
		Example: `  trial logs edge1 -f              # edgecore
  trial logs edge1 containerd
  trial logs cloud                 # cloudcore
  trial logs cloud kubeplane`,
		RunE: func(c *cobra.Command, args []string) error {
			program := ""
			if len(args) == 2 {
				program = args[1]
			}
			return with(func(t *trial.Trial) error { return t.Logs(c.Context(), c.OutOrStdout(), args[0], program, follow) })
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow the log")
	return c
}

func envCommand() *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "env", Short: "Shell variables for other programs on this machine", Args: cli.Args(cobra.NoArgs),
		Example: `  eval "$(trial env)" && kubectl get nodes`,
		RunE: func(c *cobra.Command, _ []string) error {
			return with(func(t *trial.Trial) error {
				env, err := t.Env()
				if err != nil {
					return err
				}
				return output.Print(c.OutOrStdout(), env, func(w io.Writer) error {
					for _, v := range env {
						fmt.Fprintf(w, "export %s=%s\n", v.Name, quote(v.Value))
					}
					return nil
				})
			})
		},
	}
	output.AddTo(c)
	return c
}

func with(f func(*trial.Trial) error) error {
	t, err := open()
	if err != nil {
		return err
	}
	return f(t)
}

// quote makes a value safe for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// parseRate reads a rate as tc(8) does: a number and bit, kbit, mbit or gbit, in steps of 1000.
func parseRate(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	for _, unit := range []struct {
		suffix string
		factor float64
	}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}} {
		number, ok := strings.CutSuffix(strings.ToLower(s), unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if bits := n * unit.factor; err != nil || !(bits >= 8 && bits <= 1e12) { // comparisons with NaN are false
			break
		}
		return uint64(n * unit.factor), nil
	}
	return 0, fmt.Errorf("%q is not a rate like 256kbit or 2mbit", s)
}

// parseLoss reads a percentage.
func parseLoss(s string) (float64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil || !strings.HasSuffix(s, "%") || !(n >= 0 && n <= 100) { // comparisons with NaN are false
		return 0, fmt.Errorf("%q is not a percentage like 10%%", s)
	}
	return n / 100, nil
}
