package main

import (
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/skerry-io/skerry/tests/doccalls"
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
