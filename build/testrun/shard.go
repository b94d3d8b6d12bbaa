package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// A linked is the test binary of a package whose tests run in parts, each in its own process: `go
// test` would link it once for each part.
type linked struct {
	once sync.Once
	file string
	err  error
}

// binaryFlags are flags of go test that a test binary accepts too, with the prefix "test." (go help
// testflag); true for flags with a value.
var binaryFlags = map[string]bool{
	"count": true, "cpu": true, "parallel": true, "run": true, "skip": true, "timeout": true, "failfast": false, "short": false, "v": false,
}

// forBinary translates flags of go test into those of a test binary, a value always after "=";
// ok is false if one is for the compiler, or unknown.
func forBinary(flags []string) (translated []string, ok bool) {
	for i := 0; i < len(flags); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(flags[i], "-"), "=")
		takes, known := binaryFlags[name]
		if !known || !strings.HasPrefix(flags[i], "-") {
			return nil, false
		}
		if takes && !given {
			if i++; i == len(flags) {
				return nil, false
			}
			value, given = flags[i], true
		}
		if given {
			value = "=" + value
		}
		translated = append(translated, "-test."+name+value)
	}
	return translated, true
}

// shards runs packages in parts.
type shards struct {
	module, self, temp, ldflags string

	mu       sync.Mutex
	binaries map[string]*linked // by package
}

func (s *shards) of(pkg string) *linked {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.binaries == nil {
		s.binaries = map[string]*linked{}
	}
	b := s.binaries[pkg]
	if b == nil {
		b = &linked{file: filepath.Join(s.temp, logName(pkg)+".test")}
		s.binaries[pkg] = b
	}
	return b
}

// command runs one part of a package's tests by a binary that all parts share, and converts its
// output as `go test -json` does. ok is false if only go test itself can run them.
func (s *shards) command(ctx context.Context, p phase, flags []string, graph string, out io.Writer) (cmd *exec.Cmd, ok bool, err error) {
	translated, ok := forBinary(flags)
	if !ok || p.shard == "" || len(p.packages) != 1 {
		return nil, false, nil
	}
	pkg := p.packages[0]
	b := s.of(pkg)
	b.once.Do(func() {
		link := exec.CommandContext(ctx, "go", "test", "-c", "-o", b.file, "-ldflags", s.ldflags, "-debug-actiongraph", graph, "./"+pkg)
		link.Stdout, link.Stderr = out, out
		if err := link.Run(); err != nil {
			b.err = fmt.Errorf("linking the tests of %s: %w", pkg, err)
		}
	})
	if b.err != nil {
		return nil, true, b.err
	}
	args := []string{"tool", "test2json", "-t", "-p", s.module + "/" + pkg, s.self, "exec", b.file, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + p.binaryTimeout()}
	cmd = exec.Command("go", append(args, translated...)...)
	cmd.Dir = pkg // as go test does
	return cmd, true, nil
}
