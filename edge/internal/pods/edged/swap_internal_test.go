package edged

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The kubelet ends where swap is on, and with it edgecore: it waits instead, with the remedy.
func TestSwapOff(t *testing.T) {
	const heading = "Filename\tType\tSize\tUsed\tPriority\n"
	for name, test := range map[string]struct {
		swaps string // "": no file
		fail  bool
		want  string
	}{
		"off":                {heading, true, ""},
		"a kernel without":   {"", true, ""},
		"on":                 {heading + "/dev/zram0 partition 1024 0 100\n", true, "swapoff -a"},
		"on, and permitted":  {heading + "/dev/zram0 partition 1024 0 100\n", false, ""},
		"on, two partitions": {heading + "/dev/sda2 partition 1 0 -2\n/dev/sdb2 partition 1 0 -3\n", true, "failSwapOn: false"},
	} {
		file := filepath.Join(t.TempDir(), "swaps")
		if test.swaps != "" {
			if err := os.WriteFile(file, []byte(test.swaps), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := swapOff(file, test.fail)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
