// Package programpages releases the pages of the program's own file that only its start needed, or
// a burst of work, and those of a file that it maps to read.
//
// A large Go program touches most of its code and read-only data once: while its packages
// initialize, register flags, metrics and API types, and open files and connections. The kernel
// keeps all of that in the process, and takes it back only when memory is short. Without a writer
// these pages are copies of the file in the page cache, so the process can let go of them at any
// time (madvise(2), MADV_DONTNEED on a file mapping): a page that is needed again is mapped again,
// without a read as long as the page cache has it.
//
// It is stateless. It refuses every mapping that can be written, or has a page that is no longer
// the file's: one that was relocated at the start, or that a debugger has changed. Its functions
// may be called by many goroutines at once.
package programpages

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// The kinds of mappings, as proc_pid_maps(5) has them.
const (
	private = "p"
	shared  = "s"
)

// mapping is a part of the address space.
type mapping struct {
	start, end uintptr
	resident   int // bytes
}

// Run gives the pages back once the start is over, after settle, and then each interval and
// whenever burst receives: work that comes once in a while touches others. It returns when ctx
// ends. settle and interval must be above 0. also is called each time, for pages of other files.
func Run(ctx context.Context, settle, interval time.Duration, burst <-chan struct{}, also func() error) {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	started := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			started = true
		case <-burst:
			if !started {
				continue // the start is one
			}
		}
		n, err := Release()
		if err == nil {
			err = also()
		}
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Failed to release pages of the program", "err", err)
			return // another attempt would not help
		}
		klog.FromContext(ctx).V(4).Info("Released pages of the program", "bytes", n)
		timer.Reset(interval)
	}
}

// Release drops the program's pages (MADV_DONTNEED) and returns how many bytes were resident.
func Release() (bytes int, err error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("finding the program: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("reading the address space: %w", err)
	}
	all, err := clean(maps, program, private)
	if err != nil {
		return 0, err
	}
	return release(all)
}

// ReleaseFile is Release for a file that the process has mapped to read and shares with its
// writers. The caller must hold the mapping: an address that is unmapped during the call may be
// another's.
func ReleaseFile(path string) (bytes int, err error) {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("reading the address space: %w", err)
	}
	all, err := clean(maps, path, shared)
	if err != nil {
		return 0, err
	}
	return release(all)
}

func release(all []mapping) (bytes int, err error) {
	for _, m := range all {
		// By the system call, since Go has no slice of these bytes; the kernel refuses a range
		// that is not mapped.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return bytes, fmt.Errorf("giving back pages of a file: %w", errno)
		}
		bytes += m.resident
	}
	return bytes, nil
}

// clean finds in the text of /proc/PID/smaps (proc_pid_smaps(5)) the mappings of a file that can't
// be written and have no page of their own.
func clean(smaps []byte, file, kind string) ([]mapping, error) {
	var found []mapping
	var now mapping
	var ours bool
	add := func() {
		if ours {
			found = append(found, now)
		}
	}
	r := bufio.NewReader(bytes.NewReader(smaps))
	for {
		line, err := r.ReadString('\n')
		if err == io.EOF && line == "" {
			add()
			return found, nil
		}
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("reading the address space: %w", err)
		}
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case !strings.HasSuffix(f[0], ":"): // the head of a mapping: start-end perms offset dev inode path
			add()
			if now, ours, err = head(f, file, kind); err != nil {
				return nil, err
			}
		case len(f) == 3 && f[2] == "kB":
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				return nil, fmt.Errorf("reading the address space: %q: %w", line, err)
			}
			switch f[0] {
			case "Rss:":
				now.resident = kb << 10
			case "Anonymous:": // pages of the process itself; dirty ones of the file are the page cache's
				ours = ours && kb == 0
			}
		}
	}
}

func head(f []string, file, kind string) (mapping, bool, error) {
	if len(f) < 5 {
		return mapping{}, false, fmt.Errorf("reading the address space: %q is no mapping", strings.Join(f, " "))
	}
	from, to, _ := strings.Cut(f[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return mapping{}, false, fmt.Errorf("reading the address space: %w", err)
	}
	end, err := strconv.ParseUint(to, 16, 64)
	if err != nil || end < start {
		return mapping{}, false, fmt.Errorf("reading the address space: %q is no range", f[0])
	}
	perms, path := f[1], strings.Join(f[5:], " ")
	return mapping{start: uintptr(start), end: uintptr(end)}, path == file && !strings.Contains(perms, "w") && strings.HasSuffix(perms, kind), nil
}
