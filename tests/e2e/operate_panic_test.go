package e2e_test

import (
	"context"
	"debug/elf"
	"debug/gosym"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// nilRead is machine code that reads address 0, which is a nil pointer dereference for Go.
var nilRead = map[string][]byte{
	"amd64": {0x31, 0xc0, 0x8b, 0x00},                         // xor eax, eax; mov eax, [rax]
	"arm64": {0x00, 0x00, 0x80, 0xd2, 0x00, 0x00, 0x40, 0xf9}, // mov x0, #0; ldr x0, [x0]
}

// spoilFunction overwrites the beginning of a function in the memory of a running Go program, as a
// fault of the memory may: each call of it panics, until it is repaired or the test ends. Nothing
// in the program is made for it.
func (s *system) spoilFunction(host, program, function string) (repair func()) {
	s.T.Helper()
	code := nilRead[runtime.GOARCH]
	dir := s.processDir(host, program)
	file, err := elf.Open(filepath.Join(dir, "exe"))
	s.Check(err)
	defer file.Close()
	text := file.Section(".text")
	raw, err := file.Section(".gopclntab").Data() // programs have no other symbols
	s.Check(err)
	symbols, err := gosym.NewTable(nil, gosym.NewLineTable(raw, text.Addr))
	s.Check(err)
	f := symbols.LookupFunc(function)
	if f == nil || code == nil || file.Type != elf.ET_EXEC {
		s.T.Fatalf("no %s is found in %s for %s", function, program, runtime.GOARCH)
	}
	memory, err := os.OpenFile(filepath.Join(dir, "mem"), os.O_RDWR, 0) // of this process, also if its number is used again
	s.Check(err)
	before := make([]byte, len(code))
	_, err = memory.ReadAt(before, int64(f.Entry))
	s.Check(err)
	repair = sync.OnceFunc(func() {
		_, _ = memory.WriteAt(before, int64(f.Entry)) // it has ended where this fails
		_ = memory.Close()
	})
	s.T.Cleanup(repair)
	_, err = memory.WriteAt(code, int64(f.Entry))
	s.Check(err)
	return repair
}

// processDir is the directory of a host's program in its /proc.
func (s *system) processDir(host, program string) string {
	s.T.Helper()
	found, err := filepath.Glob(s.path(host, "proc/[0-9]*/comm"))
	s.Check(err)
	for _, comm := range found {
		if name, err := os.ReadFile(comm); err == nil && strings.TrimSpace(string(name)) == program {
			return filepath.Dir(comm)
		}
	}
	s.T.Fatalf("no %s runs on %s", program, host)
	return ""
}

// panicOnce has the worker of cloudcore that takes samples of edge1 panic: its link ends, and comes
// back.
func (s *system) panicOnce() {
	s.T.Helper()
	replica, err := s.servingReplica(s.T.Context(), "edge1")
	s.Check(err)
	d, err := s.deviceStatus(s.T.Context(), "edge1")
	s.Check(err)
	repair := s.spoilFunction(replica, "cloudcore", "github.com/skerry-io/skerry/cloud/internal/access/nodemetrics.(*Metrics).take")
	s.WaitFor("a panic that "+replica+" recovers from", func(ctx context.Context) error {
		body, err := s.scrape(ctx, replica)
		if err == nil && !strings.Contains(body, `skerry_recovered_panics_total{place="hub"}`) {
			err = errors.New("it has had none")
		}
		return err
	})
	repair()
	s.WaitFor("the next link of edge1", func(ctx context.Context) error {
		now, err := s.deviceStatus(ctx, "edge1")
		if err == nil && (!now.Link.Linked || now.Link.Epoch <= d.Link.Epoch) {
			err = errors.New("the link is the old one, or there is none")
		}
		return err
	})
}
