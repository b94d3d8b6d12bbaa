package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skerry-io/skerry/build/image"
)

func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrite follows the archive as a runtime would: index, manifest, configuration, layer,
// each by its digest.
func TestWrite(t *testing.T) {
	program := []byte("\x7fELF program")
	var archive, again bytes.Buffer
	if err := errors.Join(image.Write(&archive, "example/app:1", program, "tar"), image.Write(&again, "example/app:1", program, "tar")); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("the same program gives different bytes")
	}
	files := unpack(t, archive.Bytes())
	blob := func(digest string) []byte {
		t.Helper()
		content, ok := files["blobs/sha256/"+digest[len("sha256:"):]]
		if !ok || digest != fmt.Sprintf("sha256:%x", sha256.Sum256(content)) {
			t.Fatalf("blob %s is missing or wrong", digest)
		}
		return content
	}
	type descriptor struct {
		Digest      string
		Size        int
		Annotations map[string]string
	}
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Config struct{ Entrypoint []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode := func(raw []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	decode(files["index.json"], &index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "example/app:1" {
		t.Errorf("name is %q", got)
	}
	decode(blob(index.Manifests[0].Digest), &manifest)
	decode(blob(manifest.Config.Digest), &config)
	layer := blob(manifest.Layers[0].Digest)
	if config.Rootfs.DiffIDs[0] != manifest.Layers[0].Digest || manifest.Layers[0].Size != len(layer) {
		t.Error("the layer's digest or size do not agree")
	}
	if _, ok := unpack(t, layer)["bin/tar"]; !ok {
		t.Error("the program's other name is missing")
	}
	if got := unpack(t, layer)["app"]; !bytes.Equal(got, program) || config.Config.Entrypoint[0] != "/app" {
		t.Errorf("the program is %q, started as %v", got, config.Config.Entrypoint)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	program, out := filepath.Join(dir, "program"), filepath.Join(dir, "image.tar")
	write := func(content string, at time.Time) []byte {
		t.Helper()
		if err := errors.Join(os.WriteFile(program, []byte(content), 0o755), os.Chtimes(program, at, at), image.WriteFile(out, "example/app:1", program)); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	now := time.Now()
	first := write("one", now.Add(-time.Hour))
	if same := write("two", now.Add(-time.Minute)); !bytes.Equal(first, same) {
		t.Error("packed again although the program is older than the image")
	}
	if newer := write("two", now.Add(time.Hour)); bytes.Equal(first, newer) {
		t.Error("not packed again although the program is newer")
	}
	if err := image.WriteFile(filepath.Join(dir, "other.tar"), "example/app:1", filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("want a missing program to be an error, got %v", err)
	}
}
