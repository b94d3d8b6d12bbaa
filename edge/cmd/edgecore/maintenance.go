package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
)

func maintenanceCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "maintenance on|off", Short: "Hand this device's virtual IPs over to other nodes, or take part again",
		Long: "Hand this device's virtual IPs over to other nodes of their pools before you work on it, or let it take part again.\n" +
			"It holds over reboots, and needs no cloud. An address that no other node can take has no holder during that time.",
		Example: "  edgecore maintenance on && edgecore status",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgs: []string{"on", "off"},
		RunE: func(c *cobra.Command, args []string) error {
			on := args[0] == "on"
			if !on && args[0] != "off" {
				return cli.Bad(fmt.Errorf("%q is neither on nor off", args[0]))
			}
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			if err := askLocal(c.Context(), cfg, http.MethodPut, app.MaintenancePath, app.Maintenance{On: on}, nil); err != nil {
				return err
			}
			text := "this device holds virtual IPs again"
			if on {
				text = "virtual IPs are handed over to other devices until edgecore maintenance off"
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
}
