package arch_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// supportBundle is the part of manifests/support/cloud.yaml that names Deployments.
type supportBundle struct {
	Spec struct {
		Collectors []struct{ Logs *logsCollector }
		Analyzers  []struct {
			DeploymentStatus *struct{ Name, Namespace string }
		}
	}
}

type logsCollector struct {
	Namespace string
	Selector  []string
}

type deployment struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Template struct {
			Metadata struct{ Labels map[string]string }
		}
	}
}

// TestSupportBundleHasEachDeployment: the cloud's support bundle has the logs and the status of
// each Deployment of manifests/deployment.
func TestSupportBundleHasEachDeployment(t *testing.T) {
	root := source(t).root
	raw, err := os.ReadFile(filepath.Join(root, "manifests/support/cloud.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var bundle supportBundle
	if err := yaml.Unmarshal(raw, &bundle); err != nil {
		t.Fatal(err)
	}
	var analyzed, collected, deployed []string
	for _, a := range bundle.Spec.Analyzers {
		if a.DeploymentStatus != nil {
			analyzed = append(analyzed, a.DeploymentStatus.Namespace+"/"+a.DeploymentStatus.Name)
		}
	}
	for _, d := range deployments(t, filepath.Join(root, "manifests/deployment/*.yaml")) {
		name := d.Metadata.Namespace + "/" + d.Metadata.Name
		deployed = append(deployed, name)
		for _, c := range bundle.Spec.Collectors {
			if c.Logs != nil && c.Logs.Namespace == d.Metadata.Namespace && selects(c.Logs.Selector, d.Spec.Template.Metadata.Labels) {
				collected = append(collected, name)
			}
		}
	}
	slices.Sort(analyzed)
	if len(deployed) < 2 {
		t.Errorf("Deployments: %q; are they found?", deployed)
	}
	if diff := cmp.Diff(deployed, analyzed); diff != "" {
		t.Errorf("Deployments (-) and those whose status the bundle has (+):\n%s", diff)
	}
	if diff := cmp.Diff(deployed, collected); diff != "" {
		t.Errorf("Deployments (-) and those whose logs the bundle has (+):\n%s", diff)
	}
}

// deployments are those of some files, sorted by name.
func deployments(t *testing.T, pattern string) (found []deployment) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for document := range bytes.SplitSeq(raw, []byte("\n---\n")) {
			var d deployment
			if err := yaml.Unmarshal(document, &d); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if d.Kind == "Deployment" {
				found = append(found, d)
			}
		}
	}
	slices.SortFunc(found, func(a, b deployment) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return found
}

// selects reports whether labels have all of a selector's pairs.
func selects(selector []string, labels map[string]string) bool {
	return !slices.ContainsFunc(selector, func(pair string) bool {
		key, value, _ := strings.Cut(pair, "=")
		return labels[key] != value
	})
}
