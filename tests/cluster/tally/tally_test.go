package tally

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAdd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tally")
	t.Setenv(variable, file)
	Add(Trial) // there is no file
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	Add(Trial)
	Add(ControlPlane)
	if got, err := os.ReadFile(file); err != nil || string(got) != "trials\ncontrol planes\n" {
		t.Errorf("%q, %v", got, err)
	}
}
