package binary

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Libraries are the files that the dynamic loader takes for a program of this machine (ldd(1)), the
// loader among them; empty for a static one.
func Libraries(ctx context.Context, program string) (all []string, err error) {
	out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return nil, nil
		}
		return nil, fmt.Errorf("asking which libraries %s needs: %w", program, err)
	}
	for _, word := range strings.Fields(string(out)) {
		if filepath.IsAbs(word) {
			all = append(all, word)
		}
	}
	return all, nil
}
