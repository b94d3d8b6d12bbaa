package main

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skerry-io/skerry/cloud/internal/config"
)

func objects(t *testing.T, o installOptions) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := o.render()
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
	all := objects(t, installOptions{advertise: []string{"cloud.example.com", "192.0.2.7"}, image: "reg.example.com:5000/c", replicas: 3})
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

func TestInstallRightsOnly(t *testing.T) {
	constrained := objects(t, installOptions{rightsOnly: true})
	if constrained["CustomResourceDefinition staticroutes.skerry.io"] == nil {
		t.Error("the kinds are not among the objects")
	}
	if constrained["Deployment cloudcore"] != nil || constrained["ClusterRole skerry:cloudcore-as-node"] == nil {
		t.Errorf("constrained: %d objects", len(constrained))
	}
	classic := objects(t, installOptions{rightsOnly: true, classic: true})["ClusterRole skerry:cloudcore-as-node"]
	if rules, _, _ := unstructured.NestedSlice(classic.Object, "rules"); len(rules) > 4 {
		t.Errorf("classic: %d rules", len(rules))
	}
}

// What a part of the manifests needs of cloudcore.yaml comes with it.
func TestInstallParts(t *testing.T) {
	all := objects(t, installOptions{advertise: []string{"cloud"}, replicas: 1, usage: true, endpoint: true})
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
	for _, part := range []struct{ service, listen string }{{"cloudcore-usage", cfg.Usage.Listen}, {"cloudcore-kubelets", cfg.Tunnel.Endpoint.Listen.Listen}} {
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
	if all = objects(t, installOptions{advertise: []string{"cloud"}, replicas: 1}); all["Service cloudcore-usage"] != nil || all["Service cloudcore-kubelets"] != nil {
		t.Error("they come unasked")
	}
}

func TestInstallBadInput(t *testing.T) {
	for name, o := range map[string]installOptions{
		"nobody can reach it": {replicas: 1},
		"with a port":         {replicas: 1, advertise: []string{"cloud:10000"}},
		"of no use":           {replicas: 1, rightsOnly: true, endpoint: true},
		"no replica":          {advertise: []string{"cloud"}},
	} {
		if o.validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
