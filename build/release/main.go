// Command release makes the parts of a release that need no compiler: images, manifests, the
// chart, archives, sums. build/release.sh calls it, once for each part; the same input gives
// the same bytes.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/build/release/archive"
	"github.com/skerry-io/skerry/build/release/chart"
	"github.com/skerry-io/skerry/cloud/install"
	"github.com/skerry-io/skerry/common/cli"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	var epoch int64
	c := &cobra.Command{Use: "release", Short: "Make the parts of a release that need no compiler"}
	c.PersistentFlags().Int64Var(&epoch, "epoch", 0, "the time in everything that is made, in seconds since 1970: the commit's")
	at := func() time.Time { return time.Unix(epoch, 0).UTC() }
	c.AddCommand(imageCommand(at), installCommand(), chartCommand(at), tarCommand(at), sumsCommand())
	return c
}

func imageCommand(at func() time.Time) *cobra.Command {
	var out string
	var files, programs map[string]string
	i := image.Image{Gzip: true, ByDigest: true}
	c := &cobra.Command{
		Use: "image --out FILE --name NAME --path PATH ARCH=PROGRAM...", Short: "Pack programs into an image; print its digest", Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			i.Created = at()
			for _, a := range args {
				arch, file, _ := strings.Cut(a, "=")
				program, err := os.ReadFile(file)
				if err != nil {
					return cli.Bad(err)
				}
				p := image.Platform{Arch: arch, Program: program}
				for _, path := range slices.Sorted(maps.Keys(programs)) {
					content, err := os.ReadFile(programs[path] + arch)
					if err != nil {
						return cli.Bad(err)
					}
					p.Files = append(p.Files, image.File{Path: path, Mode: 0o755, Content: content})
				}
				i.Platforms = append(i.Platforms, p)
			}
			for _, path := range slices.Sorted(maps.Keys(files)) {
				content, err := os.ReadFile(files[path])
				if err != nil {
					return cli.Bad(err)
				}
				i.Files = append(i.Files, image.File{Path: path, Mode: 0o644, Content: content})
			}
			f, err := os.Create(out)
			if err != nil {
				return cli.Bad(err)
			}
			digest, err := image.Archive(f, i)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), digest)
			return err
		},
	}
	c.Flags().StringVar(&out, "out", "", "archive to write")
	c.Flags().StringArrayVar(&i.Names, "name", nil, "name with a tag; may be repeated")
	c.Flags().StringVar(&i.Path, "path", "", "where the program is in the image")
	c.Flags().StringToStringVar(&files, "file", nil, "a file besides the program, PATH=FILE; may be repeated")
	c.Flags().StringToStringVar(&programs, "program", nil, "a program besides, PATH=FILE without the architecture at its end; may be repeated")
	c.Flags().StringVar(&i.User, "user", "", "user that it runs as")
	c.Flags().StringVar(&i.Version, "version", "", "annotated")
	return c
}

func installCommand() *cobra.Command {
	o := install.Options{Replicas: 2}
	c := &cobra.Command{
		Use: "install --image IMAGE --advertise HOST", Short: "Print install.yaml", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return cli.Bad(err)
			}
			raw, err := install.Render(o)
			if err == nil {
				_, err = c.OutOrStdout().Write(raw)
			}
			return err
		},
	}
	c.Flags().StringVar(&o.Image, "image", "", "image of cloudcore, with its digest")
	c.Flags().StringSliceVar(&o.Advertise, "advertise", nil, "names and addresses under which edges reach cloudcore")
	return c
}

func chartCommand(at func() time.Time) *cobra.Command {
	var out string
	var of chart.Chart
	c := &cobra.Command{
		Use: "chart --out FILE --version VERSION --image IMAGE", Short: "Make the Helm chart", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := chart.Files(of)
			if err != nil {
				return err
			}
			var entries []archive.Entry
			for _, name := range slices.Sorted(maps.Keys(files)) {
				entries = append(entries, archive.Entry{Name: "skerry/" + name, Mode: 0o644, Content: files[name]})
			}
			return archive.WriteFile(out, entries, at())
		},
	}
	c.Flags().StringVar(&out, "out", "", "archive to write")
	c.Flags().StringVar(&of.Version, "version", "", "the chart's version, without v")
	c.Flags().StringVar(&of.Image, "image", "", "image of cloudcore, with its digest")
	return c
}

func tarCommand(at func() time.Time) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "tar --out FILE[.gz] NAME=FILE...", Short: "Archive files under the names given; executable ones stay so", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var entries []archive.Entry
			for _, a := range args {
				name, file, ok := strings.Cut(a, "=")
				if !ok {
					return cli.Badf("%q: want NAME=FILE", a)
				}
				e, err := archive.File(name, file)
				if err != nil {
					return cli.Bad(err)
				}
				entries = append(entries, e)
			}
			return archive.WriteFile(out, entries, at())
		},
	}
	c.Flags().StringVar(&out, "out", "", "archive to write")
	return c
}

func sumsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sums FILE...", Short: "Print the SHA-256 of each file, as sha256sum does", Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := archive.Sums(args)
			if err == nil {
				_, err = c.OutOrStdout().Write(raw)
			}
			return err
		},
	}
}
