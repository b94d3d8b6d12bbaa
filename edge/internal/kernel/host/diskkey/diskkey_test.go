package diskkey_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
)

const text = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func TestRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "disk"), []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		config      diskkey.Config
		credentials string
		want        string // of the error
	}{
		"a command":                   {diskkey.Config{Command: "echo " + text}, "", ""},
		"its stderr is reported":      {diskkey.Config{Command: "echo no TPM here >&2; exit 3"}, "", "no TPM here"},
		"the key is not in the error": {diskkey.Config{Command: "echo " + text + "00"}, "", "does not give 32 bytes"},
		"output without end":          {diskkey.Config{Command: "yes | head -c 1000000"}, "", "does not give 32 bytes"},
		"nothing":                     {diskkey.Config{Command: "true"}, "", "does not give 32 bytes"},
		"a credential":                {diskkey.Config{Credential: "disk"}, dir, ""},
		"no such credential":          {diskkey.Config{Credential: "other"}, dir, "no such file"},
		"not run by systemd":          {diskkey.Config{Credential: "disk"}, "", "LoadCredentialEncrypted=disk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(diskkey.Directory, tc.credentials)
			key, err := diskkey.Read(t.Context(), tc.config)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), text) {
					t.Errorf("%v, want %q and not the key", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sealed, err := key.Seal("a", []byte("content"))
			if err != nil || strings.Contains(string(sealed), "content") {
				t.Fatalf("%q, %v", sealed, err)
			}
			if content, err := key.Open("a", sealed); err != nil || string(content) != "content" {
				t.Errorf("%q, %v", content, err)
			}
			if _, err := key.Open("b", sealed); err == nil {
				t.Error("it opens under another name")
			}
		})
	}
	if key, err := diskkey.Read(t.Context(), diskkey.Config{}); key != nil || err != nil {
		t.Errorf("without a configuration: %v, %v", key, err)
	}
}

// A command that hangs is killed with its child processes when its caller cancels.
func TestCommandThatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	fifo := filepath.Join(t.TempDir(), "started")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := diskkey.Read(ctx, diskkey.Config{Command: "echo x >" + fifo + "; sleep 1000 & wait"})
		done <- err
	}()
	if _, err := os.ReadFile(fifo); err != nil { // until the command has written
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("it gave a key")
	}
}

func TestInMemory(t *testing.T) {
	if err := diskkey.InMemory("/dev/shm/skerry-diskkey-test"); err != nil {
		t.Error(err)
	}
	defer os.Remove("/dev/shm/skerry-diskkey-test")
	if err := diskkey.InMemory("/proc/self"); err == nil || !strings.Contains(err.Error(), "file system of memory") {
		t.Errorf("/proc: %v", err)
	}
}
