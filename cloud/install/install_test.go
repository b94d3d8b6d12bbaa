package install_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skerry-io/skerry/cloud/install"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
)

func objects(t *testing.T, o install.Options) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := install.Render(o)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*unstructured.Unstructured{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(string(out)), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(u); err != nil {
			return all
		}
		all[u.GetKind()+" "+u.GetName()] = u
	}
}

func TestInstall(t *testing.T) {
	all := objects(t, install.Options{Advertise: []string{"cloud.example.com", "192.0.2.7"}, Image: "reg.example.com:5000/c", Replicas: 3})
	d := all["Deployment cloudcore"]
	if d == nil {
		t.Fatalf("no Deployment in %d objects", len(all))
	}
	if n, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas"); n != 3 {
		t.Errorf("replicas: %d", n)
	}
	containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
	if image := containers[0].(map[string]any)["image"]; image != "reg.example.com:5000/c" {
		t.Errorf("image: %v", image)
	}
	volumes, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "volumes")
	name, _, _ := unstructured.NestedString(volumes[0].(map[string]any), "configMap", "name")
	config := all["ConfigMap "+name]
	if config == nil {
		t.Fatalf("the Deployment mounts ConfigMap %q, which is not among the objects", name)
	}
	if data, _, _ := unstructured.NestedString(config.Object, "data", "cloudcore.yaml"); !strings.Contains(data, "192.0.2.7") {
		t.Errorf("cloudcore.yaml: %s", data)
	}
}

// An operator's fields of cloudcore.yaml are in the ConfigMap that the Deployment mounts, together
// with those of the flags, and change that ConfigMap's name: so they roll cloudcore out.
func TestInstallConfig(t *testing.T) {
	o := install.Options{Advertise: []string{"cloud"}, Image: "c:1", Replicas: 1, Endpoint: true}
	text := func(o install.Options) (name, text string) {
		all := objects(t, o)
		volumes, _, _ := unstructured.NestedSlice(all["Deployment cloudcore"].Object, "spec", "template", "spec", "volumes")
		name, _, _ = unstructured.NestedString(volumes[0].(map[string]any), "configMap", "name")
		text, _, _ = unstructured.NestedString(all["ConfigMap "+name].Object, "data", "cloudcore.yaml")
		return name, text
	}
	plain, _ := text(o)
	o.File = install.ConfigFile{Name: "more.yaml", Data: []byte("relay: {leaseRenewal: 10s}\ntunnel: {clients: [kube-apiserver]}\nhub: {maxSessions: 20000}\n")}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	changed, got := text(o)
	want := `advertise:
- cloud
apiVersion: config.skerry.io/v1alpha1
devices:
  listen: :10443
  port: 443
health:
  listen: :10003
hub:
  maxSessions: 20000
kind: CloudCore
relay:
  leaseRenewal: 10s
subresources:
  listen: :10250
tunnel:
  clients:
  - kube-apiserver
  endpoint:
    hideAddresses: true
    listen: :10251
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cloudcore.yaml (-want +got)\n%s", diff)
	}
	if plain == changed {
		t.Errorf("the ConfigMap is %s with the fields and without them: no replica is started again", plain)
	}

	o.File.Data = []byte("hub: {maxSession: 1}\ndevices: {port: 8443}\n")
	if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), "more.yaml:1: hub.maxSession: ") {
		t.Errorf("a field that is unknown: %v", err)
	}
	o.File.Data = []byte("hub: {maxSessions: 1}\ndevices: {port: 8443}\n")
	if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), "more.yaml:2: devices.port: ") {
		t.Errorf("a field that the command sets: %v", err)
	}
}

func TestInstallRightsOnly(t *testing.T) {
	all := objects(t, install.Options{RightsOnly: true, Replicas: 1})
	if all["CustomResourceDefinition staticroutes.skerry.io"] == nil {
		t.Error("the kinds are not among the objects")
	}
	if all["Deployment cloudcore"] != nil || all["ClusterRole skerry:cloudcore-as-node"] == nil {
		t.Errorf("%d objects", len(all))
	}
}

// A part of the manifests comes with the fields of cloudcore.yaml that it needs.
func TestInstallParts(t *testing.T) {
	all := objects(t, install.Options{Advertise: []string{"cloud"}, Image: "c:1", Replicas: 1, Usage: true, Endpoint: true})
	var text string
	for name, o := range all {
		if strings.HasPrefix(name, "ConfigMap cloudcore-") {
			text, _, _ = unstructured.NestedString(o.Object, "data", "cloudcore.yaml")
		}
	}
	cfg, err := config.Read("cloudcore.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct{ service, listen string }{{"cloudcore-subresources", cfg.Subresources.Listen}, {"cloudcore-usage", cfg.Usage.Listen}, {"cloudcore-kubelets", cfg.Tunnel.Endpoint.Listen.Listen}} {
		service := all["Service "+part.service]
		if service == nil {
			t.Errorf("Service %s is not among the objects", part.service)
			continue
		}
		ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
		if target := fmt.Sprint(":", ports[0].(map[string]any)["targetPort"]); target != part.listen {
			t.Errorf("Service %s leads to %s, cloudcore listens at %q", part.service, target, part.listen)
		}
	}
	for _, name := range []string{"APIService v1beta1.metrics.k8s.io", "ServiceAccount cloudcore-usage", "RoleBinding skerry:cloudcore-usage"} {
		if all[name] == nil {
			t.Errorf("%s is not among the objects", name)
		}
	}
	if all = objects(t, install.Options{Advertise: []string{"cloud"}, Image: "c:1", Replicas: 1}); all["Service cloudcore-usage"] != nil || all["Service cloudcore-kubelets"] != nil {
		t.Error("they come unasked")
	}
}

func TestInstallBadInput(t *testing.T) {
	good := install.Options{Advertise: []string{"cloud"}, Image: "cloudcore:1", Replicas: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*install.Options){
		"no client can reach it": func(o *install.Options) { o.Advertise = nil },
		"with a port":            func(o *install.Options) { o.Advertise = []string{"cloud:10000"} },
		"of no use":              func(o *install.Options) { o.RightsOnly, o.Endpoint = true, true },
		"a file of no use":       func(o *install.Options) { o.RightsOnly, o.File.Data = true, []byte("hub: {maxSessions: 1}\n") },
		"no replica":             func(o *install.Options) { o.Replicas = 0 },
		"no image":               func(o *install.Options) { o.Image = "" },
	} {
		o := good
		if spoil(&o); o.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// An image is named as a registry has it: with a port, a tag, a digest.
func TestInstallImage(t *testing.T) {
	const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	for _, image := range []string{"c", "reg:5000/c", "reg:5000/c:v1", "reg/c" + digest, "reg:5000/c:v1" + digest} {
		all := objects(t, install.Options{Advertise: []string{"cloud"}, Image: image, Replicas: 2})
		for _, name := range []string{"Deployment cloudcore", "Deployment cloudcore-approver"} {
			containers, _, _ := unstructured.NestedSlice(all[name].Object, "spec", "template", "spec", "containers")
			if got := containers[0].(map[string]any)["image"]; got != image {
				t.Errorf("%s: image %v, want %s", name, got, image)
			}
		}
	}
}

// A node can be drained whatever the number of replicas: minAvailable 1 lets no drain pass
// where there is one.
func TestInstallDisruptionBudget(t *testing.T) {
	for _, replicas := range []int{1, 2, 5} {
		o := objects(t, install.Options{Advertise: []string{"cloud"}, Image: "c:1", Replicas: replicas})["PodDisruptionBudget cloudcore"]
		if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "maxUnavailable"); n < 1 {
			t.Errorf("%d replicas: %v", replicas, o.Object["spec"])
		}
	}
}

// cloudcore's rights do not depend on where it runs. Kustomize renames references to a ConfigMap
// with a hash in its name, and takes every resourceNames of a Role for one: the right to the Lease
// "cloudcore" was lost that way.
func TestInstallRightsAreTheSameEverywhere(t *testing.T) {
	elsewhere := objects(t, install.Options{RightsOnly: true, Replicas: 1, Usage: true})
	inCluster := objects(t, install.Options{Advertise: []string{"cloud"}, Image: "c:1", Replicas: 1, Usage: true, Endpoint: true})
	for name, o := range elsewhere {
		if diff := cmp.Diff(o, inCluster[name]); diff != "" {
			t.Errorf("%s (-elsewhere +in the cluster)\n%s", name, diff)
		}
	}
}
