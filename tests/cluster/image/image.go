// Package image packs a static program into an OCI image archive, with nothing but the standard library and no registry.
//
// It owns the form of the archive: one layer with /app, /etc and /tmp, and further names of the program in /bin. The same program gives the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Media types and layout of the OCI image specification v1.1 (media-types.md, image-layout.md).
const (
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	layoutVersion = `{"imageLayoutVersion":"1.0.0"}`
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Entrypoint []string
		WorkingDir string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	Manifests     []descriptor `json:"manifests"`
}

// Write writes the archive of an image called name (with a tag) that runs the program. It is found in /bin by the further names too.
func Write(out io.Writer, name string, program []byte, names ...string) error {
	layer, err := packLayer(program, names)
	if err != nil {
		return fmt.Errorf("packing the layer of %s: %w", name, err)
	}
	var cfg config
	cfg.Architecture, cfg.OS = runtime.GOARCH, "linux"
	cfg.Config.Entrypoint, cfg.Config.WorkingDir = []string{"/app"}, "/"
	cfg.RootFS.Type, cfg.RootFS.DiffIDs = "layers", []string{digest(layer)}

	rawConfig, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encoding the configuration of %s: %w", name, err)
	}
	rawManifest, err := json.Marshal(manifest{
		SchemaVersion: 2, MediaType: mediaManifest,
		Config: describe(mediaConfig, rawConfig), Layers: []descriptor{describe(mediaLayer, layer)},
	})
	if err != nil {
		return fmt.Errorf("encoding the manifest of %s: %w", name, err)
	}
	entry := describe(mediaManifest, rawManifest)
	// The first is containerd's own, the second the specification's; an import takes the image's name from them.
	entry.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	rawIndex, err := json.Marshal(index{SchemaVersion: 2, Manifests: []descriptor{entry}})
	if err != nil {
		return fmt.Errorf("encoding the index of %s: %w", name, err)
	}

	w := tar.NewWriter(out)
	err = addFile(w, "oci-layout", []byte(layoutVersion), 0o644)
	if err == nil {
		err = addFile(w, "index.json", rawIndex, 0o644)
	}
	for _, blob := range [][]byte{layer, rawConfig, rawManifest} {
		if err == nil {
			err = addFile(w, "blobs/sha256/"+digest(blob)[len("sha256:"):], blob, 0o644)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("writing the image %s: %w", name, err)
	}
	return nil
}

// WriteFile writes the archive for the program in a file, unless it is there already and newer.
func WriteFile(path, name, program string, names ...string) error {
	if have, err := os.Stat(path); err == nil {
		if from, err := os.Stat(program); err == nil && !from.ModTime().After(have.ModTime()) {
			return nil
		}
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading the program of %s: %w", name, err)
	}
	var archive bytes.Buffer
	if err := Write(&archive, name, raw, names...); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", archive.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the image %s: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the image %s: %w", name, err)
	}
	return nil
}

func packLayer(program []byte, names []string) ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []struct {
		name string
		mode int64
	}{{"bin/", 0o755}, {"etc/", 0o755}, {"tmp/", 0o1777}} {
		if err := w.WriteHeader(&tar.Header{Name: dir.name, Typeflag: tar.TypeDir, Mode: dir.mode}); err != nil {
			return nil, err
		}
	}
	if err := addFile(w, "app", program, 0o755); err != nil {
		return nil, err
	}
	for _, n := range names {
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + n, Typeflag: tar.TypeSymlink, Linkname: "/app", Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

func addFile(w *tar.Writer, name string, content []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func describe(mediaType string, b []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digest(b), Size: len(b)}
}
