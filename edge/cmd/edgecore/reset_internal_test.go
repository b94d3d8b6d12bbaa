package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// An edgecore that can't be reached may still run: one without a socket holds its store.
func TestResetIsRefusedWhileEdgecoreRuns(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "edgecore.yaml")
	text := fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\ndataDir: %[1]s\nmodules:\n  edgeAPI: {socket: \"\"}\n"+
		"  edged: {rootDir: %[1]s/kubelet, kubelet: {failCgroupV1: false}}\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	reset := func() (string, error) {
		var out strings.Builder
		c := command()
		c.SetArgs([]string{"reset", "--config", file}) // without --yes: this machine is not at risk
		c.SetOut(&out)
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "store.db"), KeyFile: filepath.Join(dir, "store.key")})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := reset(); err == nil || !strings.Contains(err.Error(), "edgecore runs") || !strings.Contains(err.Error(), "systemctl stop edgecore-names.socket edgecore") {
		t.Errorf("while the store is open: %v\n%s", err, out)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := reset(); err == nil || !strings.Contains(err.Error(), "Say --yes") {
		t.Errorf("once it is closed: %v\n%s", err, out)
	}
}
