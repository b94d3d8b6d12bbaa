package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

// bundleTimeout bounds the making of a bundle: each of its files has a bound of its own.
const bundleTimeout = 5 * time.Minute

func bundleCommand(file *string) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "bundle", Short: "Pack status, configuration, logs, Events, recorder and the kernel's network for support, without secrets", Args: cli.Args(cobra.NoArgs),
		Long: "Pack this device's diagnostics for support into a .tar.gz: status, configuration, logs of edgecore, containerd and the kernel, Events, the flight recorder,\n" +
			"the kernel's addresses, routes and rules, and the Node and pods without environments and arguments. It works while edgecore is dead and without a link.\n" +
			"Values of Secrets, keys and tokens are taken out of every file; logs of applications are not in it.\n\n" +
			"Exit code 0: the bundle is whole. 1: it could not be made.",
		Example: "  edgecore bundle\n  edgecore bundle -o /media/usb/edge-17.tar.gz\n  edgecore bundle -o - | ssh support@example.com 'cat > edge-17.tar.gz'",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			if out == "-" {
				return writeBundle(c.Context(), cfg, c.OutOrStdout())
			}
			if out == "" {
				out = "skerry-bundle-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if err := bundleInto(c.Context(), cfg, out); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), out)
			return err
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "file to write, or - for standard output (default skerry-bundle-TIME.tar.gz)")
	return c
}

func bundleInto(ctx context.Context, cfg *config.Config, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return cli.Bad(err)
	}
	if err := errors.Join(writeBundle(ctx, cfg, f), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path) // a partial one is useless
		return err
	}
	return nil
}

// writeBundle has the running edgecore pack the bundle, which alone can read its store; if edgecore
// does not answer it is packed here.
func writeBundle(ctx context.Context, cfg *config.Config, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, bundleTimeout)
	defer cancel()
	answer, err := bundleOfRunning(ctx, cfg)
	if err != nil {
		return app.WriteBundleOfFiles(ctx, cfg, w, writeStatus)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return refusalOf(answer)
	}
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fmt.Errorf("reading the bundle from edgecore: %w", err)
	}
	return nil
}

func bundleOfRunning(ctx context.Context, cfg *config.Config) (*http.Response, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: askTimeout, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", cfg.Modules.EdgeAPI.Socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edgecore"+app.BundlePath, http.NoBody)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}
