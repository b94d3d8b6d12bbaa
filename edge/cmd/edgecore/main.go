// Command edgecore runs on every device: the kubelet, the Kubernetes API that it sees, and the
// link to the cloud.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/encoding"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/gctuner"
	"github.com/skerry-io/skerry/common/programpages"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

// standardConfig is where packages put the configuration.
const standardConfig = "/etc/skerry/edgecore.yaml"

// restingGC is the GC percentage at rest (docs/dev/decisions/0014): an idle kubelet allocates 1 MB
// a second, and at 15 percent collecting it cost edgecore nearly as much CPU as all else.
const restingGC = 50

// startOver is when the pages of the program that only the start needed are given back.
const startOver = time.Minute

func main() { cli.Main(command()) }

// unusable is how edgecore ends without a configuration: for good, unless this is a trial, whose
// starts are counted until the version or configuration before it returns.
func unusable(err error) error {
	if app.OnTrial() {
		return errors.New(err.Error())
	}
	return cli.Misconfigured(err)
}

func command() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "edgecore",
		Short: "The device's end of Skerry: Kubernetes for devices behind thin, unreliable links",
		Long: `edgecore makes this device a node of a Kubernetes cluster: it runs the upstream kubelet, and stores on the device the objects that the kubelet
needs. So pods run, restart and come back after a reboot without the cloud. Statuses and events wait on disk until kube-apiserver has accepted them.

Without a command it runs until SIGTERM. Containers keep running when it stops.`,
		Example: `  edgecore join --token-file FILE cloud.example.com # once
  edgecore --config /etc/skerry/edgecore.yaml       # then, by systemd
  edgecore status                                   # link, backlog, certificate; works offline too
  edgecore operation reboot                         # after its pods have moved safely
  edgecore check                                    # preflight checks
  edgecore kubectl logs -f -n shop till-7xk2p       # this device's API; offline too`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			trial := app.TrialLog()
			cfg, err := load(file)
			if err != nil {
				fmt.Fprintln(trial, err)
				return unusable(err)
			}
			ctx, log := cli.Logging(c.Context(), cfg.Log.Format, cfg.Log.Verbosity, trial)
			a, err := app.New(ctx, cfg)
			if err != nil {
				fmt.Fprintln(trial, err)
				return err
			}
			a.ShowStatus(writeStatus)
			a.ConfiguredBy(file)
			a.LogsTo(log)
			if codec := a.Codec(); codec != nil {
				encoding.RegisterCodecV2(codec) // only before anything runs
			}
			policy, burst := gctuner.Default(), make(chan struct{}, 1)
			policy.Rest = restingGC
			policy.AfterBurst = func() {
				select {
				case burst <- struct{}{}:
				default: // the one that waits is for this burst too
				}
			}
			err = gctuner.Run(ctx, policy, func(ctx context.Context) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				go programpages.Run(ctx, startOver, time.Hour, burst, a.ReleasePages) // ends with ctx
				return a.Run(ctx)
			})
			if a.Switching() && ctx.Err() == nil { // a deliberate stop ends it, too
				return a.Again(ctx)
			}
			if err != nil {
				fmt.Fprintln(trial, err)
			}
			return err
		},
	}
	c.PersistentFlags().StringVar(&file, "config", standardConfig, "configuration file")
	c.AddCommand(
		joinCommand(&file), statusCommand(&file), checkCommand(&file), modulesCommand(&file), maintenanceCommand(&file),
		operationCommand(&file), consoleCommand(&file), resetCommand(&file), kubectlCommand(&file), eventsCommand(&file), recorderCommand(&file), bundleCommand(&file), rehearseCommand(&file),
		backupCommand(&file), restoreCommand(&file), logCommand(&file),
		cli.Config("edgecore", config.DefaultText, config.MinimalText, standardConfig, func(file string, data []byte) error {
			_, err := app.Configuration(file, data)
			return err
		}),
		cli.Version("edgecore", map[string]int{"protocol": protocol.Current, "protocolMin": protocol.Oldest, "schema": store.Schema}),
	)
	return c
}
