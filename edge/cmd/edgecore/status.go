package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

// askTimeout bounds the question to the running process.
const askTimeout = 5 * time.Second

func statusCommand(file *string) *cobra.Command {
	var output cli.Output
	c := &cobra.Command{
		Use: "status", Short: "Show the status of this device: link, backlog, certificate, what it holds", Args: cli.Args(cobra.NoArgs),
		Long: "Show the status of this device. Works without the cloud; while edgecore is down it reads its files.\n" +
			"Exit code 0: edgecore runs. 1: it does not.",
		Example: "  edgecore status\n  edgecore status -o json | jq .link",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, _, err := loadOrDefault(*file)
			if err != nil {
				return err
			}
			status, down := runningStatus(c.Context(), cfg)
			if down != nil {
				// The status of the files is printed, also if the store can't be opened.
				var problem error
				if status, problem = app.StatusOfFiles(c.Context(), cfg); problem != nil {
					if status.Identity == nil {
						return problem // it has not joined: there is no status
					}
					down = errors.Join(down, problem)
				}
			}
			if err := output.Print(c.OutOrStdout(), status, func(w io.Writer) error { return writeStatus(w, status) }); err != nil {
				return err
			}
			switch {
			case errors.Is(down, app.ErrUnresponsive):
				return down
			case down != nil:
				return fmt.Errorf("edgecore does not run here: %w", down)
			}
			return nil
		},
	}
	output.AddTo(c)
	return c
}

// runningStatus asks the edgecore that runs on this machine.
func runningStatus(ctx context.Context, cfg *config.Config) (app.Status, error) {
	var s app.Status
	socket := cfg.Modules.EdgeAPI.Socket
	if socket == "" {
		return s, errors.New("modules.edgeAPI.socket is empty, so it can't be asked")
	}
	client := http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edgecore"+app.StatusPath, http.NoBody)
	if err != nil {
		return s, err
	}
	answer, err := client.Do(request)
	if err != nil {
		if refused, ok := errors.AsType[*net.OpError](err); ok {
			return s, refused
		}
		return s, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return s, fmt.Errorf("it answered %s", answer.Status)
	}
	return s, json.NewDecoder(answer.Body).Decode(&s)
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return duration.HumanDuration(now.Sub(t)) + " ago"
}

func writeStatus(out io.Writer, s app.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, oneLine(fmt.Sprintf(format, args...)))
	}
	running := "running, "
	switch {
	case s.Unresponsive:
		running = "runs and does not answer; "
	case !s.Running:
		running = "not running; "
	}
	row("node", "%s", s.Node)
	row("edgecore", "%s%s (Kubernetes %s)", running, s.Version, s.Kubernetes)
	if s.Running {
		row("kubelet", "%s", strings.Join(append([]string{s.Kubelet}, s.NodeProblems...), "; "))
		for _, note := range s.KubeletNotes {
			row("kubelet", "%s", note)
		}
	}
	if s.Runtime != "" {
		row("PROBLEM", "%s", s.Runtime)
	}
	if s.Pods != nil {
		writePods(row, s.Pods)
	}
	if l := s.Link; l != nil {
		if l.Linked {
			row("link", "up for %s over %s to %s (cloudcore %s, %s)", duration.HumanDuration(s.At.Sub(l.Since)), l.Transport, l.Server, l.Instance, l.Version)
			row("last contact", "%s", ago(l.LastContact, s.At))
		} else {
			row("link", "%s", down(l, s.At))
			row("last contact", "%s", ago(l.LastContact, s.At))
		}
		if l.Problem != "" {
			row("PROBLEM", "%s", l.Problem)
		}
	}
	if i := s.Identity; i != nil {
		if i.Expired {
			row("certificate", "ENDED at %s: asks cloudcore for another one, which it gives for a while after that (docs/dev/link.md)", i.NotAfter.UTC().Format(time.RFC3339))
		} else {
			row("certificate", "good until %s, is renewed over the link from %s", i.NotAfter.UTC().Format(time.RFC3339), i.RotateAt.UTC().Format(time.RFC3339))
		}
		if i.LastError != "" {
			row("", "last renewal: %s", i.LastError)
		}
	}
	if s.ClockSkew.Abs() > time.Minute {
		row("clock", "%s off the cloud's", s.ClockSkew.Round(time.Second))
	}
	if s.Site != nil {
		for n, p := range s.Site.Peers {
			at := ""
			if p.Address.IsValid() { // it was met since the start
				at = " at " + p.Address.String()
			}
			row(map[bool]string{true: "site", false: ""}[n == 0], "%s %s%s, with %d pods", p.Node, contactOf(p.Status), at, p.Pods)
		}
	}
	if p := s.Programs; p != nil && p.Sent+p.Received > 0 {
		row("programs", "%d KiB sent to devices of the site, %d KiB received from them", p.Sent>>10, p.Received>>10)
	}
	if s.Disk != nil && s.Disk.Problem != "" {
		row("PROBLEM", "%s", s.Disk.Problem)
	}
	if d := s.Data; d != nil {
		row("waiting for the cloud", "%s", backlog(d.Outbox.Waiting))
		if d.Outbox.Oldest != nil {
			row("", "oldest from %s", ago(*d.Outbox.Oldest, s.At))
		}
		if q := d.Outbox.Quota; q != nil {
			state := "retrying"
			if q.Until.Before(s.At) {
				state = "was tried again"
			}
			row("", "quota %s of cloudcore was used up, %d times; %s at %s", q.Quota, q.Times, state, q.Until.UTC().Format(time.RFC3339))
		}
		if d.Outbox.Dropped > 0 {
			row("", "%d events had to make room", d.Outbox.Dropped)
		}
		if d.DamagedStore != "" {
			row("PROBLEM", "the store was damaged; it is kept as %s", d.DamagedStore)
			for _, lost := range d.Lost {
				row("", "could not be read: %s", lost)
			}
		}
		if d.DamagedStore == "" && len(d.Lost) > 0 {
			row("PROBLEM", "the store's file was missing or empty when edgecore started: pending writes to the cloud are lost, the rest is delivered again")
		}
		row("stored objects", "%s", stored(s))
	}
	if r := s.Routes; r != nil {
		writeRoutes(row, r)
	}
	if v := s.VIPs; v != nil {
		writeVIPs(row, v)
	}
	if d := s.Drain; d != nil {
		writeDrain(row, d)
	}
	if m := s.Marks; m != nil {
		writeMarks(row, m)
	}
	for i, k := range s.Consoles {
		used := "no client"
		if k.Client.IsValid() {
			used = "client " + k.Client.String()
		}
		row(map[bool]string{true: "consoles"}[i == 0], "%s of %s at %v until %s, %s", k.Kind, k.Machine, k.Address, k.Until.UTC().Format(time.RFC3339), used)
	}
	if s.Apps != nil {
		writeApps(row, s.Apps)
	}
	if s.Logs != nil {
		row("application logs", "%d containers; %d lines sent, %d dropped before they were", s.Logs.Containers, s.Logs.Sent, s.Logs.Dropped)
		if s.Logs.Problem != "" {
			row("", "%s", s.Logs.Problem)
		}
	}
	if s.Stats != nil {
		row("cluster stats", "%s", statsLine(s.Stats))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return writeModules(out, s)
}

// maxRoutes is how many routes that are not as they should be, entries of marks, and pods that
// don't run, are printed;
// -o json prints all.
const maxRoutes = 10

// writeRoutes prints the number of static routes, and the errors of the failed ones.
func writeRoutes(row func(name, format string, args ...any), r *route.Status) {
	switch {
	case r.Waiting != "":
		row("static routes", "unchanged: %s", r.Waiting)
	case r.Desired == 0:
		row("static routes", "none")
	default:
		row("static routes", "%d of %d fine", r.Applied, r.Desired)
	}
	troubles := 0
	for _, e := range r.Routes {
		if e.Reason == v1alpha1.RouteApplied || e.Reason == v1alpha1.RouteDryRun {
			continue
		}
		if troubles++; troubles <= maxRoutes {
			row("", "%s: %s: %s", e.StaticRoute, e.Reason, e.Message)
		}
	}
	if troubles > maxRoutes {
		row("", "and %d more", troubles-maxRoutes)
	}
}

// writePods prints how many pods run, and the reasons and actions for the others.
func writePods(row func(name, format string, args ...any), p *podhealth.Status) {
	row("pods", "%s", p)
	for _, pod := range p.NotRunning[:min(len(p.NotRunning), maxRoutes)] {
		line := fmt.Sprintf("%s/%s: %s", pod.Namespace, pod.Name, pod.State)
		if pod.Reason != "" {
			line += ", " + pod.Reason
		}
		if pod.Message != "" {
			line += ": " + pod.Message
		}
		row("", "%s", strings.ReplaceAll(line, "\n", " "))
		if pod.Action != "" {
			row("", "  -> %s", pod.Action)
		}
	}
	if more := len(p.NotRunning) - maxRoutes; more > 0 {
		row("", "and %d more", more)
	}
}

// writeMarks prints the collected Services and Ingresses.
func writeMarks(row func(name, format string, args ...any), m *marks.Status) {
	row("marks", "%d rules for %d ports of Services and paths of Ingresses", m.Rules, len(m.Entries))
	for _, e := range m.Entries[:min(len(m.Entries), maxRoutes)] {
		row("", "%s", e)
	}
	if more := len(m.Entries) - maxRoutes; more > 0 {
		row("", "and %d more", more)
	}
	if m.LeftOut > 0 {
		row("PROBLEM", "%d entries of the newest Services and Ingresses are left out", m.LeftOut)
	}
	for _, p := range m.Problems {
		row("PROBLEM", "%s", p)
	}
}

// writeVIPs prints this node's role for each virtual IP.
func writeVIPs(row func(name, format string, args ...any), v *vip.Status) {
	text := "none"
	if n := len(v.VIPs); n > 0 {
		text = fmt.Sprintf("%d, by %s", n, v.DataPlane)
	}
	if v.Maintenance {
		text += "; under maintenance"
	}
	if v.Draining {
		text += "; handed over for a drain"
	}
	row("virtual IPs", "%s", text)
	for _, a := range v.VIPs {
		line := fmt.Sprintf("%s (%s, pool %s): %s, %d ready here", a.Address, a.Service, a.Pool, a.Self.State, a.Self.ReadyEndpoints)
		if a.Self.Message != "" {
			line += ": " + a.Self.Message
		}
		row("", "%s", line)
	}
	if v.Problem != "" {
		row("", "%s", v.Problem)
	}
}

// oneLine is a text that breaks no table.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), "; ")
}

// down returns since when there is no link, why, and edgecore's next step.
func down(l *edgehub.Status, now time.Time) string {
	text := "DOWN since edgecore started"
	if !l.Since.IsZero() {
		text = "DOWN for " + duration.HumanDuration(now.Sub(l.Since))
	}
	if l.LastError != "" {
		text += "; " + l.Server + ": " + l.LastError
	}
	if l.NextTry.After(now) {
		return text + "; next try in " + duration.HumanDuration(l.NextTry.Sub(now))
	}
	return text + "; trying now"
}

// contactOf describes a contact's state, with its name in docs/site.md.
func contactOf(status string) string {
	text := map[string]string{
		"Met": "in contact", "Mute": "without a running edgecore", "Dead": "down", "Absent": "not reached since this device booted", "Unmet": "never reached",
	}[status]
	if text == "" {
		return status
	}
	return text + " (" + status + ")"
}

// backlog counts the waiting writes by class: "8 events, 1 node status".
func backlog(waiting map[string]int) string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(waiting)) {
		if n := waiting[class]; n > 0 {
			name := strings.ToLower(strings.ReplaceAll(class, "_", " "))
			if n > 1 {
				name = strings.TrimSuffix(name, "s") + map[bool]string{true: "ses", false: "s"}[strings.HasSuffix(name, "s")]
			}
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func stored(s app.Status) string {
	var parts []string
	for _, r := range s.Data.Resources {
		if r.Objects > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", r.Objects, r.Resource))
		}
	}
	if len(parts) == 0 {
		return "none yet"
	}
	return strings.Join(parts, ", ")
}

// writeModules lists the modules that are not ready, and the agents with a problem or a note; empty
// without any.
func writeModules(out io.Writer, s app.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range s.Modules {
		if m.State != beehive.Ready {
			fmt.Fprintf(w, "module %s\t%s since %s\t%s\n", m.Name, m.State, ago(m.Since, s.At), oneLine(m.LastError))
		}
	}
	for _, m := range s.Agents {
		if m.Problem != "" {
			fmt.Fprintf(w, "agent %s\tfailed %d times\t%s\n", m.Name, m.Failures, oneLine(m.Problem))
		}
		if m.Note != "" {
			fmt.Fprintf(w, "agent %s\t%s\n", m.Name, oneLine(m.Note))
		}
	}
	return w.Flush()
}
