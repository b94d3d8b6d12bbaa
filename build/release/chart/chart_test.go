package chart_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
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
		"set":    func(d map[string]any, key string, v any) map[string]any { d[key] = v; return d },
		"hasKey": func(d map[string]any, key string) bool { _, ok := d[key]; return ok },
		"kindIs": func(kind string, v any) bool { return reflect.ValueOf(v).Kind().String() == kind },
		"default": func(d, v any) any {
			if v == nil {
				return d
			}
			return v
		},
		"deepCopy": func(v any) (out any, err error) {
			raw, err := json.Marshal(v)
			return out, errors.Join(err, json.Unmarshal(raw, &out))
		},
		"mergeOverwrite": overwrite,
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

// overwrite puts the fields of src into dst.
func overwrite(dst, src map[string]any) map[string]any {
	for name, v := range src {
		inner, ok := v.(map[string]any)
		if have, both := dst[name].(map[string]any); ok && both {
			overwrite(have, inner)
		} else {
			dst[name] = v
		}
	}
	return dst
}

// objects are the objects of YAML documents by kind and name. That some are kept is the chart's
// alone: it is left out.
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
		if whole != nil {
			metadata := whole["metadata"].(map[string]any)
			if annotations, ok := metadata["annotations"].(map[string]any); ok {
				delete(annotations, "helm.sh/resource-policy")
				if len(annotations) == 0 {
					delete(metadata, "annotations")
				}
			}
			all[o.Kind+" "+o.Metadata.Name] = whole
		}
	}
	return all
}

// The chart's output equals that of `cloudcore install`, for each flag.
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
		"configuration": {
			install.Options{Endpoint: true, File: install.ConfigFile{Data: []byte("hub: {maxSessions: 20000}\ntunnel: {clients: [a], endpoint: {listen: \":10251\"}}\n")}},
			map[string]any{"kubeletEndpoint": true, "config": map[string]any{
				"hub": map[string]any{"maxSessions": 20000}, "tunnel": map[string]any{"clients": []any{"a"}, "endpoint": map[string]any{"listen": ":10251"}},
			}},
		},
		"values of a release before": {install.Options{}, map[string]any{"config": nil}},
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
		"configuration of no use": {
			"rightsOnly": true, "config": map[string]any{"hub": map[string]any{"maxSessions": 1}},
		},
	} {
		if _, err := render(t, files, values); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A field that the chart sets can't be another by the value config, and the error names it.
func TestChartRefusesWhatItSets(t *testing.T) {
	files, err := chart.Files(chart.Chart{Version: "1.2.3", Image: "c:1"})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{"advertise": []any{"a"}, "config": map[string]any{"devices": map[string]any{"listen": ":10443", "port": 8443}}}
	const want = "config.devices.port is 8443: the chart sets it to 443"
	if _, err := render(t, files, values); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal(files["values.schema.json"], &schema); err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := yaml.Unmarshal(files["values.yaml"], &all); err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if schema.Properties[name] == nil {
			t.Errorf("the schema refuses the value %s", name)
		}
	}
}

// An uninstall leaves exactly the objects without which devices would have to join again.
func TestChartKeeps(t *testing.T) {
	files, err := chart.Files(chart.Chart{Version: "1.2.3", Image: "c:1"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := render(t, files, map[string]any{"advertise": []any{"a"}, "usage": true, "console": true, "kubeletEndpoint": true})
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, d := range strings.Split(out, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct {
				Name        string
				Annotations map[string]string
			}
		}
		if err := yaml.Unmarshal([]byte(d), &o); err != nil {
			t.Fatal(err)
		}
		policy := o.Metadata.Annotations["helm.sh/resource-policy"]
		if o.Kind == "CustomResourceDefinition" {
			if policy != "keep" {
				t.Errorf("the CRD %s goes, and all objects of its kind with it", o.Metadata.Name)
			}
		} else if policy == "keep" {
			kept = append(kept, o.Kind+" "+o.Metadata.Name)
		}
	}
	slices.Sort(kept)
	if diff := cmp.Diff([]string{"ClusterRole skerry:cloudcore-edges", "ClusterRoleBinding skerry:edge-nodes", "ConfigMap skerry-revoked", "Namespace skerry-system"}, kept); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
