package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/cloud/internal/config"
)

const head = "apiVersion: config.skerry.io/v1alpha1\nkind: CloudCore\n"

func TestReadReportsEveryMistakeWithItsPlace(t *testing.T) {
	tests := map[string]struct {
		file string
		want []string
	}{
		"no listener": {head + "hub:\n  websocket: {listen: \"\"}\n  quic: {listen: \"\"}\n", []string{
			"cloudcore.yaml: advertise: Required value: name at least one host name or address under which edges reach cloudcore",
			"cloudcore.yaml:4: hub.websocket.listen: Required value: one of websocket and quic must listen, or no edge can reach this cloudcore",
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
