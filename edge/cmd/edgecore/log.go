package main

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/logging"
)

func logCommand(file *string) *cobra.Command {
	var module string
	c := &cobra.Command{
		Use: "log VERBOSITY", Short: "Change the verbosity of the running edgecore, or of one module, until edgecore exits", Args: cli.Args(cobra.ExactArgs(1)),
		Long: "Change the verbosity of the running edgecore's log: 0 to 10, as klog's -v; the default is 2. With --module it changes only that module's (`edgecore modules` lists\n" +
			"them; another name is refused). The change lasts until edgecore exits; for a permanent one set log.verbosity in edgecore.yaml.",
		Example: "  edgecore log --module edgehub 5\n  edgecore log 2",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			path := logging.Path + "?" + url.Values{"v": {args[0]}, "module": {module}}.Encode()
			return askWithin(c.Context(), cfg, askTimeout, http.MethodPut, path, nil, &struct{}{})
		},
	}
	c.Flags().StringVar(&module, "module", "", "only this module")
	return c
}
