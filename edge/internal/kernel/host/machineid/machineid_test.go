package machineid_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/host/machineid"
)

func TestRead(t *testing.T) {
	const uuid, serial = "sys/class/dmi/id/product_uuid", "sys/firmware/devicetree/base/serial-number"
	read := func(files map[string]string) string {
		root := t.TempDir()
		for name, text := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return machineid.Read(root)
	}
	server := read(map[string]string{uuid: "4C4C4544-0042-3510-8052-B4C04F4A3332\n"})
	board := read(map[string]string{serial: "10000000abcdef01\x00"})
	if len(server) != 16 || len(board) != 16 || server == board {
		t.Fatalf("%q %q", server, board)
	}
	// As a later kernel prints it.
	if again := read(map[string]string{uuid: "4c4c4544-0042-3510-8052-b4c04f4a3332"}); again != server {
		t.Errorf("%q, want %q", again, server)
	}
	if both := read(map[string]string{uuid: "03000200-0400-0500-0006-000700080009\n", serial: "10000000abcdef01\x00"}); both != board {
		t.Errorf("a name of many machines counts: %q", both)
	}
	for _, none := range []string{"", "\n", "00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "To be filled by O.E.M.", "Default string", "0000000000000000\x00", "x"} {
		if id := read(map[string]string{uuid: none}); id != "" {
			t.Errorf("%q is %q", none, id)
		}
	}
	if id := read(nil); id != "" {
		t.Errorf("no firmware is %q", id)
	}
}
