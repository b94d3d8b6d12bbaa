package protocol

import (
	"strings"
	"testing"
)

func TestCommon(t *testing.T) {
	for _, c := range []struct {
		a, b Window
		want uint32 // 0 without one
	}{
		{Ours(), Ours(), Current},
		{Window{2, 3}, Window{3, 4}, 3},
		{Window{2, 3}, Stated(2, 0), 2}, // an end of before there were windows
		{Window{2, 3}, Stated(3, 1), 3},
		{Window{2, 3}, Window{4, 5}, 0},
		{Window{4, 5}, Stated(3, 0), 0},
		{Window{2, 3}, Window{3, 2}, 0}, // a lie
		{Window{3, 2}, Window{2, 3}, 0},
		{Window{2, 3}, Stated(1<<32-1, 1), 3},
	} {
		for _, both := range [][2]Window{{c.a, c.b}, {c.b, c.a}} {
			got, ok := both[0].Common(both[1])
			if ok != (c.want != 0) || ok && got != c.want {
				t.Errorf("%v and %v: %d, %v; want %d", both[0], both[1], got, ok, c.want)
			}
		}
	}
}

// A release speaks its own version and the one before, so that cloud and devices may be upgraded in
// either order.
func TestOursSpeaksTheOneBefore(t *testing.T) {
	ours := Ours()
	if _, ok := ours.Common(Window{Min: Current, Max: Current + 1}); !ok {
		t.Error("the next release has no common version with this one")
	}
	if want := (Window{Min: max(2, Current-1), Max: Current}); ours != want { // 2 is the first
		t.Errorf("the window is %v, want %v: this version and the one before", ours, want)
	}
}

func TestParseFeatures(t *testing.T) {
	f, err := ParseFeatures([]string{"streams", "a.b-2", "streams"})
	if err != nil || !f.Has(FeatureStreams) || !f.Has("a.b-2") || f.Has("other") || len(f) != 2 {
		t.Errorf("%v, %v", f, err)
	}
	for name, list := range map[string][]string{
		"empty":   {""},
		"capital": {"Streams"},
		"line":    {"a\nb"},
		"long":    {strings.Repeat("a", MaxFeatureBytes+1)},
		"many":    strings.Fields(strings.Repeat("a ", MaxFeatures+1)),
	} {
		if f, err := ParseFeatures(list); err == nil {
			t.Errorf("%s: %q", name, f)
		}
	}
}
