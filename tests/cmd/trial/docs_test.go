package main

import (
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/cmd"

	"github.com/skerry-io/skerry/tests/doccalls"
)

// kubectl is kubectl with the plugins that the documents name.
func kubectl() *cobra.Command {
	c := cmd.NewDefaultKubectlCommand()
	for _, plugin := range []string{"skerry", "krew", "support-bundle"} {
		c.AddCommand(&cobra.Command{Use: plugin, DisableFlagParsing: true, Run: func(*cobra.Command, []string) {}})
	}
	return c
}

// TestRemediesNameCommands: each command of kubectl that an error, a remedy or an alert names is
// there, with its flags.
func TestRemediesNameCommands(t *testing.T) {
	doccalls.CheckTexts(t, kubectl(), "kubectl", 10, "against")
}

// TestDocumentedCommands: each call of kubectl and of trial in the documents is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	doccalls.Check(t, kubectl, "kubectl", 60)
	doccalls.Check(t, command, "bin/trial", 20)
}
