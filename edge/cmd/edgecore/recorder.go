package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
)

func recorderCommand(file *string) *cobra.Command {
	var output cli.Output
	var since time.Duration
	var kinds []string
	var last int
	c := &cobra.Command{
		Use: "recorder", Short: "Print the flight recorder: boots, kills, OOMs, evictions, link changes and operations, with their causes", Args: cli.Args(cobra.NoArgs),
		Long: "Print the flight recorder of this device, the newest last: boots and why the boot before ended, starts and ends of edgecore, ends of containers, OOMs, evictions,\n" +
			"link changes, operations, and the kubelet's warnings. It needs neither edgecore nor a link.",
		Example: "  edgecore recorder --since 24h\n  edgecore recorder --kind Boot,OOM,Eviction\n  edgecore recorder --last 20 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			for _, k := range kinds {
				if !slices.Contains(flightrecorder.Kinds(), flightrecorder.Kind(k)) {
					return cli.Badf("--kind %s: it must be one of %v", k, flightrecorder.Kinds())
				}
			}
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			all, err := flightrecorder.Read(app.FlightRecorder(cfg))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no flight recorder in %s: edgecore has not run here yet", app.FlightRecorder(cfg))
			} else if err != nil {
				return err
			}
			after := time.Time{}
			if since > 0 {
				after = time.Now().Add(-since)
			}
			all = slices.DeleteFunc(all, func(r flightrecorder.Record) bool {
				return r.Time.Before(after) || len(kinds) > 0 && !slices.Contains(kinds, string(r.Kind))
			})
			if last > 0 {
				all = all[max(0, len(all)-last):]
			}
			return output.Print(c.OutOrStdout(), all, func(w io.Writer) error { return writeRecords(w, all) })
		},
	}
	f := c.Flags()
	cli.DurationVar(f, &since, "since", 0, "only records newer than this, like 24h (default all)")
	f.StringSliceVar(&kinds, "kind", nil, "only these kinds: "+strings.Join(kindNames(), ", "))
	f.IntVar(&last, "last", 0, "only so many of the newest (default all)")
	output.AddTo(c)
	return c
}

func kindNames() (names []string) {
	for _, k := range flightrecorder.Kinds() {
		names = append(names, string(k))
	}
	return names
}

func writeRecords(out io.Writer, all []flightrecorder.Record) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tKIND\tOBJECT\tREASON\tCAUSE")
	for _, r := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Time.UTC().Format(time.RFC3339), r.Kind, oneLine(r.Object), oneLine(r.Reason), oneLine(r.Cause))
	}
	return w.Flush()
}
