package main

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
)

func logCommand(file *string) *cobra.Command {
	var module string
	c := &cobra.Command{
		Use: "log VERBOSITY", Short: "Change the verbosity of the running edgecore, or of one module, until it ends", Args: cli.Args(cobra.ExactArgs(1)),
		Long: "Change how much the running edgecore writes to its log: 0 to 10, as klog's -v; the configuration has 2. With --module it is that of one module (`edgecore modules` lists\n" +
			"them), without it that of all. It lasts until edgecore ends; log.verbosity in edgecore.yaml is for longer.",
		Example: "  edgecore log --module edgehub 5\n  edgecore log 2",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			path := app.LogPath + "?" + url.Values{"v": {args[0]}, "module": {module}}.Encode()
			return askWithin(c.Context(), cfg, askTimeout, http.MethodPut, path, nil, &struct{}{})
		},
	}
	c.Flags().StringVar(&module, "module", "", "only this module")
	return c
}
