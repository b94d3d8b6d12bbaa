package licence_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/skerry-io/skerry/build/tools/release/licence"
)

func TestIDs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"LICENSE":     "Apache License\n   Version 2.0, January 2004\n",
		"LICENSE-MIT": "Permission is hereby granted, free of charge, to any person\nobtaining a copy of this software",
		"COPYING":     "* Redistributions in binary form must reproduce the above\n* Neither the name of Google",
		"NOTICE":      "Copyright",
		"main.go":     "Mozilla Public License Version 2.0",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := licence.IDs(dir)
	if want := []string{"Apache-2.0", "BSD-3-Clause", "MIT"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if got := licence.Dir("/cache", "github.com/BurntSushi/toml@v1.0.0"); got != "/cache/github.com/!burnt!sushi/toml@v1.0.0" {
		t.Error(got)
	}
}
