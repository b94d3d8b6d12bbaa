package object_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Labels equals its map for every content.
func TestLabels(t *testing.T) {
	for _, all := range []map[string]string{
		nil,
		{"app": "x"},
		{"tier": "y", "app": "x", "kubernetes.io/service-name": "web"},
		{"": "", "empty": "", "a\x00b": "=,\x01"},
		{strings.Repeat("k", 317): strings.Repeat("v", 200), "after": "it"},
	} {
		l := object.NewLabels(all)
		if diff := cmp.Diff(all, l.Map()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		for k, want := range all {
			if got, ok := l.Lookup(k); !ok || got != want || !l.Has(k) || l.Get(k) != want {
				t.Errorf("%q is %q, %v; want %q", k, got, ok, want)
			}
		}
		if got, ok := l.Lookup("other"); ok || got != "" || l.Has("other") || l.Get("other") != "" {
			t.Errorf("a label that %v has not is %q, %v", all, got, ok)
		}
	}
	if object.NewLabels(map[string]string{"a": "1", "b": "2"}) != object.NewLabels(map[string]string{"b": "2", "a": "1"}) {
		t.Error("equal labels differ")
	}
}
