package backup_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/setup/backup"
)

func packed(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{}
	names := []string{"store.db", "store.key", "identity/node.pem"}
	for _, name := range names {
		files[name] = filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(files[name], []byte("the content of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := backup.Pack(&out, backup.Manifest{Node: "edge1", Machine: "aa", Version: "v1", Time: time.Unix(1, 0)}, files, names); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	m, err := backup.Unpack(bytes.NewReader(packed(t)), dir)
	if err != nil || m.Node != "edge1" || m.Machine != "aa" || m.Format != backup.Format {
		t.Fatalf("%v %+v", err, m)
	}
	for _, name := range []string{"store.db", "store.key", "identity/node.pem"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(raw) != "the content of "+name {
			t.Errorf("%s: %v %q", name, err, raw)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, err, info)
		}
	}
}

// An archive is complete, and is unpacked into its directory alone.
func TestUnpack_refuses(t *testing.T) {
	whole := packed(t)
	made := func(entries ...*tar.Header) []byte {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		archive := tar.NewWriter(zip)
		for _, h := range entries {
			text := h.Linkname
			if h.Typeflag == tar.TypeReg {
				h.Size, h.Linkname = int64(len(text)), ""
			}
			if err := archive.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				_, _ = archive.Write([]byte(text))
			}
		}
		_, _ = archive.Close(), zip.Close()
		return out.Bytes()
	}
	file := func(name, text string) *tar.Header {
		return &tar.Header{Name: name, Linkname: text, Typeflag: tar.TypeReg, Mode: 0o600}
	}
	manifest := func() *tar.Header { return file("manifest.json", `{"format":1,"node":"edge1"}`) }
	for name, tc := range map[string]struct {
		raw  []byte
		want string
	}{
		"cut off":            {whole[:len(whole)-20], "not whole"},
		"a byte changed":     {append(append(bytes.Clone(whole[:len(whole)-6]), whole[len(whole)-6]^1), whole[len(whole)-5:]...), "not whole"},
		"a text":             {[]byte("hello"), "no backup"},
		"without a manifest": {made(file("store.db", "x")), "manifest"},
		"of another format":  {made(file("manifest.json", `{"format":2,"version":"v9"}`)), `format 2, of edgecore "v9"`},
		"a path upwards":     {made(manifest(), file("identity/../../evil", "x")), "no backup has"},
		"an absolute path":   {made(manifest(), file("/etc/passwd", "x")), "no backup has"},
		"another file":       {made(manifest(), file("identity/.ssh", "x")), "no backup has"},
		"a link":             {made(manifest(), &tar.Header{Name: "store.db", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), "no backup has"},
		"a file twice":       {made(manifest(), file("store.db", "x"), file("store.db", "y")), "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "into")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := backup.Unpack(bytes.NewReader(tc.raw), dir); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
				t.Errorf("%v %v", err, entries)
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(packed(f), false)
	f.Add([]byte("hello"), false)
	zip, err := gzip.NewReader(bytes.NewReader(packed(f)))
	if err != nil {
		f.Fatal(err)
	}
	archive, err := io.ReadAll(zip)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(archive, true) // behind the compression
	f.Add(bytes.ReplaceAll(archive, []byte("identity/node.pem"), []byte("identity/../../xx")), true)
	f.Fuzz(func(t *testing.T, raw []byte, zipped bool) {
		if zipped {
			var out bytes.Buffer
			zip := gzip.NewWriter(&out)
			_, _ = zip.Write(raw)
			_ = zip.Close()
			raw = out.Bytes()
		}
		parent := t.TempDir()
		dir := filepath.Join(parent, "into")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		_, _ = backup.Unpack(bytes.NewReader(raw), dir)
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Errorf("%v %v", err, entries)
		}
	})
}

// A power cut that left a temporary file in the identity prevents no backup.
func TestIdentityFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"edge.crt", "edge.key", ".lock", ".edge.crt.2893410"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := backup.IdentityFiles(dir); err != nil || strings.Join(got, " ") != "identity/edge.crt identity/edge.key" {
		t.Errorf("%v, %v", got, err)
	}
}
