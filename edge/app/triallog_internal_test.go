package app

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The file has the end of what was written, within its bound, and no more is written once all of it
// exceeds maxTrialWrites.
func TestTailFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := newTailFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.file.Close()
	line := func(n int) []byte { return fmt.Appendf(nil, "line %06d %080d\n", n, 0) }
	read := func() []byte {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > maxTrialLog {
			t.Fatalf("the file has %d bytes", len(raw))
		}
		return raw
	}
	n := 0
	for ; n < 2000; n++ {
		if _, err := f.Write(line(n)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.HasSuffix(read(), line(n-1)) {
		t.Errorf("the last line is missing")
	}
	for ; n < 2*maxTrialWrites/len(line(0)); n++ {
		if wrote, err := f.Write(line(n)); err != nil || wrote != len(line(n)) {
			t.Fatal(wrote, err)
		}
	}
	before := read()
	if _, err := f.Write(line(n)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, read()) || f.all > maxTrialWrites+maxTrialLog {
		t.Errorf("%d bytes were written in all, and it goes on", f.all)
	}
}
