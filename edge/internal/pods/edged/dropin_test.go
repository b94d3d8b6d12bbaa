package edged_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/pods/edged"
)

// Drop-in files are laid over the configuration in the order of their names, as upstream's.
func TestMergeDropIns(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	dir := t.TempDir()
	file := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file("20-more.conf", head+"maxPods: 22\nevictionHard: {nodefs.available: 5%}\nclusterDNS: [10.0.0.2]\n")
	file("10-first.conf", head+"maxPods: 11\npodPidsLimit: 100\n")
	file("below/x.conf", head+"podPidsLimit: null\n")
	file("readme.txt", "not: [read")
	base := "maxPods: 5\nevictionHard: {memory.available: 100Mi}\nclusterDNS: [10.0.0.1]\nsyncFrequency: 1m\nfailCgroupV1: false"
	m, err := edged.MergeDropIns([]byte(base), dir)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"kubelet.config.k8s.io/v1beta1","clusterDNS":["10.0.0.2"],"evictionHard":{"memory.available":"100Mi","nodefs.available":"5%"},"failCgroupV1":false,"kind":"KubeletConfiguration","maxPods":22,"syncFrequency":"1m"}`
	if diff := cmp.Diff(want, string(m.Raw)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := filepath.Base(m.From["maxPods"]); got != "20-more.conf" || m.From["syncFrequency"] != "" {
		t.Errorf("from %v", m.From)
	}
	if wrong := edged.Validate(m.Raw); len(wrong) > 0 {
		t.Error(wrong)
	}

	for text, want := range map[string]string{
		"maxPods: 1":           "30-bad.conf: apiVersion must be kubelet.config.k8s.io/v1beta1",
		head + "maxPods: [":    "30-bad.conf: ",
		head + "kind: Another": "30-bad.conf: ",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: X": "30-bad.conf: kind must be KubeletConfiguration",
	} {
		file("30-bad.conf", text)
		if _, err := edged.MergeDropIns(nil, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := edged.MergeDropIns([]byte("{}"), filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there is no mistake")
	}
}
