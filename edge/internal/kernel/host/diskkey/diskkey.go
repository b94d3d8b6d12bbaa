// Package diskkey has the key that seals secrets on the device's disk, without being stored there
// itself: it comes from a command, or is a credential that systemd has decrypted.
//
// It owns the source of the key, and the sealing of files. It refuses a key that is not 32 bytes,
// and never makes one: a device that lost it joins again. A Key is never changed; its methods may
// be called by many goroutines at once.
package diskkey

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/aes"
)

// Directory is the environment variable with the directory of a service's credentials
// (systemd.exec(5), Credentials).
const Directory = "CREDENTIALS_DIRECTORY"

const (
	patience = time.Minute // for the command: a TPM takes a second, a key server behind a slow network more
	maxText  = 4 << 10     // bytes of the command's output, and of its complaint, that are kept; the rest is dropped
)

// Config is the source of the key; at most one of them. Neither: there is no such key.
type Config struct {
	Command    string // for /bin/sh; prints the key in hexadecimal
	Credential string // its name in the directory that systemd has made for this process
}

// Key is the key.
type Key struct {
	raw  []byte
	seal value.Transformer
}

// Read gets the key; nil if the configuration names no source. The command has its output read for
// a minute at most and is killed then, with its process group.
func Read(ctx context.Context, c Config) (*Key, error) {
	var text []byte
	var err error
	var from string
	switch {
	case c.Command != "":
		from = "the command for the disk's key"
		text, err = run(ctx, c.Command)
	case c.Credential != "":
		from = "the credential " + c.Credential
		text, err = credential(c.Credential)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	raw, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(raw) != 32 {
		return nil, fmt.Errorf("%s does not give 32 bytes in hexadecimal (openssl rand -hex 32)", from) // without its output: it is secret
	}
	// A key of its own for each file, derived from a random nonce: no bound on how many of them
	// one key may seal.
	seal, err := aes.NewHKDFExtendedNonceGCMTransformer(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return &Key{raw, seal}, nil
}

// Bytes are the key itself.
func (k *Key) Bytes() []byte { return bytes.Clone(k.raw) }

// Seal seals content under a name; it can only be opened with that name.
func (k *Key) Seal(name string, content []byte) ([]byte, error) {
	sealed, err := k.seal.TransformToStorage(context.Background(), content, value.DefaultContext("file "+name))
	if err != nil {
		return nil, fmt.Errorf("sealing %s: %w", name, err)
	}
	return sealed, nil
}

// Open opens content sealed by Seal.
func (k *Key) Open(name string, sealed []byte) ([]byte, error) {
	content, _, err := k.seal.TransformFromStorage(context.Background(), sealed, value.DefaultContext("file "+name))
	if err != nil {
		return nil, fmt.Errorf("%s is damaged, or sealed with another key: %w", name, err)
	}
	return content, nil
}

func credential(name string) ([]byte, error) {
	dir := os.Getenv(Directory)
	if dir == "" {
		return nil, fmt.Errorf("systemd has given this process no credentials: run it with systemd-run -P --wait -p LoadCredentialEncrypted=%s, as the service has it", name)
	}
	return os.ReadFile(filepath.Join(dir, name))
}

func run(ctx context.Context, command string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it gave no key within %v", patience))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a descendant that left the group may hold the pipes
	var out, complaint head
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, errors.Join(err, said(complaint.Bytes()))
	}
	return out.Bytes(), nil
}

func said(text []byte) error {
	if s := strings.TrimSpace(string(text)); s != "" {
		return errors.New(s)
	}
	return nil
}

// head keeps the beginning of the written data.
type head struct{ bytes.Buffer }

func (h *head) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), maxText-h.Len())])
	return len(p), nil
}

const (
	tmpfsMagic = 0x01021994 // statfs(2)
	ramfsMagic = 0x858458f6
)

// InMemory makes a directory for root alone whose files are never written to the disk, according to
// its file system: encrypting swap is up to the operator.
func InMemory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of keys: %w", err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("looking at the directory of keys %s: %w", dir, err)
	}
	if fs.Type != tmpfsMagic && uint32(fs.Type) != ramfsMagic {
		return fmt.Errorf("%s is not on a file system of memory (tmpfs): keys would be written to the disk", dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("closing the directory of keys: %w", err)
	}
	return nil
}
