package main

import (
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/tests/doccalls"
)

// TestDocumentedCommands: each call of the plugin in the pages for users is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	plugin := func() *cobra.Command { return command(genericiooptions.NewTestIOStreamsDiscard()) }
	doccalls.Check(t, plugin, "kubectl skerry", 10, "docs/diagnostics.md", "docs/fleet.md", "docs/fleet-status.md", "docs/rollouts.md", "docs/troubleshooting.md", "docs/tunnel.md")
}
