package main

import (
	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/cloud/app"
	"github.com/skerry-io/skerry/common/cli"
)

func approveCommand() *cobra.Command {
	var kubeconfig string
	verbosity := 2
	c := &cobra.Command{
		Use: "approve", Short: "Approve the certificates of devices, as the account cloudcore-approver", Args: cli.Args(cobra.NoArgs),
		Long: `Approve the certificates of devices that join, and keep the list of nodes that cloudcore may act as. It runs until SIGTERM, on one replica
at a time, and listens nowhere: its account is kept apart from cloudcore's, which devices can reach. Where cloudcore.yaml has approver.kubeconfig,
cloudcore does this itself, still with that account.`,
		Example: `  cloudcore approve --kubeconfig /etc/skerry/approver.kubeconfig`,
		RunE: func(c *cobra.Command, _ []string) error {
			approver, err := app.NewApprover(kubeconfig)
			if err != nil {
				return err
			}
			ctx, _ := cli.Logging(c.Context(), "", verbosity)
			return approver.Run(ctx)
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the account cloudcore-approver (default: the account of the pod)")
	c.Flags().IntVar(&verbosity, "verbosity", verbosity, "log verbosity, 0 to 10")
	return c
}
