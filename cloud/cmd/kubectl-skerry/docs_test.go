package main

import (
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/tests/doccalls"
	"github.com/skerry-io/skerry/tests/golden"
)

// TestDocumentedCommands: each call of the plugin in the documents is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	plugin := func() *cobra.Command { return command(genericiooptions.NewTestIOStreamsDiscard()) }
	doccalls.Check(t, plugin, "kubectl skerry", 10)
}

// TestRemediesNameCommands: each command that an error, a remedy or an alert names is there, with
// its flags.
func TestRemediesNameCommands(t *testing.T) {
	doccalls.CheckTexts(t, command(genericiooptions.NewTestIOStreamsDiscard()), "kubectl skerry", 5)
}

// TestReference: the page has every command with its flags. Those of kubectl's own commands are
// kubectl's, and some of their defaults are of the machine.
func TestReference(t *testing.T) {
	page := doccalls.Reference(command(genericiooptions.NewTestIOStreamsDiscard()), "", "logs", "exec", "attach", "port-forward", "cp", "proxy")
	t.Chdir("../../../docs/reference")
	golden.Check(t, "kubectl-skerry.md", page)
}

// TestNodesAreCompleted: a shell completes the names of devices.
func TestNodesAreCompleted(t *testing.T) {
	plugin := command(genericiooptions.NewTestIOStreamsDiscard())
	for _, name := range []string{"node", "rehearse", "bundle", "recorder"} {
		if c, _, err := plugin.Find([]string{name}); err != nil || c.ValidArgsFunction == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
