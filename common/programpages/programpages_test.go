package programpages

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// entry is a mapping as the kernel prints it.
func entry(head string, rss, anonymous int) string {
	return fmt.Sprintf("%s\nSize: 4096 kB\nRss: %d kB\nPrivate_Dirty: %d kB\nAnonymous: %d kB\nTHPeligible: 0\nVmFlags: rd ex mr mw me sd\n",
		head, rss, rss, anonymous)
}

func TestClean(t *testing.T) {
	text := strings.Join([]string{
		entry("00400000-00800000 r-xp 00000000 fe:00 17 /usr/bin/edgecore", 3000, 0),
		entry("00800000-00c00000 r--p 00400000 fe:00 17 /usr/bin/edgecore", 1000, 0),
		entry("00c00000-00d00000 r--p 00800000 fe:00 17 /usr/bin/edgecore", 100, 100), // relocated when the program started
		entry("00d00000-00e00000 rw-p 00900000 fe:00 17 /usr/bin/edgecore", 500, 0),
		entry("00e00000-00f00000 r--s 00900000 fe:00 17 /usr/bin/edgecore", 500, 0),
		entry("00f00000-00f10000 rw-p 00000000 00:00 0", 60, 60),
		entry("c000000000-c004000000 r--p 00000000 fe:00 18 /var/lib/a store", 60, 0),
	}, "")
	got, err := clean([]byte(text), "/usr/bin/edgecore", private)
	if err != nil {
		t.Fatal(err)
	}
	want := []mapping{{0x400000, 0x800000, 3000 << 10}, {0x800000, 0xc00000, 1000 << 10}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("mappings (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"00400000 r-xp 0 0 0\n", "zz-ff r-xp 0 0 0 /x\n", "ff-00 r-xp 0 0 0 /x\n", "r-xp\n", "00-ff r-xp 0 0 0 /x\nRss: many kB\n"} {
		if _, err := clean([]byte(bad), "/x", private); err == nil {
			t.Errorf("%q was taken for a mapping", bad)
		}
	}
}

// A process runs on after the release of its pages, and has fewer pages of its program then.
func TestRelease(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	resident := func() (sum int) {
		maps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		all, err := clean(maps, program, private)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			sum += m.resident
		}
		return sum
	}
	data, err := os.ReadFile(program) // so that much of it is in the page cache, and would be mapped around each fault
	if err != nil || !bytes.HasPrefix(data, []byte("\x7fELF")) {
		t.Fatal("the program can't be read", err)
	}
	before := resident()
	n, err := Release()
	if err != nil {
		t.Fatal(err)
	}
	after := resident()
	if n == 0 || after >= before {
		t.Errorf("%d bytes were given back: %d were resident, %d are", n, before, after)
	}
	if got := fmt.Sprint(strings.Fields(" what was  dropped is read again ")); got != "[what was dropped is read again]" {
		t.Error(got)
	}
}

func FuzzClean(f *testing.F) {
	f.Add([]byte(entry("00400000-00800000 r-xp 00000000 fe:00 17 /x", 3000, 0)))
	f.Add([]byte("00400000-00800000 r-xp 0 0 0 /x\nAnonymous: 9999999999999999999 kB\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := clean(text, "/x", private)
		for _, m := range all {
			if err != nil || m.end < m.start {
				t.Errorf("%v beside the error %v", m, err)
			}
		}
	})
}

// A file that is mapped to read and shared is read on after its pages were given back; bytes
// written to it are not lost.
func TestReleaseFile(t *testing.T) {
	path := t.TempDir() + "/file"
	const size = 1 << 20
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(data) }()
	sum := func() (n int) {
		for _, b := range data {
			n += int(b)
		}
		return n
	}
	if got := sum(); got != size {
		t.Fatal(got)
	}
	if _, err := f.WriteAt([]byte{2}, 5000); err != nil { // as bbolt writes: not through the mapping
		t.Fatal(err)
	}
	if n, err := ReleaseFile(path); err != nil || n != size {
		t.Errorf("%d bytes were given back, %v", n, err)
	}
	if n, err := ReleaseFile(path); err != nil || n != 0 {
		t.Errorf("%d bytes are resident after that, %v", n, err)
	}
	if got := sum(); got != size+1 {
		t.Errorf("the file has changed: %d", got)
	}
}
