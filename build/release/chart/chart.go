// Package chart makes the Helm chart of cloudcore from the output of `cloudcore install`.
//
// It owns how an option becomes a value, and no manifest: each template is the text of
// install.Render, within the condition under which it renders it. It refuses to make a chart where
// an option changes an object in an unknown way, so that the chart and the command can't drift
// apart unseen. Functions are stateless.
package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/install"
)

// Placeholders in the rendered manifests where a value belongs.
const (
	imageMark    = "image.invalid/cloudcore:mark"
	replicasMark = 7654321
	hostMark     = "advertise.invalid"
)

// keep makes Helm leave an object where it is when the release goes.
const keep = "    helm.sh/resource-policy: keep\n"

// kept are the objects that stay, in addition to the CRDs, each of which would take all objects of
// its kind with it. They hold data that no manifest can bring back: the namespace the CA that every
// device trusts and the records of tokens, the ConfigMap which certificates are revoked, the others
// which nodes are devices. Without the CA or its place among these a device has to join again, on
// site.
func kept() []string {
	return []string{"Namespace skerry-system", "ConfigMap skerry-revoked", "ClusterRole skerry:cloudcore-edges", "ClusterRoleBinding skerry:edge-nodes"}
}

// Chart identifies the chart.
type Chart struct {
	Version string // semantic, without "v"
	Image   string // the default of the value image
}

// Files are the chart's files by their path in it ("Chart.yaml").
func Files(c Chart) (map[string][]byte, error) {
	parts, err := split()
	if err != nil {
		return nil, err
	}
	fields, err := json.Marshal(install.Schema())
	if err != nil {
		return nil, fmt.Errorf("writing the schema of cloudcore.yaml: %w", err)
	}
	files := map[string][]byte{
		"Chart.yaml": fmt.Appendf(nil, `apiVersion: v2
name: skerry
description: cloudcore, the cloud's end of Skerry (Kubernetes for devices behind thin, unreliable links)
type: application
version: %s
appVersion: %q
kubeVersion: ">=1.36.0-0"
home: https://github.com/skerry-io/skerry
`, c.Version, "v"+c.Version),
		"values.yaml": fmt.Appendf(nil, `# Names and addresses under which edges reach cloudcore. Required.
advertise: []
# The container image of cloudcore.
image: %q
# How many replicas of cloudcore.
replicas: 2
# Only the kinds of skerry.io, the namespace, the account, its rights and the policies.
rightsOnly: false
# Serve metrics.k8s.io too: kubectl top and autoscalers.
usage: false
# Let devices open consoles of KubeVirt virtual machines that run on them.
console: false
# Serve the kubelets by the names of their nodes, for a kube-apiserver without an egress.
kubeletEndpoint: false
# Fields of cloudcore.yaml in addition to those that the values above set, such as {hub: {maxSessions: 20000}}.
config: {}
`, c.Image),
		"values.schema.json":         fmt.Appendf(nil, schema, fields),
		"templates/NOTES.txt":        []byte(notes),
		"templates/_cloudcore.tpl":   []byte(helpers()),
		"templates/crds.yaml":        documents(parts.kinds),
		"templates/rights.yaml":      documents(parts.rights),
		"templates/usage.yaml":       when(".Values.usage", documents(parts.usage)),
		"templates/console.yaml":     when(".Values.console", documents(parts.console)),
		"templates/deployment.yaml":  when("not .Values.rightsOnly", documents(append(parts.deployment, configMap))),
		"templates/endpoint.yaml":    when(".Values.kubeletEndpoint", documents(parts.endpoint)),
		"templates/zz-validate.yaml": []byte(validate),
	}
	return files, nil
}

// notes are what helm prints after an installation: the next commands.
const notes = `kubectl -n skerry-system get pods                           # until cloudcore is ready
kubectl -n skerry-system get service cloudcore              # devices have to reach its EXTERNAL-IP under a name of advertise
cloudcore token create --node NAME > NAME.token             # for each device
edgecore join --token-file NAME.token HOST                  # on the device
kubectl skerry status
`

const schema = `{
  "$schema": "http://json-schema.org/draft-07/schema#",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "advertise": {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9.:-]+$"}},
    "image": {"type": "string", "minLength": 1},
    "replicas": {"type": "integer", "minimum": 1},
    "rightsOnly": {"type": "boolean"},
    "usage": {"type": "boolean"},
    "console": {"type": "boolean"},
    "kubeletEndpoint": {"type": "boolean"},
    "config": %s,
    "global": {"type": "object"}
  }
}
`

const validate = `{{- if not .Values.rightsOnly }}
{{- if not .Values.advertise }}
{{- fail "advertise is missing: name the hosts under which edges reach cloudcore" }}
{{- end }}
{{- else if .Values.kubeletEndpoint }}
{{- fail "kubeletEndpoint is of no use with rightsOnly: it is a field of cloudcore.yaml and a Service" }}
{{- else if .Values.config }}
{{- fail "config is of no use with rightsOnly: cloudcore.yaml is on the machine that cloudcore runs on" }}
{{- end }}
`

// configMap has the name that kustomize gives it: a hash of its content, in digits and letters that
// spell no words (kustomize api/hasher; the name that it hashes is always ""). A Deployment whose
// configuration changes is rolled out by that.
const configMap = `apiVersion: v1
data:
  cloudcore.yaml: {{ include "skerry.config" . | toJson }}
kind: ConfigMap
metadata:
  name: {{ include "skerry.configName" . }}
  namespace: skerry-system
`

// helpers are the templates of cloudcore.yaml, of its ConfigMap's name, and of the check that
// refuses a field of the value config that the chart sets otherwise: config.Merge does the same for
// the command. That value may be missing: `helm upgrade --reuse-values` has the values of the
// release before.
func helpers() string {
	full := install.Options{Usage: true, Endpoint: true, Advertise: []string{hostMark}}.Config()
	least := install.Options{Advertise: []string{hostMark}}.Config()
	var b strings.Builder
	b.WriteString("{{- define \"skerry.config\" -}}\n")
	fmt.Fprintf(&b, "{{- $c := %s -}}\n", expression(least))
	for _, optional := range []struct{ field, value string }{{"usage", ".Values.usage"}, {"tunnel", ".Values.kubeletEndpoint"}} {
		fmt.Fprintf(&b, "{{- if %s }}{{ $_ := set $c %q %s }}{{ end -}}\n", optional.value, optional.field, expression(full[optional.field]))
	}
	b.WriteString(`{{- $own := deepCopy (.Values.config | default dict) -}}
{{- include "skerry.differs" (dict "at" "config" "own" $own "set" $c) -}}
{{- printf "%s\n" (toYaml (mergeOverwrite $own $c)) -}}
{{- end -}}
{{- define "skerry.differs" -}}
{{- range $name, $set := .set -}}
{{- if hasKey $.own $name -}}
{{- $own := index $.own $name -}}
{{- $at := printf "%s.%s" $.at $name -}}
{{- if and (kindIs "map" $set) (kindIs "map" $own) -}}
{{- include "skerry.differs" (dict "at" $at "own" $own "set" $set) -}}
{{- else if ne (toJson $own) (toJson $set) -}}
{{- fail (printf "%s is %s: the chart sets it to %s" $at (toJson $own) (toJson $set)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- define "skerry.configName" -}}
{{- $m := dict "kind" "ConfigMap" "name" "" "data" (dict "cloudcore.yaml" (include "skerry.config" .)) -}}
cloudcore-config-{{ $m | toJson | sha256sum | trunc 10 | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" }}
{{- end -}}
`)
	return b.String()
}

// expression is a value as an expression of Go's templates, in Helm's functions.
func expression(v any) string {
	switch v := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		out := "(dict"
		for _, k := range keys {
			out += fmt.Sprintf(" %q %s", k, expression(v[k]))
		}
		return out + ")"
	case []string:
		if len(v) == 1 && v[0] == hostMark {
			return ".Values.advertise"
		}
	}
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // a constant of install.Config
	}
	return string(raw)
}

// parts are the documents of the chart's templates.
type parts struct{ kinds, rights, usage, console, deployment, endpoint []string }

// split renders the manifests with and without each option, and sorts their documents by the option
// that brings them.
func split() (parts, error) {
	var failed error
	render := func(o install.Options) []string {
		o.Advertise, o.Image, o.Replicas = []string{hostMark}, imageMark, replicasMark
		raw, err := install.Render(o)
		if err != nil && failed == nil {
			failed = err
		}
		return strings.Split(string(raw), "\n---\n")
	}
	rights := render(install.Options{RightsOnly: true})
	plain := templated(render(install.Options{}))
	usage := without(render(install.Options{RightsOnly: true, Usage: true}), rights)
	console := without(render(install.Options{RightsOnly: true, Console: true}), rights)
	endpoint := without(templated(render(install.Options{Endpoint: true})), plain)
	all := templated(render(install.Options{Usage: true, Console: true, Endpoint: true}))
	if failed != nil {
		return parts{}, failed
	}
	deployment := without(plain, escaped(rights))
	p := parts{deployment: deployment, usage: escaped(usage), console: escaped(console), endpoint: endpoint}
	missing := kept()
	for i, d := range escaped(rights) {
		name, err := nameOf(rights[i])
		if err != nil {
			return parts{}, err
		}
		crd := strings.HasPrefix(name, "CustomResourceDefinition ")
		if crd || slices.Contains(missing, name) {
			missing = slices.DeleteFunc(missing, func(s string) bool { return s == name })
			if d, err = annotated(d); err != nil {
				return parts{}, fmt.Errorf("%s: %w", name, err)
			}
		}
		if crd {
			p.kinds = append(p.kinds, d)
		} else {
			p.rights = append(p.rights, d)
		}
	}
	if len(missing) > 0 {
		return parts{}, fmt.Errorf("the manifests lack %s, which is to be kept", missing[0])
	}
	sum := slices.Concat(escaped(rights), p.usage, p.console, p.deployment, p.endpoint)
	if rest := append(without(all, sum), without(sum, all)...); len(rest) > 0 {
		return parts{}, fmt.Errorf("an option changes an object of another option, which the chart can't express:\n%s", rest[0])
	}
	return p, nil
}

// nameOf is the kind and the name of a document's object.
func nameOf(doc string) (string, error) {
	var o metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		return "", fmt.Errorf("reading the manifests: %w", err)
	}
	return o.Kind + " " + o.Name, nil
}

// annotated is a document with the annotation that keeps its object.
func annotated(doc string) (string, error) {
	const metadata, annotations = "\nmetadata:\n", "  annotations:\n"
	before, rest, ok := strings.Cut(doc, metadata)
	if !ok {
		return "", errors.New("no metadata, where the annotation that keeps it would stand")
	}
	return before + metadata + annotations + keep + strings.TrimPrefix(rest, annotations), nil
}

// templated escapes the documents, puts the values where the marks are, and leaves the ConfigMap
// out, whose template is written by hand.
func templated(docs []string) []string {
	var out []string
	name := ""
	for _, d := range docs {
		if strings.Contains(d, "\nkind: ConfigMap\n") && strings.Contains(d, "\n  cloudcore.yaml:") {
			_, name, _ = strings.Cut(d, "\n  name: ")
			name, _, _ = strings.Cut(name, "\n")
		}
	}
	for _, d := range escaped(docs) {
		if strings.Contains(d, "\nkind: ConfigMap\n") && strings.Contains(d, "  name: "+name+"\n") {
			continue
		}
		d = strings.ReplaceAll(d, "image: "+imageMark, "image: {{ .Values.image | quote }}")
		d = strings.ReplaceAll(d, fmt.Sprintf("replicas: %d", replicasMark), "replicas: {{ int .Values.replicas }}")
		d = strings.ReplaceAll(d, "name: "+name+"\n", "name: {{ include \"skerry.configName\" . }}\n")
		out = append(out, d)
	}
	return out
}

// escaped are the documents with braces that Go's templates leave alone.
func escaped(docs []string) []string {
	var out []string
	for _, d := range docs {
		out = append(out, strings.TrimRight(strings.ReplaceAll(d, "{{", `{{ "{{" }}`), "\n")+"\n")
	}
	return out
}

func without(docs, others []string) []string {
	return slices.DeleteFunc(slices.Clone(docs), func(d string) bool { return slices.Contains(others, d) })
}

func documents(docs []string) []byte { return []byte(strings.Join(docs, "---\n")) }

func when(condition string, content []byte) []byte {
	return fmt.Appendf(nil, "{{- if %s }}\n%s\n{{- end }}\n", condition, bytes.TrimRight(content, "\n"))
}
