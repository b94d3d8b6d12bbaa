package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

func joinCommand(file *string) *cobra.Command {
	var token, tokenFile, node, cni string
	var output cli.Output
	var force bool
	timeout := join.DefaultTimeout
	c := &cobra.Command{
		Use: "join --token-file FILE HOST[:PORT]", Short: "Make this device a node of the cluster behind HOST", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Make this device a node of the cluster whose cloudcore is at HOST (port 443 if none is named).

The token comes from 'cloudcore token create'. --token-file reads it from a file, or with - from standard input. --token works too, but every
user of this machine can see it in the list of processes (ps) while join runs, and it stays in the shell's history. The token
pins cloudcore's CA, so no other host learns it. The device creates its key itself, and the key never leaves it. If there is no configuration file, join writes a
minimal one. To run join again after it has succeeded changes nothing.

It first runs the checks of 'edgecore check HOST' and prints their findings. It refuses only a kubelet whose version
does not fit the cluster; missing requirements of the machine can be installed later.

Exit code 0: joined (or joined before). 1: try again later. 2: refused, or something has to be fixed first.`,
		Example: `  edgecore join --token-file /root/join-token cloud.example.com
  ssh admin@cloud.example.com cloudcore token create | edgecore join --token-file - --node-name edge-17 192.0.2.7:8443`,
		RunE: func(c *cobra.Command, args []string) error {
			parsed, err := readToken(c.InOrStdin(), token, tokenFile)
			if err != nil {
				return cli.Bad(err)
			}
			cfg, made, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			if err := choosePodNetwork(cfg, cni, *file, made); err != nil {
				return err
			}
			name, err := app.NodeName(cfg, node)
			if err != nil {
				return cli.Bad(err)
			}
			ctx, _ := cli.Logging(c.Context(), "", 0)
			clock := pki.NewClock(app.BuildTime(), nil)
			options := join.Options{
				Server: args[0], Token: parsed, Node: types.NodeName(name), Dir: app.IdentityDir(cfg), Clock: clock, Force: force, Timeout: timeout,
			}
			if !joined(cfg) || force {
				if err := preflight(c, cfg, options); err != nil {
					return err
				}
			}
			if options.Seal, err = app.Sealer(ctx, cfg); err != nil {
				return cli.Bad(err) // before anything is asked for: a key in the clear must never reach the disk
			}
			if force && joined(cfg) {
				warn(ctx, c.ErrOrStderr(), cfg, name)
			}
			result, err := join.Join(ctx, options)
			if err != nil {
				return outcome(err)
			}
			if made {
				if err := writeMinimal(*file, node, cni); err != nil {
					return err
				}
			}
			return output.Print(c.OutOrStdout(), result, func(w io.Writer) error { return tell(w, result, *file, made) })
		},
	}
	tokenFlags(c, &token, &tokenFile)
	c.Flags().StringVar(&cni, "cni", cniAuto, "who makes the network of pods: auto, edgecore where no other CNI plugin does, or none")
	c.Flags().StringVar(&node, "node-name", "", "the node's name (default: modules.edged.hostnameOverride, else the host's name)")
	c.Flags().BoolVar(&force, "force", false, "give up an identity that is still good")
	cli.DurationVar(c.Flags(), &timeout, "timeout", timeout, "how long to try")
	output.AddTo(c)
	return c
}

// warn prints the losses of a forced join in advance.
func warn(ctx context.Context, w io.Writer, cfg *config.Config, name string) {
	status, err := runningStatus(ctx, cfg)
	if err != nil {
		if status, err = app.StatusOfFiles(ctx, cfg); err != nil && status.Identity == nil {
			return // there is no data to lose
		}
	}
	for _, line := range givenUp(status, name) {
		fmt.Fprintln(w, line)
	}
}

// givenUp lists the losses of a device that joins under a name.
func givenUp(s app.Status, name string) (lines []string) {
	if s.Node == "" || s.Node == name {
		return nil
	}
	waiting := 0
	if s.Data != nil {
		for _, n := range s.Data.Outbox.Waiting {
			waiting += n
		}
	}
	if waiting > 0 {
		lines = append(lines, fmt.Sprintf("warning: %d writes of node %s wait for the cloud, and are lost: it takes none of them from another node. "+
			"To keep them, let this device link once more before it joins", waiting, s.Node))
	}
	return append(lines, fmt.Sprintf("warning: the Node %s stays in the cluster, its pods shown as they were, until it is removed: cloudcore node revoke %s", s.Node, s.Node),
		"the running edgecore remains "+s.Node+" until it is restarted")
}

// writeMinimal makes the configuration file, whole or not at all; an existing one stays. Values of
// --cni.
const (
	cniAuto = "auto"
	cniNone = "none"
)

// choosePodNetwork applies --cni. An existing configuration takes precedence.
func choosePodNetwork(cfg *config.Config, cni, file string, made bool) error {
	switch {
	case cni != cniAuto && cni != cniNone:
		return cli.Badf("--cni %q: must be auto or none", cni)
	case cni == cniNone && !made && cfg.Modules.PodNetwork.Enable:
		return cli.Badf("--cni none: %s is there already; set modules.podNetwork.enable: false in it", file)
	case cni == cniNone:
		cfg.Modules.PodNetwork.Enable = false
	}
	return nil
}

func writeMinimal(file, node, cni string) error {
	text := config.MinimalText
	if node != "" || cni == cniNone {
		text += "modules:\n"
	}
	if node != "" {
		text += "  edged:\n    hostnameOverride: " + node + "\n"
	}
	if cni == cniNone {
		text += "  podNetwork:\n    enable: false\n"
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(file), ".edgecore-*.yaml")
	if err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.WriteString(text)
	err = errors.Join(err, temporary.Sync(), temporary.Chmod(0o640), temporary.Close())
	if err == nil {
		err = os.Link(temporary.Name(), file)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return nil
}

func tell(w io.Writer, r join.Result, file string, made bool) error {
	if r.Already {
		_, err := fmt.Fprintf(w, "this device is node %s already; its certificate is good until %s\n", r.Node, r.NotAfter.UTC().Format(time.RFC3339))
		return err
	}
	fmt.Fprintf(w, "joined as node %s; the certificate is good until %s and renews itself\n", r.Node, r.NotAfter.UTC().Format(time.RFC3339))
	if r.Skew.Abs() > time.Minute {
		fmt.Fprintf(w, "this device's clock is %s off the cloud's; it works nevertheless, but logs and events will have the wrong time\n", r.Skew)
	}
	if made {
		fmt.Fprintf(w, "wrote %s\n", file)
	}
	_, err := fmt.Fprintf(w, "now start edgecore: systemctl enable --now edgecore, or edgecore --config %s\n", file)
	return err
}

// outcome maps a failed join to an exit code: 1 where a later try may succeed, 2 where the user
// must fix something.
func outcome(err error) error {
	if refusal, ok := errors.AsType[*pki.Refusal](err); ok && refusal.Reason.Temporary() {
		return err
	}
	if errors.Is(err, join.ErrUnreachable) || errors.Is(err, join.ErrBusy) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return cli.Bad(err)
}
