package main

import (
	"errors"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/pods/rehearsal"
)

func rehearseCommand(file *string) *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "rehearse", Short: "Predict which pods would run again if this device rebooted now without a link", Args: cli.Args(cobra.NoArgs),
		Long: "Predict which pods would not run again if this device rebooted now without a link, with the reason and the remedy. It changes, starts and stops nothing.\n\n" +
			"Exit code 0: all pods would run. 1: some would not, or edgecore does not answer.",
		Example: "  edgecore rehearse\n  edgecore rehearse && systemctl reboot",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			var r rehearsal.Report
			if err := askWithin(c.Context(), cfg, rehearsalTimeout, http.MethodGet, app.RehearsalPath, nil, &r); err != nil {
				return err
			}
			if err := output.Print(c.OutOrStdout(), r, func(w io.Writer) error {
				_, err := io.WriteString(w, app.RehearsalText(r))
				return err
			}); err != nil {
				return err
			}
			if !r.Fine() {
				return errors.New("not every pod would run again")
			}
			return nil
		},
	}
	output.AddTo(c)
	return c
}
