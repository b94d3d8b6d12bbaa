package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/cloud/internal/trust/check"
	"github.com/skerry-io/skerry/common/cli"
)

func checkCommand() *cobra.Command {
	var who admin
	var output cli.Output
	c := &cobra.Command{
		Use: "check", Short: "Run preflight checks of a cluster", Args: cli.Args(cobra.NoArgs),
		Long: `Check whether cloudcore can be installed in a cluster: its version, the APIs that it serves, whether you may create the
objects of 'cloudcore install'; and which DaemonSets would run on every device, with a patch that keeps each away. Changes
nothing.

Exit code 0: all fine (there may be warnings). 1: something has to be fixed.`,
		Example: "  cloudcore check\n  cloudcore check --kubeconfig admin.kubeconfig -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := who.client()
			if err != nil {
				return err
			}
			findings := check.Run(c.Context(), client)
			if err := output.Print(c.OutOrStdout(), findings, func(w io.Writer) error { return writeFindings(w, findings) }); err != nil {
				return err
			}
			failed := 0
			for _, f := range findings {
				if f.Level == check.Fail {
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("to be mended: %d of %d", failed, len(findings))
			}
			return nil
		},
	}
	who.addTo(c)
	output.AddTo(c)
	return c
}

func writeFindings(w io.Writer, findings []check.Finding) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Level, f.Name, f.Message)
		if f.Mend != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Mend)
		}
	}
	return t.Flush()
}
