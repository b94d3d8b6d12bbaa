package main

import "testing"

func TestParseRate(t *testing.T) {
	for s, want := range map[string]uint64{"": 0, "256kbit": 256_000, "2Mbit": 2_000_000, "1.5mbit": 1_500_000, "1gbit": 1_000_000_000, "64000bit": 64_000} {
		if got, err := parseRate(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"256", "fast", "-1kbit", "kbit", "NaNkbit", "9999999gbit", "1kbyte"} {
		if got, err := parseRate(s); err == nil {
			t.Errorf("%q is taken for %d", s, got)
		}
	}
}

func TestParseLoss(t *testing.T) {
	for s, want := range map[string]float64{"": 0, "10%": 0.1, "0.5%": 0.005, "100%": 1} {
		if got, err := parseLoss(s); err != nil || got != want {
			t.Errorf("%q: %g, %v; want %g", s, got, err, want)
		}
	}
	for _, s := range []string{"10", "-1%", "101%", "%", "NaN%"} {
		if got, err := parseLoss(s); err == nil {
			t.Errorf("%q is taken for %g", s, got)
		}
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote("it's"), `'it'\''s'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
