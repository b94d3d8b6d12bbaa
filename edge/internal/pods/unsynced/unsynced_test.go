package unsynced_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/pods/unsynced"
)

// Files that a power cut has left empty, torn or full of zeros are deleted; all others stay.
func TestDelete(t *testing.T) {
	cni, kubelet := t.TempDir(), t.TempDir()
	pulled := filepath.Join(kubelet, "image_manager", "pulled")
	for path, content := range map[string]string{
		filepath.Join(cni, "net-empty-eth0"):      "",
		filepath.Join(cni, "net-torn-eth0"):       `{"kind":"cniCacheV1","resu`,
		filepath.Join(cni, "net-zeros-eth0"):      strings.Repeat("\x00", 512),
		filepath.Join(cni, "net-good-eth0"):       `{"kind":"cniCacheV1"}` + "\n",
		filepath.Join(cni, "net-large-eth0"):      strings.Repeat("x", 1<<20+1),
		filepath.Join(cni, "directory", "inside"): "",
		filepath.Join(pulled, "sha256-empty"):     "",
		filepath.Join(pulled, "sha256-good"):      `{"kind":"ImagePulledRecord"}`,
		filepath.Join(pulled, "of-another"):       "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := unsynced.All(kubelet)
	all[0].Dir = cni
	deleted, err := unsynced.Delete(all) // pulling does not exist
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		filepath.Join(cni, "net-empty-eth0"), filepath.Join(cni, "net-torn-eth0"), filepath.Join(cni, "net-zeros-eth0"), filepath.Join(pulled, "sha256-empty"),
	}
	if diff := cmp.Diff(want, deleted); diff != "" {
		t.Error(diff)
	}
	for _, path := range deleted {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if again, err := unsynced.Delete(all); len(again) > 0 || err != nil {
		t.Errorf("deleted %v, %v", again, err)
	}
}
