// Package image packs static programs into OCI image archives, with the standard library alone and
// no registry.
//
// It owns the form of the archive: one layer with the program, /etc and /tmp, and further names of
// the program in /bin; an index over the platforms where there is more than one. The same input
// gives the same bytes. It never pushes or runs an image; its functions may be called from any
// goroutine.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Media types and layout of the OCI image specification v1.1 (media-types.md, image-layout.md).
const (
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	layoutVersion = `{"imageLayoutVersion":"1.0.0"}`
)

// Image is the content of an archive.
type Image struct {
	Names     []string // each with a tag or digest: an import makes one image of each
	Platforms []Platform
	Path      string   // of the program in the image, "/cloudcore"; the image runs it
	Links     []string // further names of the program, in /bin
	Files     []File   // more than the program
	Cmd       []string // its arguments where a container sets no others
	User      string   // "65532:65532"; "" is root
	Version   string   // annotated; may be empty
	Created   time.Time
	Gzip      bool // compress the layers
	// ByDigest gives it the first name with the digest in place of the tag too. A pod that names
	// both is found by this one where the archive is imported and no registry is in reach.
	ByDigest bool
}

// File is a file of an image besides its program; its folders are made where it is unpacked.
type File struct {
	Path    string // "/usr/bin/dig"
	Mode    int64
	Content []byte
	Link    string // the target of a symbolic link; "" for a file
}

// Platform is the program of one architecture, in Go's name of it ("amd64").
type Platform struct {
	Arch    string
	Program []byte
	Files   []File // of this architecture alone
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type config struct {
	Created      *time.Time `json:"created,omitempty"`
	Architecture string     `json:"architecture"`
	OS           string     `json:"os"`
	Config       struct {
		User       string `json:",omitempty"`
		Entrypoint []string
		Cmd        []string `json:",omitempty"`
		WorkingDir string
		Labels     map[string]string `json:",omitempty"`
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
	MediaType     string       `json:"mediaType,omitempty"`
	Manifests     []descriptor `json:"manifests"`
}

// Archive writes the image as a tar of an OCI layout and returns its digest: of the index over the
// platforms, or of the manifest where there is one platform.
func Archive(out io.Writer, i Image) (string, error) {
	if len(i.Names) == 0 || len(i.Platforms) == 0 {
		return "", errors.New("an image needs a name and a platform")
	}
	var blobs [][]byte
	var top descriptor
	var all index
	for _, p := range i.Platforms {
		d, made, err := i.platform(p)
		if err != nil {
			return "", fmt.Errorf("packing %s for %s: %w", i.Names[0], p.Arch, err)
		}
		blobs, top = append(blobs, made...), d
		all.Manifests = append(all.Manifests, d)
	}
	if len(i.Platforms) > 1 {
		all.SchemaVersion, all.MediaType = 2, mediaIndex
		raw, err := json.Marshal(all)
		if err != nil {
			return "", fmt.Errorf("encoding the index of %s: %w", i.Names[0], err)
		}
		top, blobs = describe(mediaIndex, raw), append(blobs, raw)
	}
	names := i.Names
	if i.ByDigest {
		names = append(slices.Clone(names), untagged(names[0])+"@"+top.Digest)
	}
	if err := writeLayout(out, top, names, blobs); err != nil {
		return "", fmt.Errorf("writing the image %s: %w", i.Names[0], err)
	}
	return top.Digest, nil
}

// platform makes the manifest of one platform, and the blobs that belong to it.
func (i Image) platform(p Platform) (descriptor, [][]byte, error) {
	layer, err := i.packLayer(p.Program, slices.Concat(i.Files, p.Files))
	if err != nil {
		return descriptor{}, nil, err
	}
	var cfg config
	cfg.Architecture, cfg.OS = p.Arch, "linux"
	cfg.Config.User, cfg.Config.Entrypoint, cfg.Config.WorkingDir = i.User, []string{i.Path}, "/"
	cfg.Config.Cmd = i.Cmd
	cfg.RootFS.Type, cfg.RootFS.DiffIDs = "layers", []string{digest(layer)}
	if !i.Created.IsZero() {
		created := i.Created.UTC()
		cfg.Created = &created
	}
	if i.Version != "" {
		cfg.Config.Labels = map[string]string{
			"org.opencontainers.image.version": i.Version, "org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.source": "https://github.com/skerry-io/skerry",
		}
	}
	media := mediaLayer
	if i.Gzip {
		if layer, err = compress(layer); err != nil {
			return descriptor{}, nil, err
		}
		media += "+gzip"
	}
	rawConfig, err := json.Marshal(cfg)
	if err != nil {
		return descriptor{}, nil, err
	}
	rawManifest, err := json.Marshal(manifest{
		SchemaVersion: 2, MediaType: mediaManifest,
		Config: describe(mediaConfig, rawConfig), Layers: []descriptor{describe(media, layer)},
	})
	if err != nil {
		return descriptor{}, nil, err
	}
	d := describe(mediaManifest, rawManifest)
	d.Platform = &platform{p.Arch, "linux"}
	return d, [][]byte{layer, rawConfig, rawManifest}, nil
}

// writeLayout writes the archive: the entry under each of its names, and the blobs.
func writeLayout(out io.Writer, top descriptor, names []string, blobs [][]byte) error {
	entries := index{SchemaVersion: 2}
	for _, name := range names {
		entry := top
		// The first is containerd's own, the second the specification's; an import takes the
		// image's name from them.
		entry.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
		entries.Manifests = append(entries.Manifests, entry)
	}
	rawIndex, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	err = addFile(w, "oci-layout", []byte(layoutVersion), 0o644)
	if err == nil {
		err = addFile(w, "index.json", rawIndex, 0o644)
	}
	for _, blob := range blobs {
		if err == nil {
			err = addFile(w, "blobs/sha256/"+digest(blob)[len("sha256:"):], blob, 0o644)
		}
	}
	if err != nil {
		return err
	}
	return w.Close()
}

// Write writes the archive of an image called name (with a tag) for this machine that runs the
// program as /app. It is found in /bin by the further names too.
func Write(out io.Writer, name string, program []byte, names ...string) error {
	_, err := Archive(out, Image{
		Names: []string{name}, Platforms: []Platform{{Arch: runtime.GOARCH, Program: program}}, Path: "/app", Links: names,
	})
	return err
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

func (i Image) packLayer(program []byte, files []File) ([]byte, error) {
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
	if err := addFile(w, strings.TrimPrefix(path.Clean(i.Path), "/"), program, 0o755); err != nil {
		return nil, err
	}
	for _, n := range i.Links {
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + n, Typeflag: tar.TypeSymlink, Linkname: i.Path, Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		name, err := strings.TrimPrefix(path.Clean(f.Path), "/"), error(nil)
		if f.Link != "" {
			err = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: f.Link, Mode: 0o777})
		} else {
			err = addFile(w, name, f.Content, f.Mode)
		}
		if err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

// compress makes a gzip stream without a time or a name in it.
func compress(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func addFile(w *tar.Writer, name string, content []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// untagged is a reference without its tag: a colon before the last slash begins a port.
func untagged(name string) string {
	if cut := strings.LastIndex(name, ":"); cut > strings.LastIndex(name, "/") {
		return name[:cut]
	}
	return name
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func describe(mediaType string, b []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digest(b), Size: len(b)}
}
