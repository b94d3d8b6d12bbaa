package store_test

import (
	"os"
	"os/exec"
	"testing"
)

// The test binary is its own child, for kills and memory faults.
func TestMain(m *testing.M) {
	switch os.Getenv("STORE_TEST_CHILD") {
	case "writer":
		writerChild()
	case "full":
		fullDiskChild()
	default:
		os.Exit(m.Run())
	}
}

func child(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	// One of hundreds that end within a second: collecting garbage would be a fifth of their time.
	cmd.Env = append(os.Environ(), "STORE_TEST_CHILD="+role, "GOGC=off")
	cmd.Stderr = os.Stderr
	return cmd
}
