package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// configName is the prefix of the name of cloudcore.yaml's ConfigMap; a hash of its content
// follows. No other object may have this name: a `kustomize build` of manifests/deployment puts its
// hash behind it wherever it takes it for a reference, in every resourceNames of a Role too.
const configName = "cloudcore-config"

// imageName is the placeholder for cloudcore's image in the manifests.
const imageName = "cloudcore"

// kustomization has all fields that those of manifests/ may use: a further one must be implemented
// here too.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
}

// resources are the files of a folder that its kustomization.yaml names, in its order.
func resources(disk fs.FS, folder string) ([]string, error) {
	name := path.Join(folder, "kustomization.yaml")
	raw, err := fs.ReadFile(disk, name)
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	var k kustomization
	if err := yaml.UnmarshalStrict(raw, &k); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	files := make([]string, 0, len(k.Resources))
	for _, r := range k.Resources {
		files = append(files, path.Join(folder, r))
	}
	return files, nil
}

// appendObjects adds the objects of a file of YAML documents.
func appendObjects(all []map[string]any, disk fs.FS, file string) ([]map[string]any, error) {
	raw, err := fs.ReadFile(disk, file)
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096); ; {
		var object map[string]any
		if err := d.Decode(&object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		if len(object) > 0 { // a document may be empty, or comments alone
			all = append(all, object)
		}
	}
}

// items are the objects of a list.
func items(list any) []map[string]any {
	all, _ := list.([]any)
	out := make([]map[string]any, 0, len(all))
	for _, item := range all {
		if object, ok := item.(map[string]any); ok {
			out = append(out, object)
		}
	}
	return out
}

// configMap is the ConfigMap of a cloudcore.yaml. A hash of its content is in its name, so that a
// change rolls cloudcore out: kustomize's and the chart's, so that a change from one way to install
// to another finds the same object. It spells no words: digits and letters that would are replaced.
func configMap(text string) (*unstructured.Unstructured, error) {
	data := map[string]any{"cloudcore.yaml": text}
	raw, err := json.Marshal(map[string]any{"kind": "ConfigMap", "name": "", "data": data})
	if err != nil {
		return nil, fmt.Errorf("writing cloudcore.yaml: %w", err)
	}
	sum := sha256.Sum256(raw)
	hash := strings.NewReplacer("0", "g", "1", "h", "3", "k", "a", "m", "e", "t").Replace(hex.EncodeToString(sum[:])[:10])
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data,
		"metadata": map[string]any{"name": configName + "-" + hash, "namespace": v1alpha1.SystemNamespace},
	}}, nil
}
