// Package program finds other programs of the device, and runs one in place of this process.
//
// It owns nothing, and refuses nothing. Its functions may be called from any goroutine.
package program

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// Find returns the path of a program in $PATH.
func Find(name string) (string, error) { return exec.LookPath(name) }

// Replace runs the program at path in place of this process. It returns only where that fails.
func Replace(path string, args, env []string) error {
	if err := syscall.Exec(path, append([]string{path}, args...), env); err != nil {
		return fmt.Errorf("running %s: %w", path, err)
	}
	return nil
}

// Output runs a program of the PATH and returns the end of what it wrote to both outputs, at most so
// many bytes.
func Output(ctx context.Context, most int, name string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, path, args...)
	c.WaitDelay = time.Second // what it started may hold its output open
	end := &last{most: most}
	c.Stdout, c.Stderr = end, end
	err = c.Run()
	return end.b, err
}

// last keeps the end of what is written to it.
type last struct {
	most int
	b    []byte
}

func (l *last) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if len(l.b) > 2*l.most {
		l.b = append(l.b[:0], l.b[len(l.b)-l.most:]...)
	}
	return len(p), nil
}
