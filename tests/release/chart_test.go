package release_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/install"
	"github.com/skerry-io/skerry/tests/cluster"
)

// TestShip_04_ChartEqualsInstall: Helm's output for the chart equals that of `cloudcore install`,
// object by object, for each flag; and at a real kube-apiserver an upgrade changes a CRD, and an
// uninstall leaves the CRDs and their objects, and the objects without which devices would have to
// join again.
func TestShip_04_ChartEqualsInstall(t *testing.T) {
	dir := shared(t)
	archive := one(t, dir, "skerry-*.tgz")
	t.Run("is install", func(t *testing.T) { chartIsInstall(t, dir, archive) })
	t.Run("upgrade", func(t *testing.T) { chartUpgrades(t, archive) })
}

func chartIsInstall(t *testing.T, dir, archive string) {
	raw, err := os.ReadFile(filepath.Join(dir, "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := strings.Cut(string(raw), "image: "+registry+"/")
	image, _, _ = strings.Cut(image, "\n")
	image = registry + "/" + image
	if !strings.Contains(image, ":"+version+"@sha256:") {
		t.Fatalf("install.yaml has the image %q", image)
	}
	for flags, o := range map[string]install.Options{
		"":                                    {},
		"rightsOnly=true":                     {RightsOnly: true},
		"usage=true":                          {Usage: true},
		"rightsOnly=true,usage=true":          {RightsOnly: true, Usage: true},
		"kubeletEndpoint=true":                {Endpoint: true},
		"console=true":                        {Console: true},
		"replicas=1":                          {Replicas: 1},
		"image=c:2":                           {Image: "c:2"},
		"usage=true,kubeletEndpoint=true":     {Usage: true, Endpoint: true},
		"advertise={192.0.2.7,b.example.com}": {Advertise: []string{"192.0.2.7", "b.example.com"}},
		"config.hub.maxSessions=20000,config.devices.port=443,config.tunnel.clients={a,b}": {
			File: install.ConfigFile{Data: []byte("hub: {maxSessions: 20000}\ntunnel: {clients: [a, b]}\n")},
		},
	} {
		t.Run(flags, func(t *testing.T) {
			args := []string{"helm", "template", "skerry", archive, "--kube-version", "v1.37.1"}
			if o.Advertise == nil {
				o.Advertise = []string{"cloud.example.com"}
				args = append(args, "--set", "advertise={cloud.example.com}")
			}
			if flags != "" {
				args = append(args, "--set", flags)
			}
			if o.Replicas == 0 {
				o.Replicas = 2
			}
			if o.Image == "" {
				o.Image = image
			}
			want, err := install.Render(o)
			if err != nil {
				t.Fatal(err)
			}
			same(t, objects(t, string(want)), objects(t, tool(t, args...)))
			if flags == "" {
				same(t, objects(t, string(want)), objects(t, string(raw)))
			}
		})
	}
	for _, bad := range []string{
		"nonsense=1", "replicas=0", "rightsOnly=true,kubeletEndpoint=true", "advertise={a b}",
		"advertise={a},config.hub.maxSession=1", "advertise={a},config.relay.leaseRenewal=10", "advertise={a},config.devices.port=8443",
	} {
		if out, err := try(t.Context(), dir, nil, helm(t), "template", "skerry", archive, "--set", bad); err == nil {
			t.Errorf("%s: helm made %d bytes of it", bad, len(out))
		}
	}
}

// helm is the path of the pinned helm.
func helm(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(tool(t, "-n", "helm"))
}

func same(t *testing.T, want, got map[string]any) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("(-install +other)\n%s", diff)
	}
	for name, o := range want {
		if diff := cmp.Diff(o, got[name]); diff != "" {
			t.Errorf("%s (-install +other)\n%s", name, diff)
		}
	}
}

// objects are the objects of YAML documents by kind and name. That some are kept is the chart's
// alone: it is left out.
func objects(t *testing.T, docs string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, d := range strings.Split("\n"+docs, "\n---\n") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(d), &o); err != nil {
			t.Fatalf("%v in:\n%s", err, d)
		}
		if o == nil {
			continue
		}
		u := unstructured.Unstructured{Object: o}
		annotations := u.GetAnnotations()
		delete(annotations, "helm.sh/resource-policy")
		if len(annotations) == 0 {
			annotations = nil // an empty map would stay
		}
		u.SetAnnotations(annotations)
		all[u.GetKind()+" "+u.GetName()] = o
	}
	return all
}

func chartUpgrades(t *testing.T, archive string) {
	plane := cluster.Run(t)
	client, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	state := t.TempDir()
	env := []string{"HELM_CACHE_HOME=" + state, "HELM_CONFIG_HOME=" + state, "HELM_DATA_HOME=" + state}
	run := func(args ...string) {
		t.Helper()
		command(t, state, env, helm(t), append(args, "--kubeconfig", plane.Kubeconfig, "--namespace", "default")...)
	}
	run("install", "skerry", archive, "--set", "advertise={cloud.example.com}")

	// The next release has one more column.
	command(t, state, nil, "tar", "-xzf", archive)
	file := filepath.Join(state, "skerry/templates/crds.yaml")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const before, column = "  - additionalPrinterColumns:\n", "    - jsonPath: .metadata.uid\n      name: Added\n      type: string\n"
	changed := strings.Replace(string(raw), before, before+column, 1)
	if changed == string(raw) {
		t.Fatal("no CRD has columns")
	}
	write(t, file, changed)
	run("upgrade", "skerry", filepath.Join(state, "skerry"), "--set", "advertise={cloud.example.com}")
	list, err := crds.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	added := 0
	for _, crd := range list.Items {
		text, err := yaml.Marshal(crd.Object)
		if err != nil {
			t.Fatal(err)
		}
		added += strings.Count(string(text), "name: Added\n")
	}
	if added != 1 {
		t.Errorf("%d CRDs have the new column, want 1", added)
	}

	routes := client.Resource(schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "staticroutes"})
	route := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "StaticRoute", "metadata": map[string]any{"name": "kept"},
		"spec": map[string]any{"subnet": "198.51.100.0/24", "gateway": "192.0.2.1"},
	}}
	cluster.Eventually(t, "a route", func(ctx context.Context) error {
		_, err := routes.Create(ctx, route, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	// The records of cloudcore and the approver are there after an uninstall, and after the next
	// installation too.
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	roles, bindings := client.Resource(rbac.WithResource("clusterroles")), client.Resource(rbac.WithResource("clusterrolebindings"))
	core := schema.GroupVersion{Version: "v1"}
	secrets, namespaces := client.Resource(core.WithResource("secrets")).Namespace("skerry-system"), client.Resource(core.WithResource("namespaces"))
	const rules = `{"rules":[{"apiGroups":["authentication.k8s.io"],"resources":["nodes"],"resourceNames":["edge-1"],"verbs":["impersonate:arbitrary-node"]}]}`
	const subjects = `{"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:node:edge-1"}]}`
	_, errRoles := roles.Patch(t.Context(), "skerry:cloudcore-edges", types.MergePatchType, []byte(rules), metav1.PatchOptions{})
	_, errBindings := bindings.Patch(t.Context(), "skerry:edge-nodes", types.MergePatchType, []byte(subjects), metav1.PatchOptions{})
	ca := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "skerry-ca"}}}
	_, errSecrets := secrets.Create(t.Context(), ca, metav1.CreateOptions{})
	if err := errors.Join(errRoles, errBindings, errSecrets); err != nil {
		t.Fatal(err)
	}
	stands := func(when string) {
		t.Helper()
		_, errRoute := routes.Get(t.Context(), "kept", metav1.GetOptions{})
		_, errSecret := secrets.Get(t.Context(), "skerry-ca", metav1.GetOptions{})
		namespace, errNamespace := namespaces.Get(t.Context(), "skerry-system", metav1.GetOptions{})
		role, errRole := roles.Get(t.Context(), "skerry:cloudcore-edges", metav1.GetOptions{})
		binding, errBinding := bindings.Get(t.Context(), "skerry:edge-nodes", metav1.GetOptions{})
		if err := errors.Join(errRoute, errSecret, errNamespace, errRole, errBinding); err != nil {
			t.Errorf("after the %s: %v", when, err)
			return
		}
		if namespace.GetDeletionTimestamp() != nil {
			t.Errorf("after the %s: the namespace goes, and the CA with it", when)
		}
		if all, _, _ := unstructured.NestedSlice(role.Object, "rules"); len(all) != 1 {
			t.Errorf("after the %s: cloudcore may act as %v", when, all)
		}
		if all, _, _ := unstructured.NestedSlice(binding.Object, "subjects"); len(all) != 1 {
			t.Errorf("after the %s: devices are %v", when, all)
		}
	}
	run("uninstall", "skerry")
	stands("uninstall")
	run("install", "skerry", archive, "--set", "advertise={cloud.example.com}")
	stands("next installation")
}
