package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
)

func eventsCommand(file *string) *cobra.Command {
	var output cli.Output
	var namespace string
	var warnings bool
	c := &cobra.Command{
		Use: "events", Short: "List the Events of this device, the newest last; works offline", Args: cli.Args(cobra.NoArgs),
		Long: "List the Events of this device, the newest last: the kubelet's about its pods and its Node, and those of Skerry's agents. It needs no cloud, and they are here\n" +
			"whether or not the cloud gets them (modules.edged.reportEvent). While edgecore is down those on its disk are shown: those before a kill -9 are in `edgecore recorder`.",
		Example: "  edgecore events\n  edgecore events --warnings -n shop\n  edgecore events -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			var list corev1.EventList
			path := "/api/v1/events"
			if namespace != "" {
				path = "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
			}
			if err := askLocal(c.Context(), cfg, http.MethodGet, path, nil, &list); err != nil {
				kept, problem := app.EventsOfFiles(c.Context(), cfg)
				if problem != nil {
					return fmt.Errorf("%w; from its files: %w", err, problem)
				}
				list.Items = kept
			}
			list.Items = slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
				return warnings && e.Type != corev1.EventTypeWarning || namespace != "" && e.Namespace != namespace
			})
			slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return lastSeen(a).Compare(lastSeen(b)) })
			return output.Print(c.OutOrStdout(), list, func(w io.Writer) error { return writeEvents(w, list.Items, time.Now()) })
		},
	}
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "only Events of this namespace")
	c.Flags().BoolVar(&warnings, "warnings", false, "only Events of the type Warning")
	output.AddTo(c)
	return c
}

// lastSeen is when an Event happened last.
func lastSeen(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func writeEvents(out io.Writer, all []corev1.Event, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "there are no events")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LAST SEEN\tCOUNT\tTYPE\tREASON\tOBJECT\tMESSAGE")
	for _, e := range all {
		object := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name
		if e.InvolvedObject.Namespace != "" {
			object = e.InvolvedObject.Namespace + "/" + object
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", duration.HumanDuration(now.Sub(lastSeen(e))), cmp.Or(e.Count, 1), e.Type, e.Reason, object, oneLine(e.Message))
	}
	return w.Flush()
}
