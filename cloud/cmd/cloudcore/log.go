package main

import (
	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/cloud/app"
	"github.com/skerry-io/skerry/common/cli"
)

func logCommand() *cobra.Command {
	var module, file string
	c := &cobra.Command{
		Use: "log VERBOSITY", Short: "Change the verbosity of the running cloudcore, or of one module, until cloudcore exits", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Change the verbosity of the log of the cloudcore that runs on this machine or in this container: 0 to 10, as klog's -v. With --module it changes only that
module's; an unknown name prints the modules. Other replicas keep theirs. The change lasts until cloudcore exits; for a permanent one set log.verbosity in
cloudcore.yaml. Only root and the user that cloudcore runs as may do this.`,
		Example: `  cloudcore log 5
  cloudcore log --module cloudhub 4
  kubectl -n skerry-system exec deploy/cloudcore -- /cloudcore log --module cloudhub 4`,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			return app.SetVerbosity(c.Context(), cfg, module, args[0])
		},
	}
	c.Flags().StringVar(&module, "module", "", "only this module")
	c.Flags().StringVar(&file, "config", standardConfig, "the running cloudcore's configuration file")
	return c
}
