// Package program finds other programs of the device, and runs one in place of this process.
//
// It owns nothing, and refuses nothing. Its functions may be called from any goroutine.
package program

import (
	"fmt"
	"os/exec"
	"syscall"
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
