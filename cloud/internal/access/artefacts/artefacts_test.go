package artefacts_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/access/artefacts"
)

// A device gets a file from the offset that it asks for, and only files of the directory.
func TestAccept(t *testing.T) {
	dir := t.TempDir()
	want := make([]byte, 200_000)
	_, _ = rand.Read(want)
	for name, data := range map[string][]byte{"edgecore-v1.4.0-amd64.zst": want, ".hidden": []byte("x")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := artefacts.New(dir)
	for _, offset := range []int{0, 1, 150_000, len(want)} {
		conn, err := s.Accept(t.Context(), "edge1", "artefact/edgecore-v1.4.0-amd64.zst/"+strconv.Itoa(offset))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, want[offset:]) {
			t.Errorf("from %d: %d bytes, %v", offset, len(got), err)
		}
	}
	for target, why := range map[string]string{
		"artefact/none/0":                           "no artefact none",
		"artefact/../passwd/0":                      "no name of an artefact",
		"artefact/.hidden/0":                        "no name of an artefact",
		"artefact/a\nb/0":                           "no name of an artefact",
		"artefact/edgecore-v1.4.0-amd64.zst":        "no name of an artefact",
		"artefact/edgecore-v1.4.0-amd64.zst/-1":     "no offset",
		"artefact/edgecore-v1.4.0-amd64.zst/01":     "no offset",
		"artefact/edgecore-v1.4.0-amd64.zst/1/2":    "no offset",
		"artefact/edgecore-v1.4.0-amd64.zst/300000": "has 200000 bytes",
		"artefact/link/0":                           "can't read artefact link",
		"artefact/folder/0":                         "is no file",
	} {
		conn, err := s.Accept(t.Context(), "edge1", target)
		if err == nil {
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: want %q, got %v", target, why, err)
		}
	}
	if conn, err := artefacts.New("").Accept(t.Context(), "edge1", "artefact/x/0"); err == nil {
		conn.Close()
		t.Error("without a directory a stream is taken")
	}
}

// One device reads two files at once, all of them 32; a stream that is closed makes room.
func TestStreamsAreBounded(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := artefacts.New(dir)
	var open []io.Closer
	for node := range 16 {
		for range 2 {
			conn, err := s.Accept(t.Context(), nodeName(node), "artefact/file/0")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, conn)
		}
	}
	if _, err := s.Accept(t.Context(), nodeName(0), "artefact/file/0"); err == nil || !strings.Contains(err.Error(), "this device") {
		t.Errorf("a third of one device: %v", err)
	}
	if _, err := s.Accept(t.Context(), nodeName(99), "artefact/file/0"); err == nil || !strings.Contains(err.Error(), "cloudcore sends 32") {
		t.Errorf("one more: %v", err)
	}
	for _, c := range open {
		c.Close()
	}
	for s.Count() > 0 { // the senders notice
		runtime.Gosched()
	}
	conn, err := s.Accept(t.Context(), nodeName(0), "artefact/file/0")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A device that takes no byte loses its place, one that is slow does not.
func TestStalledDeviceLosesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		s := artefacts.New(dir)
		conn, err := s.Accept(t.Context(), "edge1", "artefact/file/0")
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(4 * time.Minute)
			if n, err := io.ReadFull(conn, make([]byte, 64<<10)); err != nil {
				t.Fatalf("a slow device: %d bytes, %v", n, err)
			}
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if n := s.Count(); n != 0 {
			t.Errorf("%d streams are open", n)
		}
		conn.Close()
	})
}

func nodeName(n int) types.NodeName { return types.NodeName("edge" + strconv.Itoa(n)) }
