package main

import (
	"testing"

	"github.com/skerry-io/skerry/tests/doccalls"
)

// TestDocumentedCommands: each call of cloudcore in the pages for users is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	doccalls.Check(t, command, "cloudcore", 12, "README.md", "docs/install.md", "docs/maintenance.md", "docs/troubleshooting.md")
}
