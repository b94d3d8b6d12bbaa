package doccalls

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIn(t *testing.T) {
	page := "Text with `tool prose`.\n\n| a | b |\n| `tool one --flag` | see `other x`, then `tool two` |\n```\ntool three # comment\nother tool four\n```\n"
	if diff := cmp.Diff([]string{"one --flag", "two", "three # comment\n"}, in(page, "tool")); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}
