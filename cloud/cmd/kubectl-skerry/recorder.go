package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/cloud/cmd/kubectl-skerry/webui"
	"github.com/skerry-io/skerry/common/cli"
)

func recorderCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "recorder NODE", Short: "Print the newest records of a device's flight recorder: boots, kills, OOMs, evictions, link changes, with their causes",
		Long: `Ask a device, over its link, for the newest 200 records of its flight recorder, the newest last. 'edgecore recorder' on the device has all of them, and needs no link.

Exit code 0: the device answered. 1: it did not.`,
		Example: "  kubectl skerry recorder edge-17\n  kubectl skerry recorder edge-17 -o json | jq -r '.[] | select(.kind == \"Boot\") | .cause'",
		Args:    cli.Args(cobra.ExactArgs(1)), SilenceUsage: true,
		RunE: func(c *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return usage(fmt.Errorf("--output: %q is not json", output))
			}
			cluster, err := connect(f)
			if err != nil {
				return err
			}
			raw, err := cluster.recorder(c.Context(), args[0])
			if err != nil {
				return err
			}
			if output == "json" {
				_, err := fmt.Fprintln(streams.Out, strings.TrimSpace(string(raw)))
				return err
			}
			all, err := webui.Recorded(raw)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(streams.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "TIME\tKIND\tOBJECT\tREASON\tCAUSE")
			for _, e := range slices.Backward(all) {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.Time.Format(time.RFC3339), e.Kind, e.Object, e.Reason, e.Message)
			}
			return w.Flush()
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "Output format: json, or none for people")
	return c
}

// recorder asks a device for its newest records: a JSON array.
func (c *cluster) recorder(ctx context.Context, name string) ([]byte, error) {
	result := c.client.Discovery().RESTClient().Get().AbsPath(reportPath, name, "recorder").Do(ctx)
	if err := result.Error(); err != nil { // that of Raw lacks the message
		return nil, c.unanswered(ctx, name, err)
	}
	return result.Raw()
}
