package chart_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/build/release/chart"
	"github.com/skerry-io/skerry/cloud/install"
)

// render fills the templates in as Helm does, with those of its functions that the chart uses.
// TestShip_04 asks Helm.
func render(t *testing.T, files map[string][]byte, set map[string]any) (string, error) {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal(files["values.yaml"], &values); err != nil {
		t.Fatal(err)
	}
	maps.Copy(values, set)
	all := template.New("")
	all.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := all.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"dict": func(pairs ...any) map[string]any {
			d := map[string]any{}
			for i := 0; i < len(pairs); i += 2 {
				d[pairs[i].(string)] = pairs[i+1]
			}
			return d
		},
		"set": func(d map[string]any, key string, v any) map[string]any { d[key] = v; return d },
		"toYaml": func(v any) (string, error) {
			raw, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(raw), "\n"), err
		},
		"toJson": func(v any) (string, error) {
			raw, err := json.Marshal(v)
			return string(raw), err
		},
		"sha256sum": func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) },
		"trunc":     func(n int, s string) string { return s[:n] },
		"replace":   func(old, with, s string) string { return strings.ReplaceAll(s, old, with) },
		"quote":     func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"int":       func(v any) (int, error) { var n int; _, err := fmt.Sscan(fmt.Sprint(v), &n); return n, err },
		"fail":      func(s string) (string, error) { return "", errors.New(s) },
	})
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if strings.HasPrefix(name, "templates/") {
			if _, err := all.New(name).Parse(string(files[name])); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out bytes.Buffer
	for _, name := range names {
		if strings.HasPrefix(name, "templates/") && filepath.Ext(name) == ".yaml" {
			out.WriteString("\n---\n")
			if err := all.ExecuteTemplate(&out, name, map[string]any{"Values": values}); err != nil {
				return "", err
			}
		}
	}
	return out.String(), nil
}

// objects are the objects of YAML documents by kind and name; that a CRD is kept is the
// chart's alone.
func objects(t *testing.T, docs string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, d := range strings.Split("\n"+docs, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		var whole map[string]any
		if err := errors.Join(yaml.Unmarshal([]byte(d), &o), yaml.Unmarshal([]byte(d), &whole)); err != nil {
			t.Fatalf("%v in:\n%s", err, d)
		}
		if o.Kind == "CustomResourceDefinition" {
			annotations := whole["metadata"].(map[string]any)["annotations"].(map[string]any)
			delete(annotations, "helm.sh/resource-policy")
		}
		if whole != nil {
			all[o.Kind+" "+o.Metadata.Name] = whole
		}
	}
	return all
}

// What the chart makes is what `cloudcore install` prints, for each flag.
func TestChartIsInstall(t *testing.T) {
	const image = "reg.example.com:5000/cloudcore:v1.2.3@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	files, err := chart.Files(chart.Chart{Version: "1.2.3", Image: image})
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"cloud.example.com", "2001:db8::1"}
	for name, test := range map[string]struct {
		options install.Options
		values  map[string]any
	}{
		"plain":       {install.Options{}, map[string]any{}},
		"rights only": {install.Options{RightsOnly: true}, map[string]any{"rightsOnly": true}},
		"usage":       {install.Options{Usage: true}, map[string]any{"usage": true}},
		"rights only, with usage": {
			install.Options{RightsOnly: true, Usage: true}, map[string]any{"rightsOnly": true, "usage": true},
		},
		"console":  {install.Options{Console: true}, map[string]any{"console": true}},
		"endpoint": {install.Options{Endpoint: true}, map[string]any{"kubeletEndpoint": true}},
		"all":      {install.Options{Usage: true, Console: true, Endpoint: true, Replicas: 5}, map[string]any{"usage": true, "console": true, "kubeletEndpoint": true, "replicas": 5}},
		"an image": {install.Options{Image: "c:2"}, map[string]any{"image": "c:2"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := test.options
			o.Advertise, test.values["advertise"] = hosts, hosts
			o.Replicas = max(o.Replicas, 2)
			if o.Image == "" {
				o.Image = image
			}
			want, err := install.Render(o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := render(t, files, test.values)
			if err != nil {
				t.Fatal(err)
			}
			printed, made := objects(t, string(want)), objects(t, got)
			if diff := cmp.Diff(slices.Sorted(maps.Keys(printed)), slices.Sorted(maps.Keys(made))); diff != "" {
				t.Fatalf("(-install +chart)\n%s", diff)
			}
			for name, o := range printed {
				if diff := cmp.Diff(o, made[name]); diff != "" {
					t.Errorf("%s (-install +chart)\n%s", name, diff)
				}
			}
		})
	}
	for name, values := range map[string]map[string]any{
		"no client can reach it": {},
		"of no use":              {"rightsOnly": true, "kubeletEndpoint": true},
	} {
		if _, err := render(t, files, values); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
