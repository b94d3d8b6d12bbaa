package main

import (
	"testing"

	"github.com/skerry-io/skerry/tests/doccalls"
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
