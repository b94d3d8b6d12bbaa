// Command trial brings up a whole Skerry system on one machine and lets people play with it: cut
// cables, reboot devices, kill processes, and look.
package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

func main() {
	// kubectl's commands have flags and an ending of their own, so they never pass through ours.
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		runKubectl(os.Args[2:])
		return
	}
	cli.Main(command())
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:   "trial",
		Short: "Run a whole Skerry system on one machine",
		Long: `trial brings up a cloud (a real Kubernetes control plane and cloudcore) and edges (each a host of its own behind NAT, with containerd and edgecore), and lets
you do to them what happens to devices: cut cables, make links thin, kill processes, cut the power.

Everything of a trial is in .trial of this checkout, or in $TRIAL_DIR: with it a second one runs next to the first.

Exit codes: 0 success; 1 failure; 2 invalid command, or not possible now, and nothing was changed.`,
		Example: `  trial up                                   # two edges, both transports, a sample application
  trial status
  trial kubectl get pods -A -o wide
  trial cut edge1                            # pull the cable
  trial edge edge1 kubectl get pods -A       # the device knows its pods without the cloud
  trial reboot edge1                         # the pods come back, still without the cloud
  trial heal edge1
  trial down`,
		Args: cli.Args(cobra.NoArgs), // an unknown verb is the caller's mistake
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		upCommand(), downCommand(), statusCommand(), kubectlCommand(), edgeCommand(), execCommand(),
		cutCommand(), healCommand(), shapeCommand(), rebootCommand(), powerOffCommand(), setCommand(),
		programCommand("kill", "End a program as a crash would (SIGKILL)", (*trial.Trial).Kill),
		programCommand("stop", "End a program in its own way (SIGTERM)", (*trial.Trial).Stop),
		programCommand("start", "Start a program that was killed or stopped, and wait until it answers", startProgram),
		logsCommand(), envCommand(),
	)
	return c
}

// open finds the trial of the repository we are in, or the one that TRIAL_DIR names.
func open() (*trial.Trial, error) {
	root, err := binary.Root()
	if err != nil {
		return nil, cli.Bad(err)
	}
	dir := filepath.Join(root, ".trial")
	if named := os.Getenv("TRIAL_DIR"); named != "" {
		if dir, err = filepath.Abs(named); err != nil {
			return nil, cli.Badf("TRIAL_DIR: %w", err)
		}
	}
	return trial.Open(root, dir, os.Stderr)
}

// asRoot refuses users without the rights that namespaces need.
func asRoot(c *cobra.Command, _ []string) error {
	if os.Getuid() != 0 {
		return cli.Badf("trial %s works on network namespaces and containers: run it as root (sudo)", c.Name())
	}
	return nil
}
