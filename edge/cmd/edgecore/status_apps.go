package main

import (
	"fmt"

	"github.com/skerry-io/skerry/edge/internal/optional/app"
	"github.com/skerry-io/skerry/edge/internal/optional/statsleader"
)

// writeApps prints the state of each application on this device, and its age in the cloud's view.
func writeApps(row func(name, format string, args ...any), s *app.Status) {
	text := "none"
	if len(s.Apps) > 0 {
		text = fmt.Sprint(len(s.Apps))
	}
	if s.Silent {
		text += "; NOT REPORTED: there has been no link for too long; running pods keep running"
	}
	row("applications", "%s", text)
	for _, a := range s.Apps {
		line := fmt.Sprintf("%s: %s", a.App, a.State)
		if a.IsDesignated {
			line += ", belongs here"
		}
		if a.ScheduledOnThisNode {
			line += ", scheduled here"
		}
		if a.Restarts > 0 {
			line += fmt.Sprintf(", %d restarts", a.Restarts)
		}
		row("", "%s", line)
		for _, c := range a.Content {
			if c.IsLocal && !c.Ready {
				row("", "%s: content %s is not here: %s", a.App, c.Name, c.Message)
			}
		}
	}
}

// statsLine reports whether this device reports the cluster's statistics.
func statsLine(s *statsleader.Status) string {
	text := "no candidate: there is no ClusterInfo that selects this device"
	switch {
	case s.Leading:
		text = "this device reports"
	case s.Candidate && s.Leader != "":
		text = "candidate; " + s.Leader + " reports"
	case s.Candidate:
		text = "candidate"
	}
	if s.Problem != "" {
		text += "; the last request failed: " + s.Problem
	}
	return text
}
