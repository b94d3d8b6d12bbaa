package edged

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// dropInExtension is that of files which the kubelet's --config-dir reads.
const dropInExtension = ".conf"

// A Merged is a KubeletConfiguration with the files of a directory laid over it.
type Merged struct {
	Raw []byte
	// From is the file that last set a top-level field; no entry: no drop-in file.
	From map[string]string
}

// MergeDropIns lays the drop-in files of a directory over a KubeletConfiguration, as the kubelet
// does with its --config-dir (KEP-3983): all that end in .conf, also in folders below, in the order
// of their names, each as a JSON merge patch of the result so far.
func MergeDropIns(base []byte, dir string) (Merged, error) {
	m := Merged{From: map[string]string{}}
	var err error
	if m.Raw, err = yaml.YAMLToJSONStrict(base); err != nil {
		return m, err
	}
	if string(m.Raw) == "null" {
		m.Raw = []byte("{}")
	}
	return m, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != dropInExtension {
			return err
		}
		if err := m.lay(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
}

func (m *Merged) lay(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if raw, err = yaml.YAMLToJSONStrict(raw); err != nil {
		return err
	}
	fields, err := fieldsOf(raw)
	if err != nil {
		return err
	}
	for _, want := range [][2]string{{"apiVersion", kubeletconfigv1beta1.SchemeGroupVersion.String()}, {"kind", "KubeletConfiguration"}} { // the kubelet requires both
		var text string
		if json.Unmarshal(fields[want[0]], &text) != nil || text != want[1] {
			return fmt.Errorf("%s must be %s", want[0], want[1])
		}
		delete(fields, want[0])
	}
	if m.Raw, err = jsonpatch.MergePatch(m.Raw, raw); err != nil {
		return err
	}
	for name := range fields {
		m.From[name] = path
	}
	return nil
}
