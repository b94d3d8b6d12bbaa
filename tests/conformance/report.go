package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// A result is how a case ended.
type result struct {
	Name    string
	State   string // passed, failed, skipped, timedout, ...
	Took    time.Duration
	Message string
}

// read reads ginkgo's report.
func read(path string) (all []result, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading what the tests found: %w", err)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(raw, &suites); err != nil {
		return nil, fmt.Errorf("reading what the tests found: %w", err)
	}
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			if r.LeafNodeType != "It" || r.State == "skipped" && r.Failure.Message == "" { // not chosen
				continue
			}
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			all = append(all, result{name, r.State, r.RunTime, r.Failure.Message})
		}
	}
	slices.SortFunc(all, func(a, b result) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// known are the cases that can't pass, with the reason: lines of "case ## reason"; #
// begins a comment.
func known(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, why, ok := strings.Cut(line, " ## "); ok {
			all[name] = why
		}
	}
	return all
}

// write writes the page.
func write(out io.Writer, kubernetes, cases string, all []result, reasons map[string]string) error {
	passed := 0
	for _, r := range all {
		if r.State == "passed" {
			passed++
		}
	}
	fmt.Fprintf(out, `# Conformance

Written by `+"`make conformance`"+`: Kubernetes' own end-to-end tests (%s, the cases that `+"`%s`"+` matches) on a trial of two edges behind NAT. Services are served by edgecore's proxy, names by
edgecore, pods are on edgecore's network; no kube-proxy, no CoreDNS, no CNI plugin of another. Commands in pods go through the tunnel. kube-apiserver's host has a way to the devices' LAN, as by a VPN: the
cases read by it what their pods have found; and the devices reach each other at the addresses that their Nodes name, which are those of their uplinks.

%d of %d cases pass.

| case | result |
| --- | --- |
`, kubernetes, strings.ReplaceAll(cases, "|", "\\|"), passed, len(all))
	for _, r := range all {
		text := r.State
		if why := reasons[r.Name]; r.State != "passed" && why != "" {
			text += ": " + why
		}
		fmt.Fprintf(out, "| %s | %s |\n", strings.ReplaceAll(r.Name, "|", "\\|"), text)
	}
	return nil
}
