package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// A wrong call names the mistake and the help of its command.
func TestWrongCalls(t *testing.T) {
	for call, want := range map[string]string{
		"node":                     "an argument is missing: kubectl skerry node NODE\nSee 'kubectl skerry node --help'.",
		"node a b":                 "accepts 1 arg(s), received 2: kubectl skerry node NODE\nSee 'kubectl skerry node --help'.",
		"status edge1":             "unexpected argument \"edge1\": kubectl skerry status takes none\nSee 'kubectl skerry status --help'.",
		"status --backlog-age 5":   "invalid argument \"5\" for \"--backlog-age\" flag: must be a duration with a unit, like 90s or 24h\nSee 'kubectl skerry status --help'.",
		"status --pod-start -1h":   "invalid argument \"-1h\" for \"--pod-start\" flag: must be a duration with a unit, like 90s or 24h\nSee 'kubectl skerry status --help'.",
		"recorder edge1 --since 1": "unknown flag: --since\nSee 'kubectl skerry recorder --help'.",
		"rehearse edge1 -o yaml":   "--output: \"yaml\" is not json\nSee 'kubectl skerry rehearse --help'.",
		"top -l a=b=c":             "found '=', expected: ',' or 'end of string'\nSee 'kubectl skerry top --help'.",
		"ui --port 99999":          "--port: 99999 is no port\nSee 'kubectl skerry ui --help'.",
		"artefact rotate":          "an argument is missing: kubectl skerry artefact rotate ROLE\nSee 'kubectl skerry artefact rotate --help'.",
	} {
		c := command(genericiooptions.NewTestIOStreamsDiscard())
		c.SetArgs(strings.Fields(call))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		c.SilenceErrors = true
		if err := c.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", call, err, want)
		}
	}
}

// A device that there is not has no link either: the error is about the first. A cloudcore that
// kube-apiserver does not reach has another remedy than a device without a link.
func TestUnanswered(t *testing.T) {
	a := newAPIServer(t, 0)
	streams := genericiooptions.NewTestIOStreamsDiscard()
	for name, c := range map[string]*cobra.Command{
		"node": nodeCommand(a, streams), "rehearse": rehearseCommand(a, streams), "recorder": recorderCommand(a, streams), "bundle": bundleCommand(a, streams),
	} {
		out := filepath.Join(t.TempDir(), "bundle")
		if err := os.WriteFile(out, []byte("an earlier one"), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"edge-0000"}
		if name == "bundle" {
			args = append(args, "-o", out)
		}
		run := func() string {
			c.SetArgs(args)
			c.SilenceErrors = true
			err := c.ExecuteContext(t.Context())
			if err == nil {
				t.Fatalf("%s: no error", name)
			}
			return err.Error()
		}
		a.nodes, a.away = 0, "node edge-0000: edge-0000 has no link"
		if got := run(); !strings.HasPrefix(got, "there is no device edge-0000: ") {
			t.Errorf("%s of no device: %s", name, got)
		}
		a.nodes = 1
		if got := run(); !strings.HasSuffix(got, a.away) {
			t.Errorf("%s of a device without a link: %s", name, got)
		}
		a.away = "the server is currently unable to handle the request"
		if got := run(); !strings.Contains(got, "kubectl get apiservices v1alpha1.subresources.skerry.io") {
			t.Errorf("%s without cloudcore: %s", name, got)
		}
		if left, err := os.ReadFile(out); err != nil || string(left) != "an earlier one" {
			t.Errorf("%s: the file of an earlier bundle has %q, %v", name, left, err)
		}
	}
}
