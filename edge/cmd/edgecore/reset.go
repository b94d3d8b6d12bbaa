package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

// stopFirst names the socket too: a query for a name would start edgecore again.
func stopFirst(err error) error {
	return fmt.Errorf("%w: stop it first (systemctl stop edgecore-names.socket edgecore)", err)
}

func resetCommand(file *string) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "reset --yes", Short: "Forget the cluster: delete the identity, the store and what edgecore set up in the kernel", Args: cli.Args(cobra.NoArgs),
		Long: `Delete the identity and the store of this device, with all writes that still wait for the cloud, and remove what edgecore set up in the
kernel: routes, rules and addresses of virtual IPs, rules of Services unless a kube-proxy of the device has them, the redirection of pods to the edge API, the address of
names, the network of pods. The configuration file, containers and images stay; the Node object in the cluster too, until 'kubectl delete node' or 'cloudcore node revoke'
there. Refused while edgecore runs.`,
		Example: `  edgecore reset          # lists what it would delete
  edgecore reset --yes    # the network first: if that fails, nothing is deleted; repeat it`,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			lock, err := lockOf(c.Context(), cfg)
			if err != nil {
				return err
			}
			defer lock.Release()
			var there []string
			for _, path := range app.OwnFiles(cfg) {
				found, err := filepath.Glob(path)
				if err != nil {
					return err
				}
				there = append(there, found...)
			}
			if len(there) == 0 && !yes {
				_, err := fmt.Fprintln(c.OutOrStdout(), "nothing to delete")
				return err
			}
			if !yes {
				return cli.Badf("this deletes what the device knows and what still waits for the cloud:\n  %s\nSay --yes to do it", strings.Join(there, "\n  "))
			}
			if err := lock.ClearKernel(c.Context()); err != nil {
				return err // the files still name the owner
			}
			if len(there) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "nothing to delete")
				return err
			}
			var errs []error
			for _, path := range there {
				errs = append(errs, os.RemoveAll(path))
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "deleted:\n  %s\n", strings.Join(there, "\n  "))
			return err
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "really do it")
	return c
}

// lockOf takes the lock of an edgecore that does not run.
func lockOf(ctx context.Context, cfg *config.Config) (*app.Lock, error) {
	if _, err := runningStatus(ctx, cfg); err == nil {
		return nil, cli.Bad(stopFirst(app.ErrRuns))
	}
	// One that has no socket, or hangs, holds the lock all the same.
	lock, err := app.TakeLock(cfg)
	if errors.Is(err, app.ErrRuns) {
		return nil, cli.Bad(stopFirst(err))
	}
	return lock, err
}
