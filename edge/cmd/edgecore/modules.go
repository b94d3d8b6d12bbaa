package main

import (
	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
)

func modulesCommand(file *string) *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "modules", Short: "Print the wiring: modules in the order in which they start, their groups, restart policies, mailboxes and topics",
		Example: "  edgecore modules\n  edgecore log --module edgehub 5    # with a name of the first column",
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, made, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			_ = made // the defaults have a wiring too
			wiring, err := app.Wiring(cfg)
			if err != nil {
				return err
			}
			if output == "json" {
				return wiring.WriteJSON(c.OutOrStdout())
			}
			return wiring.WriteTable(c.OutOrStdout())
		},
	}
	output.AddTo(c)
	return c
}
