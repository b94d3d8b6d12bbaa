package install_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/install"
	"github.com/skerry-io/skerry/manifests"
)

// The output equals kustomize's for the same options, byte for byte but for empty lines: in a
// folded text (>-) kustomize doubles the line break before a line that is indented further. A user
// with an overlay of manifests/ gets the same objects.
func TestRenderAsKustomize(t *testing.T) {
	for bits := range 1 << 4 {
		o := install.Options{
			RightsOnly: bits&1 != 0, Usage: bits&2 != 0, Console: bits&4 != 0, Endpoint: bits&8 != 0,
			Advertise: []string{"cloud.example.com", "192.0.2.7"}, Image: "reg.example.com:5000/c:v1", Replicas: 1 + bits,
		}
		if o.RightsOnly && o.Endpoint {
			continue // refused
		}
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			got, err := install.Render(o)
			if err != nil {
				t.Fatal(err)
			}
			full := func(text string) string { return emptyLines.ReplaceAllString(text, "\n") }
			if diff := cmp.Diff(full(kustomized(t, o)), full(string(got))); diff != "" {
				t.Errorf("(-kustomize +ours)\n%s", diff)
			}
		})
	}
}

// The configuration that docs/maintenance.md has users write: fields of cloudcore.yaml, and a patch
// of the Deployment by kustomize.
func TestDocumentedConfiguration(t *testing.T) {
	const page = "maintenance.md"
	more := "relay: {leaseRenewal: 10s}" + unindented(documented(t, page, "\n```yaml\n# cloudcore.yaml\nrelay: {leaseRenewal: 10s}"), 2)
	patch := "#" + unindented(documented(t, page, "\n  ```yaml\n  # kustomization.yaml;"), 2)
	deployment := patched(t, more, patch)
	for _, part := range []string{"value: 5400MiB", "memory: 6000Mi", "secretName: cloudcore-logs", "mountPath: /etc/cloudcore-logs", "name: cloudcore-config-", "mountPath: /etc/skerry\n"} {
		if !strings.Contains(deployment, part) {
			t.Errorf("the Deployment has no %q:\n%s", part, deployment)
		}
	}
}

// The volume of artefacts in a cluster: docs/fleet.md has the lines that go into that patch.
func TestDocumentedVolumeOfArtefacts(t *testing.T) {
	const page = "fleet.md"
	more := "artefacts: " + documented(t, page, "\n```yaml\n# cloudcore.yaml\nartefacts: ")
	patch := "#" + unindented(documented(t, "maintenance.md", "\n  ```yaml\n  # kustomization.yaml;"), 2)
	head, _, ok := strings.Cut(patch, "          volumes:")
	if !ok {
		t.Fatalf("the patch has no volumes:\n%s", patch)
	}
	deployment := patched(t, more, head+"          volumes:"+documented(t, page, "\n```yaml\n          volumes:"))
	for _, part := range []string{"claimName: artefacts", "mountPath: /srv/artefacts", "mountPath: /etc/skerry\n"} {
		if !strings.Contains(deployment, part) {
			t.Errorf("the Deployment has no %q:\n%s", part, deployment)
		}
	}
}

// documented is the rest of a block of a page of docs.
func documented(t *testing.T, page, begin string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no block that begins with %q", page, begin)
	}
	body, _, _ := strings.Cut(rest, "```")
	return body
}

// unindented is a block of a list.
func unindented(block string, by int) string {
	return strings.ReplaceAll(block, "\n"+strings.Repeat(" ", by), "\n")
}

// patched is cloudcore's Deployment with further fields of cloudcore.yaml, after a kustomization.
func patched(t *testing.T, more, kustomization string) string {
	t.Helper()
	o := install.Options{Advertise: []string{"cloud.example.com"}, Image: "c:1", Replicas: 2, File: install.ConfigFile{Name: "more.yaml", Data: []byte(more)}}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	printed, err := install.Render(o)
	if err != nil {
		t.Fatal(err)
	}
	disk := filesys.MakeFsInMemory()
	if err := errors.Join(disk.WriteFile("/k/install.yaml", printed), disk.WriteFile("/k/kustomization.yaml", []byte(kustomization))); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, "/k")
	if err != nil {
		t.Fatalf("%v of\n%s", err, kustomization)
	}
	for _, r := range built.Resources() {
		if r.GetKind() == "Deployment" && r.GetName() == "cloudcore" {
			text, err := r.AsYAML()
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
	}
	t.Fatal("no Deployment came out")
	return ""
}

var emptyLines = regexp.MustCompile(`\n[ ]*(?:\n[ ]*)*\n`)

// kustomized is kustomize's output for the options.
func kustomized(t *testing.T, o install.Options) string {
	t.Helper()
	disk := filesys.MakeFsInMemory()
	write := func(name string, data []byte) {
		t.Helper()
		if err := disk.WriteFile(name, data); err != nil {
			t.Fatal(err)
		}
	}
	err := fs.WalkDir(manifests.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := manifests.FS.ReadFile(name)
		if err == nil {
			write(path.Join("/manifests", name), data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	k := types.Kustomization{
		TypeMeta:  types.TypeMeta{APIVersion: types.KustomizationVersion, Kind: types.KustomizationKind},
		Resources: []string{"../manifests/crds", "../manifests/cloudcore", "../manifests/autonomy"},
	}
	for _, part := range []struct {
		wanted bool
		folder string
	}{{o.Usage, "usage"}, {o.Console, "console"}, {o.Endpoint, "endpoint"}, {!o.RightsOnly, "subresources"}} {
		if part.wanted {
			k.Resources = append(k.Resources, "../manifests/"+part.folder)
		}
	}
	if !o.RightsOnly {
		raw, err := yaml.Marshal(o.Config())
		if err != nil {
			t.Fatal(err)
		}
		write("/install/cloudcore.yaml", raw)
		for _, name := range []string{"approver.yaml", "deployment.yaml", "service.yaml"} {
			k.Resources = append(k.Resources, "../manifests/deployment/"+name)
		}
		k.ConfigMapGenerator = []types.ConfigMapArgs{{GeneratorArgs: types.GeneratorArgs{
			Namespace: "skerry-system", Name: "cloudcore-config",
			KvPairSources: types.KvPairSources{FileSources: []string{"cloudcore.yaml"}},
		}}}
		k.Images = []types.Image{{Name: "cloudcore", NewName: "reg.example.com:5000/c", NewTag: "v1"}}
		k.Replicas = []types.Replica{{Name: "cloudcore", Count: int64(o.Replicas)}}
	}
	raw, err := yaml.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	write("/install/kustomization.yaml", raw)
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone // the parts are next to /install, not below it
	built, err := krusty.MakeKustomizer(options).Run(disk, "/install")
	if err != nil {
		t.Fatal(err)
	}
	out, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
