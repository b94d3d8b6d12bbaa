package vm

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"
)

// archive writes a cpio archive in the form that the kernel unpacks at its start ("newc",
// Documentation/driver-api/early-userspace/buffer-format.rst of Linux).
type archive struct {
	to     *bufio.Writer
	number int
	dirs   map[string]bool
	at     int
}

func newArchive(to io.Writer) *archive {
	return &archive{to: bufio.NewWriterSize(to, 1<<20), dirs: map[string]bool{".": true, "": true}}
}

const (
	modeDir     = 0o040755
	modeFile    = 0o100755
	modeConsole = 0o020600 // a character device
)

func (a *archive) file(at string, content []byte) error {
	name := strings.TrimPrefix(path.Clean(at), "/")
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	return a.entry(name, modeFile, content, 0, 0)
}

func (a *archive) dir(name string) error {
	if a.dirs[name] {
		return nil
	}
	a.dirs[name] = true
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	return a.entry(name, modeDir, nil, 0, 0)
}

func (a *archive) entry(name string, mode uint32, content []byte, major, minor uint32) error {
	a.number++
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.number, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0, name)
	if err := a.write([]byte(head)); err != nil {
		return err
	}
	return a.write(content)
}

// write writes bytes padded to a multiple of four.
func (a *archive) write(raw []byte) error {
	for _, part := range [][]byte{raw, make([]byte, (4-(a.at+len(raw))%4)%4)} {
		n, err := a.to.Write(part)
		if a.at += n; err != nil {
			return fmt.Errorf("writing the guest's files: %w", err)
		}
	}
	return nil
}

// close ends the archive. The console is there before anything is mounted.
func (a *archive) close() error {
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "bin"} {
		if err := a.dir(d); err != nil {
			return err
		}
	}
	if err := a.entry("dev/console", modeConsole, nil, 5, 1); err != nil {
		return err
	}
	if err := a.entry("TRAILER!!!", 0, nil, 0, 0); err != nil {
		return err
	}
	if err := a.to.Flush(); err != nil {
		return fmt.Errorf("writing the guest's files: %w", err)
	}
	return nil
}
