// Package docs_test runs the commands of the documents that need no device, and applies their
// objects and settings, with a real kube-apiserver.
package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/doccalls"
)

// reader is a person who follows the documents, at a cluster whose devices are Nodes alone.
type reader struct {
	t         *testing.T
	root, dir string // the repository; the working directory
	env       []string
	plane     *cluster.ControlPlane
	fixture   []*unstructured.Unstructured
}

// kubectl is kubectl with the plugin. `kubectl skerry status` ends with 1 where a device has a
// problem, and none of these has a link.
const kubectl = `#!/bin/sh
case "$1 $2" in
"skerry status") %[1]s "$@" || [ $? = 1 ] ;;
*) exec %[1]s "$@" ;;
esac
`

// placeholders of the documents, and what stands for them here.
func placeholders(dir string) *strings.Replacer {
	return strings.NewReplacer(
		"staticroute NAME", "staticroute office", "virtualip NAME", "virtualip 192.168.10.230.shop-17", "watch RESOURCE", "watch nodes", "/etc/kubernetes/pki", dir,
		"cloudcore install ", "cloudcore install --image example.com/cloudcore:v1 ", // this build is no release
		"deployment cloudcore; }", "deployment cloudcore; sleep 1.1; }", // kubectl refuses the next within a second
		"create namespace skerry-system", "create namespace skerry-system-again", // the fixture's is there
		"kubectl create -f skerry-identity.yaml", "kubectl replace -f skerry-identity.yaml",
	)
}

func newReader(t *testing.T) *reader {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Build(t.Context(), root, "cloudcore", "edgecore", "kubectl-skerry", "trial"); err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, root: root, dir: t.TempDir(), plane: cluster.Run(t)}
	bin := t.TempDir()
	r.check(os.WriteFile(filepath.Join(bin, "kubectl"), fmt.Appendf(nil, kubectl, "env TRIAL_EDGE=1 "+filepath.Join(root, "bin", "trial")+" kubectl"), 0o755))
	for _, p := range []string{"cloudcore", "edgecore"} {
		r.check(os.Symlink(filepath.Join(root, "bin", p), filepath.Join(bin, p)))
	}
	r.check(os.Symlink(filepath.Join(root, "manifests"), filepath.Join(r.dir, "manifests")))
	r.env = append(os.Environ(), "KUBECONFIG="+r.plane.Kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+r.dir)
	r.plane.Apply(t, "manifests/crds")
	r.plane.Apply(t, "manifests/cloudcore")
	raw, err := os.ReadFile("testdata/cluster.yaml")
	r.check(err)
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096); ; {
		o := new(unstructured.Unstructured)
		if err := d.Decode(o); err != nil {
			break
		}
		if len(o.Object) > 0 {
			r.fixture = append(r.fixture, o)
		}
	}
	r.mend()
	r.check(os.WriteFile(filepath.Join(r.dir, "more.yaml"), []byte("hub: {maxSessions: 20000}\n"), 0o600))
	_, err = r.shell(`kubectl patch clusterrolebinding skerry:edge-nodes --type merge -p '{"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:node:edge-17"}]}'`, "")
	r.check(err)
	for _, name := range []string{"edgecore_v1.4.0_linux_amd64", "edgecore_v1.4.0_linux_arm64", "edgecore_v1.4.1_linux_amd64"} {
		r.check(os.WriteFile(filepath.Join(r.dir, name), bytes.Repeat([]byte(name), 1000), 0o755))
	}
	return r
}

func (r *reader) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// mend makes the objects of the fixture again, which a block may have changed or deleted.
func (r *reader) mend() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 15*time.Second)
	defer cancel()
	r.check(poll.Until(ctx, time.Second, func(ctx context.Context) error { return manifest.Apply(ctx, r.plane.Admin(), r.fixture...) }))
}

// shell runs a script in the working directory.
func (r *reader) shell(script, input string) (out string, err error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	c.Dir, c.Env, c.Stdin, c.WaitDelay = r.dir, r.env, strings.NewReader(input), time.Second
	var errs bytes.Buffer
	c.Stderr = &errs
	raw, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, raw, errs.String())
	}
	return string(raw), err
}

// run runs a block's commands: one after the other where the block shows their output.
func (r *reader) run(b doccalls.Block) error {
	commands := b.Commands()
	var script []string
	for _, c := range commands {
		script = append(script, placeholders(r.dir).Replace(c.Line))
	}
	if !slices.ContainsFunc(commands, func(c doccalls.Command) bool { return c.Output != nil }) {
		_, err := r.shell(strings.Join(script, "\n"), "")
		return err
	}
	for i, c := range commands {
		out, err := r.shell(script[i], "")
		if err == nil {
			err = c.Differs(out)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Line, err)
		}
	}
	return nil
}

// bases are objects that the parts of the documents are put into.
var bases = map[string]string{
	"NodePool":      "{apiVersion: skerry.io/v1alpha1, kind: NodePool, metadata: {name: part}}",
	"NodeOperation": "{apiVersion: skerry.io/v1alpha1, kind: NodeOperation, metadata: {name: part}}",
	"Pod":           "{apiVersion: v1, kind: Pod, metadata: {name: part}, spec: {containers: [{name: a, image: a}]}}",
	"Service":       "{apiVersion: v1, kind: Service, metadata: {name: part}, spec: {ports: [{port: 80}]}}",
	"DaemonSet": "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: part}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, " +
		"spec: {containers: [{name: a, image: a}]}}}}",
	"Deployment": "{apiVersion: apps/v1, kind: Deployment, metadata: {name: part}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, " +
		"spec: {containers: [{name: cloudcore, image: a}]}}}}",
}

// merge puts a document's fields into a base; lists of objects with names by these.
func merge(into, from map[string]any) {
	for k, v := range from {
		if list, ok := v.([]any); ok {
			for _, old := range asList(into[k]) {
				for _, new := range list {
					o, n := asObject(old), asObject(new)
					if o["name"] != nil && o["name"] == n["name"] {
						for key := range o {
							if n[key] == nil {
								n[key] = o[key]
							}
						}
					}
				}
			}
		}
		a, nested := into[k].(map[string]any)
		if b, ok := v.(map[string]any); ok && nested {
			merge(a, b)
			continue
		}
		into[k] = v
	}
}

func asList(v any) []any            { l, _ := v.([]any); return l }
func asObject(v any) map[string]any { o, _ := v.(map[string]any); return o }

// apply applies the objects of a block, or gives its settings to the program that they are for.
func (r *reader) apply(b doccalls.Block) error {
	text := strings.Join(b.Lines, "\n")
	content := map[string]any{}
	if !strings.Contains(text, "\n---\n") {
		if err := yaml.UnmarshalStrict([]byte(text), &content); err != nil {
			return fmt.Errorf("reading the block: %w", err)
		}
	}
	if b.Part != "" {
		base, whole := map[string]any{}, content
		if bases[b.Part] == "" {
			return fmt.Errorf("no base for a %s", b.Part)
		}
		r.check(yaml.Unmarshal([]byte(bases[b.Part]), &base))
		if b.Part == "Deployment" { // of its pods
			whole = map[string]any{"spec": map[string]any{"template": map[string]any{"spec": content}}}
		}
		merge(base, whole)
		raw, err := yaml.Marshal(base)
		r.check(err)
		_, err = r.shell("kubectl create --dry-run=server --validate=strict -f -", string(raw))
		return err
	}
	switch program := settings(text, content); {
	case program != "":
		minimal, err := r.shell(program+" config minimal", "")
		r.check(err)
		whole := map[string]any{}
		r.check(yaml.Unmarshal([]byte(minimal), &whole))
		merge(whole, content)
		raw, err := yaml.Marshal(whole)
		r.check(err)
		_, err = r.shell(program+" config validate -", string(raw))
		return err
	case strings.HasPrefix(text, "apiVersion: "):
		_, err := r.shell("kubectl apply --server-side --force-conflicts --validate=strict -f -", text)
		return err
	}
	return errors.New("is it an object, a setting, or a part? Say so in a comment above: <!-- part of KIND -->")
}

// settings is the program whose settings a text is.
func settings(text string, content map[string]any) string {
	switch {
	case strings.HasPrefix(text, "# cloudcore.yaml\n"), content["kind"] == "CloudCore":
		return "cloudcore"
	case strings.HasPrefix(text, "# edgecore.yaml\n"), content["modules"] != nil:
		return "edgecore"
	}
	return ""
}

// TestOperate_15_CommandsOfTheCluster runs what the documents have for a cluster without devices.
func TestOperate_15_CommandsOfTheCluster(t *testing.T) {
	r := newReader(t)
	blocks, err := doccalls.Blocks(r.root)
	r.check(err)
	ran := map[string]int{}
	for _, b := range blocks {
		switch {
		case b.Reason != "":
		case b.Language == "yaml":
			ran["applied"]++
			if err := r.apply(b); err != nil {
				t.Errorf("%s: %v\n%s", b.Name(), err, strings.Join(b.Lines, "\n"))
			}
		case b.Shell() && !b.OnDevice():
			ran["run"]++
			if err := r.run(b); err != nil {
				t.Errorf("%s: %v", b.Name(), err)
			}
			if text := strings.Join(b.Lines, "\n"); strings.Contains(text, "delete") || strings.Contains(text, "replace") {
				r.mend()
			}
		}
	}
	if t.Log(ran); ran["run"] < 30 || ran["applied"] < 15 {
		t.Errorf("%v: are the blocks found?", ran)
	}
}

// A command that is not there any more, a flag that is wrong, a column that is called otherwise, a
// field that no type has, and a setting that no program has: each is found.
func TestOperate_15_MistakesAreFound(t *testing.T) {
	r := newReader(t)
	for name, b := range map[string]doccalls.Block{
		"command": {Lines: []string{"kubectl skerry statuses"}},
		"flag":    {Lines: []string{"cloudcore install --advertised cloud.example.com | kubectl apply -f -"}},
		"first":   {Lines: []string{"cloudcore checks", "kubectl get nodes"}},
		"column":  {Lines: []string{"$ kubectl get staticroutes", "NAME SUBNET VIA"}},
	} {
		if r.run(b) == nil {
			t.Errorf("%s: nobody noticed", name)
		}
	}
	for name, b := range map[string]doccalls.Block{
		"field":   {Language: "yaml", Lines: []string{"apiVersion: skerry.io/v1alpha1", "kind: StaticRoute", "metadata: {name: x}", "spec: {subnet: 172.20.0.0/16, via: 192.168.100.200}"}},
		"part":    {Language: "yaml", Part: "NodePool", Lines: []string{"spec: {net: shop}"}},
		"setting": {Language: "yaml", Lines: []string{"modules: {edgeHub: {keepAlives: 3s}}"}},
		"cloud":   {Language: "yaml", Lines: []string{"# cloudcore.yaml", "hub: {maxSession: 1}"}},
		"unknown": {Language: "yaml", Lines: []string{"a: b"}},
	} {
		if r.apply(b) == nil {
			t.Errorf("%s: nobody noticed", name)
		}
	}
}
