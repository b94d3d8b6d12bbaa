package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// reportPath is the path of a device's report.
const reportPath = "/apis/subresources.skerry.io/v1alpha1/nodes"

func bundleCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "bundle NODE", Short: "Fetch a support bundle of a device: status, configuration, logs, Events, recorder, without secrets",
		Long: `Fetch the output of 'edgecore bundle' on a device, over its link: status, configuration, logs, Events, the flight recorder and the kernel's network, as a
.tar.gz without secrets. Over the link each file has at most its newest 512 KiB; 'edgecore bundle' on the device has 4 MiB of each.
A device without a link has to be asked on site.

Exit code 0: the bundle is whole. 1: it could not be fetched.`,
		Example: "  kubectl skerry bundle edge-17\n  kubectl skerry bundle edge-17 -o - | tar -tz",
		Args:    cobra.ExactArgs(1), SilenceUsage: true,
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				out = "skerry-bundle-" + args[0] + "-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			cluster, err := connect(f)
			if err != nil {
				return err
			}
			if out == "-" {
				return cluster.bundle(c.Context(), args[0], streams.Out)
			}
			file, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			if err != nil {
				return err
			}
			if err := errors.Join(cluster.bundle(c.Context(), args[0], file), file.Close()); err != nil {
				_ = os.Remove(out) // half of one is useless
				return err
			}
			_, err = fmt.Fprintln(streams.Out, out)
			return err
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "File to write, or - for standard output (default skerry-bundle-NODE-TIME.tar.gz)")
	return c
}

// bundle writes a device's bundle.
func (c *cluster) bundle(ctx context.Context, name string, w io.Writer) error {
	body, err := c.client.Discovery().RESTClient().Get().AbsPath(reportPath, name, "log").Stream(ctx)
	if err != nil {
		return rights(err)
	}
	defer body.Close()
	if _, err := io.Copy(w, body); err != nil {
		return fmt.Errorf("the bundle of %s broke off: %w", name, err)
	}
	return nil
}
