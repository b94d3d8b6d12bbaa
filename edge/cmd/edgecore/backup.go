package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
)

func backupCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Save the identity and the store of this device; stop edgecore before", Args: cli.Args(cobra.ExactArgs(1)),
		Long: "Save the identity and the store of this device into an archive, from which `edgecore restore` restores them on the same device, after a damaged disk or an\n" +
			"experiment. Refused while edgecore runs; containers keep running while it is stopped. Not included: the configuration, containers, images, volumes of pods.\n\n" +
			"Keep the archive secret: it contains the device's key, and its Secrets with their key, so whoever has it can act as this device. It is written with mode 0600;\n" +
			"FILE - is standard output, for a program that encrypts.",
		Example: "  systemctl stop edgecore-names.socket edgecore && edgecore backup /media/usb/edge-17.backup; systemctl start edgecore\n" +
			"  edgecore backup - | age -r age1... > edge-17.backup.age",
		RunE: func(c *cobra.Command, args []string) error {
			lock, err := stopped(c.Context(), *file)
			if err != nil {
				return err
			}
			defer lock.Release()
			if args[0] == "-" {
				_, err := lock.Backup(c.Context(), c.OutOrStdout())
				return err
			}
			node, err := backupInto(c.Context(), lock, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "saved node %s into %s\n", node, args[0])
			return err
		},
	}
}

// backupInto writes a file that is whole, or none.
func backupInto(ctx context.Context, lock *app.Lock, path string) (node string, err error) {
	f, err := fresh(path + ".part")
	if err != nil {
		return "", cli.Bad(err)
	}
	node, err = lock.Backup(ctx, f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path + ".part")
		return "", err
	}
	return node, os.Rename(path+".part", path)
}

// fresh creates a file in the place of whatever has its name: a file that others may read, or a
// link to one, would get the device's keys.
func fresh(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func restoreCommand(file *string) *cobra.Command {
	var yes, otherMachine bool
	c := &cobra.Command{
		Use: "restore FILE --yes", Short: "Restore the identity and the store that edgecore backup saved on this device", Args: cli.Args(cobra.ExactArgs(1)),
		Long: "Replace the identity and the store of this device by those of a backup. It refuses while edgecore runs, and a backup that is incomplete or of another node or machine;\n" +
			"then nothing has changed. A backup has no writes that waited for the cloud; with the next link the device reports everything again. Repeat a restore that was\n" +
			"interrupted.\n\n" +
			"A backup on a second machine is a clone, and the cloud refuses it while the first is recorded. If this machine replaces the first permanently: --other-machine,\n" +
			"and in the cluster kubectl annotate lease -n kube-node-lease NODE skerry.io/machine-",
		Example: "  systemctl stop edgecore-names.socket edgecore\n  edgecore restore /media/usb/edge-17.backup --yes\n  systemctl start edgecore",
		RunE: func(c *cobra.Command, args []string) error {
			if !yes {
				return cli.Badf("this replaces the identity and the store of this device. Say --yes to do it")
			}
			lock, err := stopped(c.Context(), *file)
			if err != nil {
				return err
			}
			defer lock.Release()
			in := io.Reader(os.Stdin)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return cli.Bad(err)
				}
				defer f.Close()
				in = f
			}
			node, taken, err := lock.Restore(c.Context(), in, otherMachine)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "restored node %s as of %s\n", node, taken.Format(time.RFC3339))
			return err
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "really do it")
	c.Flags().BoolVar(&otherMachine, "other-machine", false, "this machine replaces that of the backup")
	return c
}

// stopped takes the lock of an edgecore that does not run.
func stopped(ctx context.Context, file string) (*app.Lock, error) {
	cfg, _, err := loadOrDefault(file)
	if err != nil {
		return nil, err
	}
	return lockOf(ctx, cfg)
}
