// Package healthcheck runs the site's own health checks: the programs in a directory.
//
// It owns no state. It refuses files that are not executables owned by root, runs one program at a
// time, each for a bounded time, and passes no argument to it. Its functions may be called by any
// goroutine.
package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// Most bounds the programs of a directory; those behind it in the order of their names are
	// an error.
	Most = 16
	// timeout bounds one program: it is killed then, and has failed.
	timeout = 30 * time.Second
)

// Result is one program's exit code; -1 if it was killed or could not be executed.
type Result struct {
	Name string
	Code int
}

// Run runs the programs of a directory in the order of their names. A missing directory counts as
// empty.
func Run(ctx context.Context, dir string) ([]Result, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading health checks: %w", err)
	}
	if len(entries) > Most {
		return nil, fmt.Errorf("%s has %d entries, at most %d health checks may be", dir, len(entries), Most)
	}
	var results []Result
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		results = append(results, Result{e.Name(), run(ctx, filepath.Join(dir, e.Name()))})
	}
	return results, nil
}

func run(ctx context.Context, path string) int {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c := exec.CommandContext(ctx, path)
	c.Env, c.Dir = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children are killed too
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	if err := c.Run(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		return -1
	}
	return 0
}
