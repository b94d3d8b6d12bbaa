// Package program finds other programs of the device, and runs one in place of this process.
//
// It owns no state, and refuses no program. Its functions may be called from any goroutine.
package program

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Find returns the path of a program in $PATH.
func Find(name string) (string, error) { return exec.LookPath(name) }

// Replace runs the program at path in place of this process. It returns only where that fails. Of
// two values of a variable the last counts, as for os/exec; many programs would take the first.
func Replace(path string, args, env []string) error {
	last := map[string]int{}
	for i, variable := range env {
		name, _, _ := strings.Cut(variable, "=")
		last[name] = i
	}
	var once []string
	for i, variable := range env {
		if name, _, _ := strings.Cut(variable, "="); last[name] == i {
			once = append(once, variable)
		}
	}
	env = once
	if err := syscall.Exec(path, append([]string{path}, args...), env); err != nil {
		return fmt.Errorf("running %s: %w", path, err)
	}
	return nil
}

// Output runs a program of the PATH and returns the end of both its outputs, at most so many bytes.
func Output(ctx context.Context, most int, name string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, path, args...)
	c.WaitDelay = time.Second // its children may hold its output open
	end := &last{most: most}
	c.Stdout, c.Stderr = end, end
	err = c.Run()
	return end.b, err
}

// last keeps the end of its input.
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
