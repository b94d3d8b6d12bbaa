package apps_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// The documentation's examples work as they are, and a person can follow their progress.
func TestExamples(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("first", "edge3")) // policies are served
	s.Kubectl("apply", "-n", ns, "-k", filepath.Join(s.Root, "manifests", "examples", "apps"))
	s.waitOn(ns, "dashboard", "edge1")
	s.waitOn(ns, "controller", "edge2")
	s.reporter(ns, "dashboard", "edge1")
	table := s.Kubectl("get", "edgeapps", "-n", ns)
	if !strings.Contains(table, "FAILOVERS") || !strings.Contains(table, "dashboard") {
		t.Errorf("kubectl shows\n%s", table)
	}
	var out, errs strings.Builder
	if _, err := s.Trial.Exec(t.Context(), "edge1", trial.Streams{Out: &out, Err: &errs}, nil, filepath.Join(s.Root, "bin", "edgecore"), "status"); err != nil {
		t.Fatal(err, errs.String())
	}
	status := out.String()
	if want := ns + "/dashboard: Running, belongs here, scheduled here"; !strings.Contains(status, want) {
		t.Errorf("edgecore status does not say %q:\n%s", want, status)
	}
	t.Log("\n"+table, "\n"+status)
}
