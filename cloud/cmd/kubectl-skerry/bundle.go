package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/common/cli"
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
		Args:    cli.Args(cobra.ExactArgs(1)), SilenceUsage: true,
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
			if err := whole(out, func(w io.Writer) error { return cluster.bundle(c.Context(), args[0], w) }); err != nil {
				return err
			}
			_, err = fmt.Fprintln(streams.Out, out)
			return err
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "File to write, or - for standard output (default skerry-bundle-NODE-TIME.tar.gz)")
	return c
}

// whole has write make a file. Half of a bundle is useless: the former file stays until the
// new one is whole. Files such as pipes are written at once.
func whole(path string, write func(io.Writer) error) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if err := errors.Join(write(file), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// bundle writes a device's bundle.
func (c *cluster) bundle(ctx context.Context, name string, w io.Writer) error {
	body, err := c.client.Discovery().RESTClient().Get().AbsPath(reportPath, name, "log").Stream(ctx)
	if err != nil {
		return c.unanswered(ctx, name, err)
	}
	defer body.Close()
	if _, err := io.Copy(w, body); err != nil {
		return fmt.Errorf("the bundle of %s broke off: %w", name, err)
	}
	return nil
}
