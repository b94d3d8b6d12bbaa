package config_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
)

const head = "apiVersion: config.skerry.io/v1alpha1\nkind: CloudCore\n"

func TestReadReportsEveryMistakeWithItsPlace(t *testing.T) {
	tests := map[string]struct {
		file string
		want []string
	}{
		"no listener": {head + "devices:\n  listen: \"\"\n", []string{
			"cloudcore.yaml: advertise: Required value: name at least one host name or address under which edges reach cloudcore",
			"cloudcore.yaml:4: devices.listen: Required value: this, hub.websocket.listen or hub.quic.listen must be set, or no edge can reach this cloudcore",
		}},
		"bad values": {head + "advertise: [\"cloud:1\"]\nimpersonation: full\njoin:\n  listen: \"10002\"\nhub:\n  maxSessions: 0\nrelay:\n  leaseRenewal: 40s\n", []string{
			`cloudcore.yaml:3: advertise[0]: Invalid value: "cloud:1": must be a host name in lower case or an IP address, without a port`,
			`cloudcore.yaml:4: impersonation: Unsupported value: "full": supported values: "constrained", "classic"`,
			`cloudcore.yaml:6: join.listen: Invalid value: "10002": must be [ADDRESS]:PORT, such as :10000 or 127.0.0.1:10003`,
			`cloudcore.yaml:8: hub.maxSessions: Invalid value: 0: must be 1 to 1000000`,
			`cloudcore.yaml:10: relay.leaseRenewal: Invalid value: "40s": must be 1s to 20s: a Lease lasts 40s`,
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := config.Read("cloudcore.yaml", []byte(tc.file))
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
	filled := strings.Replace(config.DefaultText, "advertise: []", "advertise: [cloud.example.com]", 1)
	for name, text := range map[string]string{"default": filled, "minimal": config.MinimalText} {
		got, err := config.Read(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		want := config.Default()
		want.Advertise = []string{"cloud.example.com"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-Default +text)\n%s", name, diff)
		}
	}
}

// Fields that an operator adds to the cloudcore.yaml that `cloudcore install` makes.
func TestMerge(t *testing.T) {
	set := map[string]any{
		"apiVersion": "config.skerry.io/v1alpha1", "kind": "CloudCore", "advertise": []string{"cloud.example.com"},
		"devices": map[string]any{"listen": ":10443", "port": 443}, "tunnel": map[string]any{"endpoint": map[string]any{"hideAddresses": true}},
	}
	const generated = `advertise: [cloud.example.com]
devices: {listen: ":10443", port: 443}
`
	for name, tc := range map[string]struct{ file, want, wantErr string }{
		"without a head": {
			file: "relay: {leaseRenewal: 10s}\nhub:\n  maxSessions: 20000\n",
			want: head + generated + "tunnel: {endpoint: {hideAddresses: true}}\nrelay: {leaseRenewal: 10s}\nhub: {maxSessions: 20000}\n",
		},
		"within what is set": {
			file: head + "tunnel: {clients: [on, a], endpoint: {listen: \":10251\"}}\n",
			want: head + generated + "tunnel: {clients: [\"on\", a], endpoint: {listen: \":10251\", hideAddresses: true}}\n",
		},
		"what is set, again": {
			file: "kind: CloudCore\nadvertise: [cloud.example.com]\ndevices: {port: 443}\n",
			want: head + generated + "tunnel: {endpoint: {hideAddresses: true}}\n",
		},
		"nothing": {file: "hub:\n", want: head + generated + "tunnel: {endpoint: {hideAddresses: true}}\nhub: null\n"},
		"another value than is set": {
			file: "hub: {maxSessions: 20000}\ndevices:\n  port: 8443\nadvertise: [b]\ntunnel:\n  endpoint:\n    hideAddresses: false\n",
			wantErr: `more.yaml:3: devices.port: Invalid value: 8443: cloudcore install sets it to 443
more.yaml:4: advertise: Invalid value: ["b"]: cloudcore install sets it to ["cloud.example.com"]
more.yaml:7: tunnel.endpoint.hideAddresses: Invalid value: false: cloudcore install sets it to true`,
		},
		"mistakes": {
			file: "hub:\n  maxSessions: 0\nrelay: {leaseRenewal: 40s}\ndevices: {port: 1}\n",
			wantErr: `more.yaml:2: hub.maxSessions: Invalid value: 0: must be 1 to 1000000
more.yaml:3: relay.leaseRenewal: Invalid value: "40s": must be 1s to 20s: a Lease lasts 40s
more.yaml:4: devices.port: Invalid value: 1: cloudcore install sets it to 443`,
		},
		"an unknown field": {file: "hub:\n  maxSession: 1\n", wantErr: `more.yaml:2: hub.maxSession: unknown field; did you mean "maxSessions"?`},
		"another kind":     {file: "kind: EdgeCore\n", wantErr: `more.yaml:1: kind: Unsupported value: "EdgeCore": supported values: "CloudCore"`},
	} {
		t.Run(name, func(t *testing.T) {
			merged, err := config.Merge("more.yaml", []byte(tc.file), set)
			if tc.wantErr != "" || err != nil {
				if err == nil {
					t.Fatalf("no error, but %v", merged)
				}
				if diff := cmp.Diff(tc.wantErr, err.Error()); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				return
			}
			want := map[string]any{}
			if err := yaml.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, merged); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// The schema has the fields that the file with all of them has, and their types.
func TestSchemaIsTheDefaults(t *testing.T) {
	var all map[string]any
	if err := yaml.Unmarshal([]byte(config.DefaultText), &all); err != nil {
		t.Fatal(err)
	}
	var same func(at string, value any, schema map[string]any)
	same = func(at string, value any, schema map[string]any) {
		want := map[string]string{"map": "object", "slice": "array", "string": "string", "bool": "boolean", "float64": "integer"}[reflect.TypeOf(value).Kind().String()]
		if schema["type"] != want {
			t.Errorf("%s: the default is %v, the schema says %v", at, value, schema["type"])
		}
		fields, ok := value.(map[string]any)
		if !ok {
			return
		}
		properties, _ := schema["properties"].(map[string]any)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(properties))); diff != "" {
			t.Errorf("%s (-default.yaml +schema)\n%s", at, diff)
			return
		}
		for name, value := range fields {
			same(at+"."+name, value, properties[name].(map[string]any))
		}
	}
	same("", all, config.Schema())
}
