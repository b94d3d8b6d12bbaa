// Package install renders the manifests of `cloudcore install` by its options.
//
// It owns which part of manifests/ belongs to which option, and the cloudcore.yaml that fits them.
// The Helm chart is made from the same (build/release/chart). It refuses options that contradict
// each other, touches no cluster and keeps no state: its functions may be called from any
// goroutine.
package install

import (
	"bytes"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
	commonconfig "github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/manifests"
)

// Options are the flags of `cloudcore install`, and the values of the chart.
type Options struct {
	Advertise  []string // names and addresses under which edges reach cloudcore
	Image      string   // NAME[:TAG][@DIGEST]
	Replicas   int
	RightsOnly bool // the kinds, the namespace, the accounts, their rights and the policies alone
	Usage      bool // metrics.k8s.io
	Console    bool // consoles of virtual machines for the devices that they run on
	Endpoint   bool // the kubelets by the names of their nodes
	File       ConfigFile
}

// A ConfigFile has fields of cloudcore.yaml in addition to those that the other options set. The
// zero value is empty.
type ConfigFile struct {
	Name string // in errors
	Data []byte
}

// Validate reports the first option that can't be, in the words of the command's flags. Of the file
// it reports every mistake.
func (o Options) Validate() error {
	if o.Replicas < 1 {
		return fmt.Errorf("--replicas %d: must be at least 1", o.Replicas)
	}
	if o.RightsOnly {
		if o.Endpoint {
			return fmt.Errorf("--kubelet-endpoint is of no use with --rights-only: it is a field of cloudcore.yaml and a Service")
		}
		if o.File.Data != nil {
			return fmt.Errorf("--config is of no use with --rights-only: cloudcore.yaml is on the machine that cloudcore runs on")
		}
		return nil
	}
	if len(o.Advertise) == 0 {
		return fmt.Errorf("--advertise is missing: name the hosts under which edges reach cloudcore")
	}
	for _, a := range o.Advertise {
		if _, err := netip.ParseAddr(a); err != nil && len(validation.IsDNS1123Subdomain(a)) > 0 {
			return fmt.Errorf("--advertise %q: must be a host name in lower case or an IP address, without a port", a)
		}
	}
	if o.Image == "" {
		return fmt.Errorf("--image is missing: this build is no release, so no registry has its image")
	}
	_, err := o.text()
	return err
}

// Render renders the options as YAML documents: the output of `kustomize build` for the same
// folders with the images, the replicas and the generated ConfigMap set in a kustomization.yaml.
// The tests compare them.
func Render(o Options) ([]byte, error) {
	folders := []string{"crds", "cloudcore", "autonomy"}
	if o.Usage {
		folders = append(folders, "usage")
	}
	if o.Console {
		folders = append(folders, "console")
	}
	if !o.RightsOnly {
		if o.Endpoint {
			folders = append(folders, "endpoint")
		}
		folders = append(folders, "subresources")
	}
	var all []map[string]any
	for _, folder := range folders {
		files, err := resources(manifests.FS, folder)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if all, err = appendObjects(all, manifests.FS, file); err != nil {
				return nil, err
			}
		}
	}
	if !o.RightsOnly {
		var err error
		if all, err = o.appendDeployment(all); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	for i, object := range all {
		raw, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("writing the manifests: %w", err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(raw)
	}
	return out.Bytes(), nil
}

// Config returns the fields of cloudcore.yaml that the options without File set. All others are
// File's, or cloudcore's default.
func (o Options) Config() map[string]any {
	cfg := map[string]any{
		"apiVersion": commonconfig.Version, "kind": config.Kind, "advertise": o.Advertise, "health": map[string]any{"listen": ":10003"},
		"subresources": map[string]any{"listen": ":10250"}, // as manifests/subresources has it
		// A port below 1024 is not every container's to open; the Service has 443.
		"devices": map[string]any{"listen": ":10443", "port": 443},
	}
	if o.Usage {
		cfg["usage"] = map[string]any{"listen": ":10005"}
	}
	if o.Endpoint {
		cfg["tunnel"] = map[string]any{"endpoint": map[string]any{"listen": ":10251", "hideAddresses": true}}
	}
	return cfg
}

// Schema is the JSON schema of cloudcore.yaml, by which Helm validates values for files that it
// can't read.
func Schema() map[string]any { return config.Schema() }

// text is the cloudcore.yaml of the options.
func (o Options) text() (string, error) {
	fields := o.Config()
	if o.File.Data != nil {
		var err error
		if fields, err = config.Merge(o.File.Name, o.File.Data, fields); err != nil {
			return "", err
		}
	}
	raw, err := yaml.Marshal(fields)
	if err != nil {
		return "", fmt.Errorf("writing cloudcore.yaml: %w", err)
	}
	_, err = config.Read("cloudcore.yaml", raw)
	return string(raw), err
}

// appendDeployment adds cloudcore itself, as the options have it.
func (o Options) appendDeployment(all []map[string]any) ([]map[string]any, error) {
	text, err := o.text()
	if err != nil {
		return nil, err
	}
	generated, err := configMap(text)
	if err != nil {
		return nil, err
	}
	var own []map[string]any
	for _, file := range []string{"approver.yaml", "deployment.yaml", "service.yaml"} {
		if own, err = appendObjects(own, manifests.FS, "deployment/"+file); err != nil {
			return nil, err
		}
	}
	for _, object := range own {
		if object["kind"] != "Deployment" {
			continue
		}
		if err := o.adapt(&unstructured.Unstructured{Object: object}, generated.GetName()); err != nil {
			return nil, err
		}
	}
	return append(append(all, own...), generated.Object), nil
}

// adapt makes a Deployment of the manifests the options': its image, its replicas and the name of
// its configuration.
func (o Options) adapt(d *unstructured.Unstructured, config string) error {
	if d.GetName() == "cloudcore" {
		if err := unstructured.SetNestedField(d.Object, int64(o.Replicas), "spec", "replicas"); err != nil {
			return fmt.Errorf("setting the replicas: %w", err)
		}
	}
	containers, _, err := unstructured.NestedFieldNoCopy(d.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return fmt.Errorf("setting the image: %w", err)
	}
	for _, c := range items(containers) {
		if c["image"] == imageName {
			c["image"] = o.Image
		}
	}
	volumes, _, err := unstructured.NestedFieldNoCopy(d.Object, "spec", "template", "spec", "volumes")
	if err != nil {
		return fmt.Errorf("setting the ConfigMap: %w", err)
	}
	for _, v := range items(volumes) {
		if source, ok := v["configMap"].(map[string]any); ok && source["name"] == configName {
			source["name"] = config
		}
	}
	return nil
}
