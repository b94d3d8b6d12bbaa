package metrics_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func metricName() *regexp.Regexp { return regexp.MustCompile(`\bskerry_[a-z_0-9]+`) }

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
					Alert, Record, Expr string
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
	metric := metricName()
	pages := map[string]bool{}
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			names := metric.FindAllString(r.Expr, -1)
			if len(names) == 0 && r.Record == "" && !strings.Contains(r.Expr, "skerry:") || strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") || r.Labels["severity"] == "" && r.Record == "" {
				t.Errorf("%s: %s", r.Alert, r.Expr)
			}
			for _, name := range names {
				if !strings.Contains(metrics, "| `"+name+"` |") {
					t.Errorf("%s: there is no metric %s", r.Alert, name)
				}
			}
			if r.Record != "" {
				continue
			}
			pages[r.Alert+".md"] = true
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/runbooks/"+r.Alert+".md") {
				t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
			}
			if page := read("docs", "runbooks", r.Alert+".md"); !strings.HasPrefix(page, "# "+r.Alert+"\n") || !strings.Contains(page, "**Remedy.**") {
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

// Each alert fires for its cause, and is silent before and after: the cases of
// testdata/rules_test.yaml.
func TestOperate_06_EachAlertFiresAndClears(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "manifests", "monitoring", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct {
			Groups []map[string]any `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile(filepath.Join("testdata", "rules_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range object.Spec.Groups {
		for _, r := range g["rules"].([]any) {
			rule := r.(map[string]any)
			delete(rule, "annotations") // those of a case would be compared, word by word
			alert, _ := rule["alert"].(string)
			if of := regexp.MustCompile("alertname: " + alert + `\b`); alert != "" && len(of.FindAllIndex(cases, -1)) < 2 {
				t.Errorf("no case of %s", alert)
			}
		}
	}
	plain, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"rules.yaml": plain, "rules_test.yaml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, dir, "check", "rules", "--lint=all", "rules.yaml")
	promtool(t, dir, "test", "rules", "rules_test.yaml")
}

func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "promtool", args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v (make deps installs it)\n%s", strings.Join(args, " "), err, out)
	}
}
