package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/artefactrepo"
)

// artefactFlags are the common flags of the subcommands.
type artefactFlags struct {
	dir, keys string
	valid     time.Duration
}

func artefactCommand(streams genericiooptions.IOStreams) *cobra.Command {
	f := &artefactFlags{}
	c := &cobra.Command{
		Use: "artefact", Aliases: []string{"artefacts"}, Short: "Make and sign the repository of programs that devices are upgraded from",
		Long: `Make and sign the repository of programs from which devices are upgraded (artefacts.dir of cloudcore.yaml): The Update Framework's metadata, and
edgecore packed by zstd, whole and as the difference to an earlier one. It needs no access to the cluster.

The keys never go to the cluster. Only 'rotate' needs two of the three root keys: after 'init' store these offline, in different places.`,
		Example: `  kubectl skerry artefact init --dir repo --keys keys          # once; root.json goes to the devices
  kubectl skerry artefact add v1.4.0 edgecore-amd64 edgecore-arm64=arm64 --dir repo --keys keys
  kubectl skerry artefact add v1.4.1 edgecore-new --delta-from edgecore-amd64 --dir repo --keys keys
  kubectl skerry artefact list --dir repo
  kubectl skerry artefact refresh --dir repo --keys keys       # before the metadata expire
  kubectl skerry artefact rotate targets --dir repo --keys keys`,
		SilenceUsage: true,
	}
	c.PersistentFlags().StringVar(&f.dir, "dir", "repo", "Directory of the repository")
	c.PersistentFlags().StringVar(&f.keys, "keys", "keys", "Directory of the private keys")
	cli.DurationVar(c.PersistentFlags(), &f.valid, "valid", 90*24*time.Hour, "How long devices accept the metadata over the link")
	c.AddCommand(f.initCommand(streams), f.addCommand(streams), f.listCommand(streams), f.removeCommand(streams), f.refreshCommand(streams), f.rotateCommand(streams))
	return c
}

// open reads the repository, whose next metadata are valid for the time of the flag.
func (f *artefactFlags) open() (*artefactrepo.Repository, error) {
	if f.valid < time.Hour {
		return nil, fmt.Errorf("--valid %v: at least 1h", f.valid)
	}
	r, err := artefactrepo.Open(f.dir, f.keys)
	if err != nil {
		return nil, fmt.Errorf("%w (kubectl skerry artefact init makes one)", err)
	}
	r.Expires = time.Now().Add(f.valid)
	return r, nil
}

func (f *artefactFlags) initCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use: "init", Short: "Make the keys and an empty repository", Args: cli.Args(cobra.NoArgs), SilenceUsage: true,
		Example: "  kubectl skerry artefact init --dir repo --keys keys",
		RunE: func(*cobra.Command, []string) error {
			r, err := artefactrepo.Create(f.dir, f.keys)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(streams.Out, "repository %s, keys in %s\n"+
				"on each device: %s as /etc/skerry/keys.d/root.json; what is in it can be upgraded by these keys alone\n"+
				"now: take root-1.pem, root-2.pem and root-3.pem off this machine, to different places; two of them are needed by 'rotate'\n", f.dir, f.keys, r.Root())
			return err
		},
	}
}

func (f *artefactFlags) addCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var bases []string
	var given artefactrepo.Target
	c := &cobra.Command{
		Use: "add VERSION PROGRAM[=ARCH]...", Short: "Add a version of edgecore, for one architecture or several", Args: cli.Args(cobra.MinimumNArgs(2)), SilenceUsage: true,
		Long: `Add a version of edgecore: the programs of a release (edgecore_VERSION_linux_ARCH), for amd64 unless =ARCH follows. Each is packed, and its metadata are signed.

--delta-from names earlier programs of the same architecture: a device that runs one of them in a slot fetches the difference, where that is smaller. It takes
half a minute and 1 GB of memory for each.

--kubernetes, --protocol, --protocol-min and --schema are what devices judge the version by before they fetch it. Where VERSION is this program's own they are
this release's, so use the kubectl-skerry of the release that is added. For another version those that are not given are left out, and devices don't check them;
'edgecore version -o json' of that version prints them.`,
		Example: `  kubectl skerry artefact add v1.4.0 edgecore_v1.4.0_linux_amd64 edgecore_v1.4.0_linux_arm64=arm64 --dir repo --keys keys
  kubectl skerry artefact add v1.4.1 edgecore_v1.4.1_linux_amd64 --delta-from edgecore_v1.4.0_linux_amd64 --dir repo --keys keys`,
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := f.open()
			if err != nil {
				return err
			}
			facts := func(t *artefactrepo.Target) { describe(t, given) }
			for _, arg := range args[1:] {
				file, arch, ok := strings.Cut(arg, "=")
				if !ok {
					arch = "amd64"
				}
				program, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				whole, err := r.Add(args[0], arch, program, facts)
				if err != nil {
					return fmt.Errorf("adding %s: %w", file, err)
				}
				if err := said(streams.Out, whole); err != nil {
					return err
				}
				for _, base := range bases {
					if err := f.addDelta(streams.Out, r, whole, base, program, facts); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	c.Flags().StringSliceVar(&bases, "delta-from", nil, "Earlier program, to which the difference is added as well; may be repeated")
	c.Flags().StringVar(&given.Kubernetes, "kubernetes", "", "Version of its kubelet, like v1.37.2")
	c.Flags().Uint32Var(&given.Protocol, "protocol", 0, "Newest version of the link's protocol that it speaks")
	c.Flags().Uint32Var(&given.ProtocolMin, "protocol-min", 0, "Oldest version of the link's protocol that it speaks")
	c.Flags().IntVar(&given.Schema, "schema", 0, "Newest schema of the store that it reads")
	return c
}

// describe sets the facts by which devices judge a program.
func describe(t *artefactrepo.Target, given artefactrepo.Target) {
	if t.Version == version.Skerry() {
		artefactrepo.OfThisRelease(t)
	}
	if given.Kubernetes != "" {
		t.Kubernetes = given.Kubernetes
	}
	if given.Protocol != 0 {
		t.Protocol, t.ProtocolMin = given.Protocol, given.ProtocolMin
	}
	if given.Schema != 0 {
		t.Schema = given.Schema
	}
}

// addDelta adds a delta that is smaller than the whole program, and no other.
func (f *artefactFlags) addDelta(out io.Writer, r *artefactrepo.Repository, whole artefactrepo.Target, base string, program []byte, facts func(*artefactrepo.Target)) error {
	old, err := os.ReadFile(base)
	if err != nil {
		return err
	}
	packed, err := artefactrepo.Delta(old, program)
	if err != nil {
		return fmt.Errorf("comparing with %s: %w", base, err)
	}
	if int64(len(packed)) >= whole.Length {
		_, err = fmt.Fprintf(out, "no delta from %s: it would be larger than the whole program\n", base)
		return err
	}
	t, err := r.AddDelta(whole.Version, whole.Arch, old, packed, program, facts)
	if err != nil {
		return fmt.Errorf("adding the delta from %s: %w", base, err)
	}
	return said(out, t)
}

func said(out io.Writer, t artefactrepo.Target) error {
	_, err := fmt.Fprintf(out, "%s: %d bytes for a program of %d, %s\n", t.Name, t.Length, t.Size, t.Digest)
	return err
}

func (f *artefactFlags) listCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the programs, and until when devices accept the metadata", Args: cli.Args(cobra.NoArgs), SilenceUsage: true,
		Example: "  kubectl skerry artefact list --dir repo",
		RunE: func(*cobra.Command, []string) error {
			r, err := f.open()
			if err != nil {
				return err
			}
			expiry, err := r.Expiry()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(streams.Out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "VERSION\tARCH\tBYTES\tPROGRAM\tFROM\tDIGEST")
			for _, t := range r.Programs() {
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", t.Version, t.Arch, t.Length, t.Size, short(t.From), t.Digest)
			}
			return errors.Join(w.Flush(), printed(fmt.Fprintf(streams.Out, "metadata expire on %s\n", expiry.UTC().Format(time.DateTime))))
		},
	}
}

func printed(_ int, err error) error { return err }

// short is the beginning of a digest.
func short(digest string) string {
	if digest == "" {
		return "-"
	}
	return digest[:min(len(digest), len("sha256:")+12)]
}

func (f *artefactFlags) removeCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use: "remove VERSION", Short: "Remove a version, with its files", Args: cli.Args(cobra.ExactArgs(1)), SilenceUsage: true,
		Example: "  kubectl skerry artefact remove v1.3.0 --dir repo --keys keys",
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := f.open()
			if err != nil {
				return err
			}
			return r.Remove(args[0])
		},
	}
}

func (f *artefactFlags) refreshCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use: "refresh", Short: "Sign the metadata again, before they expire", Args: cli.Args(cobra.NoArgs), SilenceUsage: true,
		Example: "  kubectl skerry artefact refresh --valid 720h --dir repo --keys keys",
		RunE: func(*cobra.Command, []string) error {
			r, err := f.open()
			if err != nil {
				return err
			}
			if err := r.Publish(); err != nil {
				return err
			}
			return printed(fmt.Fprintf(streams.Out, "metadata expire on %s\n", r.Expires.UTC().Format(time.DateTime)))
		},
	}
}

func (f *artefactFlags) rotateCommand(streams genericiooptions.IOStreams) *cobra.Command {
	roles := []string{"root", "targets", "snapshot", "timestamp"}
	return &cobra.Command{
		Use: "rotate ROLE", Short: "Replace the keys of a role: root, targets, snapshot or timestamp", Args: cli.Args(cobra.ExactArgs(1)), ValidArgs: roles, SilenceUsage: true,
		Long: `Replace the keys of a role: root, targets, snapshot or timestamp. Two of root's three keys have to be in --keys for it. Devices follow the
new root.json by themselves; it is also what new devices begin with.`,
		Example: "  kubectl skerry artefact rotate targets --dir repo --keys keys",
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains(roles, args[0]) {
				return fmt.Errorf("%q is no role: %s", args[0], strings.Join(roles, ", "))
			}
			r, err := f.open()
			if err != nil {
				return err
			}
			if err := r.Rotate(args[0]); err != nil {
				return err
			}
			return printed(fmt.Fprintf(streams.Out, "the keys of %s in %s are new; %s is for new devices\n", args[0], f.keys, filepath.Join(f.dir, "root.json")))
		},
	}
}
