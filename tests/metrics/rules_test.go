package metrics_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Each alert uses documented metrics and has a runbook.
func TestAlerts(t *testing.T) {
	root := filepath.Join("..", "..")
	read := func(path ...string) string {
		raw, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
		if err != nil {
			t.Error(err)
		}
		return string(raw)
	}
	metrics, monitoring := read("docs", "metrics.md"), read("docs", "monitoring.md")
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr         string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read("manifests", "monitoring", "rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	if len(rules.Spec.Groups) == 0 || len(rules.Spec.Groups[0].Rules) < 8 {
		t.Fatalf("rules %+v", rules)
	}
	metric := regexp.MustCompile(`skerry_[a-z_]+`)
	pages := map[string]bool{}
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			pages[r.Alert+".md"] = true
			names := metric.FindAllString(r.Expr, -1)
			if len(names) == 0 || strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") || r.Labels["severity"] == "" {
				t.Errorf("%s: %s", r.Alert, r.Expr)
			}
			for _, name := range names {
				if !strings.Contains(metrics, "| `"+name+"` |") {
					t.Errorf("%s: there is no metric %s", r.Alert, name)
				}
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/runbooks/"+r.Alert+".md") {
				t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
			}
			if page := read("docs", "runbooks", r.Alert+".md"); !strings.HasPrefix(page, "# "+r.Alert+"\n") || !strings.Contains(page, "**Do.**") {
				t.Errorf("%s: its page is %q", r.Alert, page)
			}
			if !strings.Contains(monitoring, "(runbooks/"+r.Alert+".md)") {
				t.Errorf("docs/monitoring.md does not name %s", r.Alert)
			}
		}
	}
	files, err := os.ReadDir(filepath.Join(root, "docs", "runbooks"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[f.Name()] {
			t.Errorf("docs/runbooks/%s is of no alert", f.Name())
		}
	}
	if !slices.Contains(metric.FindAllString(monitoring, -1), "skerry_node_backlog_writes") {
		t.Error("docs/monitoring.md names no metric by node")
	}
}
