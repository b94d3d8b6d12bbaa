package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"

	commonconfig "github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

const head = "apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\n"

func TestReadReportsEveryMistakeWithItsPlace(t *testing.T) {
	tests := map[string]struct {
		file string
		want []string
	}{
		"empty":          {"", []string{"edgecore.yaml: the file is empty; `config minimal` prints one to start from"}},
		"not YAML":       {head + "modules: [\n", []string{"edgecore.yaml:3: did not find expected node content"}},
		"another kind":   {"apiVersion: v1\nkind: Pod\n", []string{`edgecore.yaml:1: apiVersion: Unsupported value: "v1": supported values: "config.skerry.io/v1alpha1"`, `edgecore.yaml:2: kind: Unsupported value: "Pod": supported values: "EdgeCore"`}},
		"two documents":  {head + "---\n" + head, []string{"edgecore.yaml: more than one YAML document; put one configuration in a file"}},
		"unknown fields": {head + "modules:\n  edgehub: {}\n  edged:\n    reportEvents: true\n", []string{`edgecore.yaml:4: modules.edgehub: unknown field; did you mean "edgeHub"?`, `edgecore.yaml:6: modules.edged.reportEvents: unknown field; did you mean "reportEvent"?`}},
		"given twice":    {head + "dataDir: /a\ndataDir: /b\n", []string{"edgecore.yaml:4: dataDir: given twice; first in line 3"}},
		"wrong types":    {head + "log: 2\nmodules:\n  edgeHub:\n    keepalive: fast\n    idleTimeout: 10\n    servers: cloud\n    websocket: {port: ws}\n", []string{"edgecore.yaml:3: log: is the number 2; want fields", `edgecore.yaml:6: modules.edgeHub.keepalive: is the string "fast"; want a duration with a unit, like 10s or 5m`, `edgecore.yaml:7: modules.edgeHub.idleTimeout: is the number 10; want a duration with a unit, like 10s or 5m`, `edgecore.yaml:8: modules.edgeHub.servers: is the string "cloud"; want a list`, `edgecore.yaml:9: modules.edgeHub.websocket.port: is the string "ws"; want a whole number`}},
		"two keys":       {head + "modules:\n  metaManager:\n    encryption:\n      keyFile: /k\n      keyCommand: cat /k\n      keyCredential: ../k\n", []string{`edgecore.yaml:6: modules.metaManager.encryption.keyFile: Forbidden: keyCommand or keyCredential is set: a key in a file as well would not be used`, `edgecore.yaml:8: modules.metaManager.encryption.keyCredential: Invalid value: "../k": must be the name of a credential, as LoadCredentialEncrypted= has it`, `edgecore.yaml:8: modules.metaManager.encryption.keyCredential: Forbidden: keyCommand is set: only one of them gives the key`}},
		"bad values":     {head + "dataDir: relative\nmodules:\n  edgeHub:\n    servers: [\"cloud:10000\", ok.example.com]\n    transport: tcp\n    idleTimeout: 11s\n  edgeAPI:\n    listen: 0.0.0.0:10550\n", []string{`edgecore.yaml:3: dataDir: Invalid value: "relative": must be an absolute path`, `edgecore.yaml:6: modules.edgeHub.servers[0]: Invalid value: "cloud:10000": must be a host without a port, such as cloud; ports are in websocket.port and quic.port`, `edgecore.yaml:7: modules.edgeHub.transport: Unsupported value: "tcp": supported values: "auto", "websocket", "quic"`, `edgecore.yaml:8: modules.edgeHub.idleTimeout: Invalid value: "11s": must be at least twice the keepalive, or one lost packet ends the link`, `edgecore.yaml:10: modules.edgeAPI.listen: Invalid value: "0.0.0.0:10550": must be a loopback address: this API is for the device alone`}},
		"drain":          {head + "modules:\n  drain:\n    attempts: 0\n    interval: 0s\n    hooks:\n      restart: x\n", []string{`edgecore.yaml:8: modules.drain.hooks.restart: unknown field; known here: prefetch, reboot, shutdown, timeout, update`}},
		"drain's values": {head + "modules:\n  drain:\n    attempts: 0\n    interval: 0s\n    retryInterval: 2h\n", []string{`edgecore.yaml:5: modules.drain.attempts: Invalid value: 0: must be 1 to 1000`, `edgecore.yaml:6: modules.drain.interval: Invalid value: "0s": must be 1s to 168h0m0s`, `edgecore.yaml:7: modules.drain.retryInterval: Invalid value: "2h0m0s": must be 100ms to 1h0m0s`}},
		"alias":          {head + "modules:\n  edged: &a {}\n  edgeAPI: *a\n", []string{"edgecore.yaml:5: modules.edgeAPI: aliases are not supported: write the value out"}},
		"without store":  {head + "modules:\n  edgeHub: {servers: [a]}\n  metaManager:\n    enable: false\n", []string{"edgecore.yaml:6: modules.metaManager.enable: Forbidden: edgeHub, edgeAPI and edged stand on the store: they can't run without it"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := config.Read("edgecore.yaml", []byte(tc.file))
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tc.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestTextsSayWhatHolds(t *testing.T) {
	for name, text := range map[string]string{"default": config.DefaultText, "minimal": config.MinimalText} {
		got, _, err := config.Read(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(config.Default(), got, cmpopts.EquateComparable(), cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
			t.Errorf("%s (-Default +text)\n%s", name, diff)
		}
	}
}

func TestKubeletSectionIsKept(t *testing.T) {
	c, d, err := config.Read("f", []byte(head+"modules:\n  edgeHub: {servers: [a]}\n  edged:\n    kubelet:\n      maxPods: 7\n      evictionHard: {memory.available: 100Mi}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(c.Modules.Edged.Kubelet), `{"evictionHard":{"memory.available":"100Mi"},"maxPods":7}`; got != want {
		t.Errorf("kubelet: %s, want %s", got, want)
	}
	if got := d.Line("modules.edged.kubelet.maxPods"); got != 7 {
		t.Errorf("line %d, want 7", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(config.DefaultText))
	f.Add([]byte(config.MinimalText))
	f.Add([]byte(head + "modules: {edged: {kubelet: {a: [1, 1.5, null, 2001-01-01]}}}"))
	f.Add([]byte(head + "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b,*b]\n")) // grows by itself
	f.Add([]byte(head + strings.Repeat("[", 10_000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := config.Read("f", data)
		if err == nil {
			return
		}
		if e, ok := err.(*commonconfig.Error); !ok || len(e.Problems) == 0 {
			t.Errorf("%T %v", err, err)
		}
	})
}

func TestSwitches(t *testing.T) {
	for text, want := range map[string]config.Switch{"true": config.On, "false": config.Off, "auto": config.Auto, `"true"`: config.On} {
		c, _, err := config.Read("edgecore.yaml", []byte("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\nmodules:\n  site:\n    enable: "+text+"\n"))
		if err != nil || c.Modules.Site.Enable != want {
			t.Errorf("enable: %s is read as %q: %v", text, c.Modules.Site.Enable, err)
		}
	}
	for _, text := range []string{"7", "sometimes", "[]"} {
		_, _, err := config.Read("edgecore.yaml", []byte("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\nmodules:\n  site:\n    enable: "+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), "edgecore.yaml:5: modules.site.enable") {
			t.Errorf("enable: %s: %v", text, err)
		}
	}
}
