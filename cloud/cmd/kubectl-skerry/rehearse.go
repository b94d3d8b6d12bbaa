package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/cli"
)

func rehearseCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "rehearse NODE", Short: "Predict which pods would run again if a device rebooted now without a link",
		Long: `Ask a device, over its link, which of its pods would not run again if it rebooted now without a link, why, and what to do
before. It changes nothing.

Exit code 0: all pods would run. 1: some would not, or the device can't be asked.`,
		Example: "  kubectl skerry rehearse edge-17\n  kubectl skerry rehearse edge-17 -o json",
		Args:    cli.Args(cobra.ExactArgs(1)), SilenceUsage: true,
		RunE: func(c *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return usage(fmt.Errorf("--output: %q is not json", output))
			}
			cluster, err := connect(f)
			if err != nil {
				return err
			}
			body, err := cluster.rehearsal(c.Context(), args[0], output == "")
			if err != nil {
				return err
			}
			if _, err := fmt.Fprint(streams.Out, body); err != nil {
				return err
			}
			if !fine(body) {
				return errors.New("not every pod would run again")
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "Output format: json; text by default")
	return c
}

// rehearsal asks a device for its rehearsal.
func (c *cluster) rehearsal(ctx context.Context, name string, text bool) (string, error) {
	r := c.client.Discovery().RESTClient().Get().AbsPath(reportPath, name, "rehearsal")
	if text {
		r = r.Param("format", "text")
	}
	result := r.Do(ctx)
	if err := result.Error(); err != nil { // that of Raw lacks the message
		return "", c.unanswered(ctx, name, err)
	}
	body, err := result.Raw()
	if err != nil || !text {
		return string(body), err
	}
	lines := strings.Split(string(body), "\n")
	for i, line := range lines {
		lines[i] = fleet.Printable(line, 4096)
	}
	return strings.Join(lines, "\n"), nil
}

// fine reports whether every pod would run: in the text there is a line with a remedy for each
// that would not.
func fine(body string) bool {
	var r struct {
		Device []json.RawMessage
		Pods   []struct{ Causes []json.RawMessage }
	}
	if json.Unmarshal([]byte(body), &r) != nil {
		return !strings.Contains(body, "-> ")
	}
	for _, p := range r.Pods {
		if len(p.Causes) > 0 {
			return false
		}
	}
	return len(r.Device) == 0
}
