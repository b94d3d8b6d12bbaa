package main

import (
	"testing"

	"github.com/skerry-io/skerry/tests/doccalls"
)

// TestDocumentedCommands: each call of edgecore in the pages for users is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	doccalls.Check(t, command, "edgecore", 12, "README.md", "docs/diagnostics.md", "docs/drain.md", "docs/install.md", "docs/maintenance.md", "docs/troubleshooting.md")
}
