package main

import (
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/tests/doccalls"
	"github.com/skerry-io/skerry/tests/golden"
)

// TestDocumentedCommands: each call of cloudcore in the documents is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	doccalls.Check(t, command, "cloudcore", 12)
}

// TestRemediesNameCommands: each command that an error, a remedy or an alert names is there, with
// its flags. The words follow the program's name after a colon where it is a noun.
func TestRemediesNameCommands(t *testing.T) {
	doccalls.CheckTexts(t, command(), "cloudcore", 5, "carries", "has", "is", "runs", "takes")
}

// TestReference: the page has every command with its flags, and every field of the configuration.
func TestReference(t *testing.T) {
	t.Chdir("../../../docs/reference")
	golden.Check(t, "cloudcore.md", doccalls.Reference(command(), config.DefaultText))
}
