package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/app"
)

// Mistakes of edgecore's own fields and of the kubelet's are reported together, each once and with
// its line.
func TestConfigurationReportsEveryMistake(t *testing.T) {
	const kubelet = `modules:
  edgeHub: {servers: [cloud.example.com]}
  edged:
    kubelet:
      failCgroupV1: false
      maxPod: 20
      maxPods: -1
      authentication:
        x509:
          caFile: /x
      featureGates:
        NoSuchGate: true
`
	const head = "apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\n"
	want := []string{
		"f:9: modules.edged.kubelet.maxPod: unknown field",
		"f:10: modules.edged.kubelet.maxPods: maxPods (--max-pods) -1 must not be a negative number",
		"f:13: modules.edged.kubelet.authentication.x509.caFile: unknown field",
		"f:15: modules.edged.kubelet.featureGates.NoSuchGate: unrecognized feature gate: NoSuchGate",
	}
	for name, tc := range map[string]struct {
		first string // the third line
		want  string // expected error
	}{
		"nothing else":     {"dataDir: /var/lib/skerry", ""},
		"a bad value":      {"log: {verbosity: 99}", "f:3: log.verbosity: Invalid value: 99: must be 0 to 10"},
		"an unknown field": {"datadir: /x", `f:3: datadir: unknown field; did you mean "dataDir"?`},
		"a wrong type":     {"log: {verbosity: much}", `f:3: log.verbosity: is the string "much"; want a whole number`},
	} {
		t.Run(name, func(t *testing.T) {
			want := want
			if tc.want != "" {
				want = append([]string{tc.want}, want...)
			}
			_, err := app.Configuration("f", []byte(head+tc.first+"\n"+kubelet))
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no kubelet is to run", func(t *testing.T) {
		off := strings.Replace(kubelet, "    kubelet:", "    enable: false\n    kubelet:", 1)
		if _, err := app.Configuration("f", []byte(head+off)); err != nil {
			t.Error(err)
		}
		_, err := app.Configuration("f", []byte(head+"datadir: /x\n"+off))
		if err == nil || strings.Contains(err.Error(), "kubelet") {
			t.Errorf("beside a mistake: %v", err)
		}
	})
	t.Run("a drop-in file", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "10-x.conf")
		if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\nmaxPod: 8\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		text := head + "modules:\n  edgeHub: {servers: [cloud.example.com]}\n  edged:\n    kubeletConfigDir: " + dir + "\n    kubelet: {failCgroupV1: false, maxPods: -1}\n"
		_, err := app.Configuration("f", []byte(text))
		if want := "f:6: modules.edged.kubeletConfigDir: " + file + ": maxPod: unknown field"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := app.Configuration("f", []byte(text)); err != nil || !strings.Contains(string(c.Modules.Edged.Kubelet), `"maxPods":7`) {
			t.Errorf("%v", err)
		}
	})
	t.Run("no YAML", func(t *testing.T) {
		if _, err := app.Configuration("f", []byte("modules: [")); err == nil || !strings.HasPrefix(err.Error(), "f:") {
			t.Error(err)
		}
	})
}
