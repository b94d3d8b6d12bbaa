package containerd

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	// MaxBlob bounds a blob, in bytes; a larger archive is refused. The image of sandboxes has 1
	// MiB.
	MaxBlob = 8 << 20
	// blobs is where an OCI layout has its blobs.
	blobs = "blobs/sha256/"
)

// descriptor refers to a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	Platform  *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform,omitempty"`
}

// image is the image of one architecture.
type image struct {
	manifest descriptor
	parts    []descriptor // its configuration, then its layers
	diffIDs  []string     // the digests of the unpacked layers
}

// read takes the image of one architecture out of an archive, and its blobs by their digests.
func read(file, arch string) (*image, map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	all, index, err := readTar(f)
	if err != nil {
		return nil, nil, err
	}
	var top struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(index, &top); err != nil {
		return nil, nil, fmt.Errorf("reading the index: %w", err)
	}
	blob := func(d descriptor) ([]byte, error) {
		data, ok := all[d.Digest]
		if !ok {
			return nil, fmt.Errorf("the archive lacks %s", d.Digest)
		}
		return data, nil
	}
	i, err := (&resolver{blob: blob, arch: arch}).resolve(top.Manifests, 0)
	if err != nil {
		return nil, nil, err
	}
	for _, part := range i.parts {
		if _, err := blob(part); err != nil {
			return nil, nil, err
		}
	}
	return i, all, nil
}

// An archive with more blobs, and an image with more descriptors, are refused.
const (
	maxBlobs       = 64
	maxDepth       = 4
	maxDescriptors = 1024
)

// readTar returns an archive's blobs by their digests, which are right, and its index.json.
func readTar(from io.Reader) (all map[string][]byte, index []byte, err error) {
	all = map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading the archive: %w", err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		digest, blob := strings.CutPrefix(name, blobs)
		if h.Typeflag != tar.TypeReg || !blob && name != "index.json" {
			continue
		}
		if h.Size > MaxBlob || len(all) > maxBlobs {
			return nil, nil, fmt.Errorf("%s: the archive is too large", name)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", name, err)
		}
		if !blob {
			index = data
			continue
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
			return nil, nil, fmt.Errorf("%s does not have its digest", name)
		}
		all["sha256:"+digest] = data
	}
	if index == nil {
		return nil, nil, errors.New("it is no OCI layout: there is no index.json")
	}
	return all, index, nil
}

// errTooMany refuses an image with more descriptors than maxDescriptors.
var errTooMany = fmt.Errorf("it has more than %d descriptors", maxDescriptors)

// resolver finds an image among blobs: the one with that configuration, or else the first of an
// architecture.
type resolver struct {
	blob   func(descriptor) ([]byte, error)
	config string // a digest
	arch   string
	seen   int // descriptors; an index may name another a thousand times
}

// resolve follows descriptors, of which some may be indexes over architectures, to the image. Where
// a blob is missing it goes on: an index may have more architectures than are there.
func (r *resolver) resolve(among []descriptor, depth int) (*image, error) {
	var errs []error
	for _, d := range among {
		if r.seen++; r.seen > maxDescriptors {
			return nil, errTooMany
		}
		if p := d.Platform; r.config == "" && p != nil && (p.Architecture != r.arch || p.OS != "linux") || depth > maxDepth {
			continue
		}
		i, err := r.follow(d, depth)
		if i != nil || errors.Is(err, errTooMany) {
			return i, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(append(errs, fmt.Errorf("there is no image %s", cmp.Or(r.config, "for linux/"+r.arch)))...)
}

// follow follows one descriptor; nil without an error: it is one of another architecture.
func (r *resolver) follow(d descriptor, depth int) (*image, error) {
	var content struct {
		Manifests []descriptor `json:"manifests"`
		Config    *descriptor  `json:"config"`
		Layers    []descriptor `json:"layers"`
	}
	if err := r.decode(d, &content); err != nil {
		return nil, err
	}
	if content.Config == nil {
		return r.resolve(content.Manifests, depth+1)
	}
	var config struct {
		Architecture string `json:"architecture"`
		RootFS       struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if r.config != "" && content.Config.Digest != r.config {
		return nil, nil
	}
	if err := r.decode(*content.Config, &config); err != nil || r.config == "" && config.Architecture != r.arch {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(content.Layers) || len(content.Layers) > maxDescriptors {
		return nil, fmt.Errorf("%s has %d layers, and its configuration %d", d.Digest, len(content.Layers), len(config.RootFS.DiffIDs))
	}
	return &image{manifest: d, parts: append([]descriptor{*content.Config}, content.Layers...), diffIDs: config.RootFS.DiffIDs}, nil
}

// decode reads a blob of JSON.
func (r *resolver) decode(d descriptor, into any) error {
	data, err := r.blob(d)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading %s: %w", d.Digest, err)
	}
	return nil
}
