package trial

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// cloudcoreImage is the name of the image in a release without a registry, without the tag.
const cloudcoreImage = "skerry.local/cloudcore:trial"

// images builds the programs that run in containers, and packs them.
func (t *Trial) images(ctx context.Context) error {
	dir := filepath.Dir(t.initPath())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the directory for images: %w", err)
	}
	for _, i := range []struct {
		program, name string
		names         []string
	}{{"pause", pauseImage, nil}, {"sample", sampleImage, []string{"tar"}}} {
		program := filepath.Join(dir, i.program)
		// The running hosts' own first process is never overwritten.
		if _, err := os.Stat(program); err != nil {
			if err := binary.BuildStatic(ctx, t.root, program, "./tests/images/"+i.program); err != nil {
				return err
			}
		}
		if err := image.WriteFile(program+".tar", i.name, program, i.names...); err != nil {
			return err
		}
	}
	if _, err := os.Stat(t.logind()); err != nil {
		if err := binary.BuildStatic(ctx, t.root, t.logind(), "./tests/cmd/logind"); err != nil {
			return err
		}
	}
	if t.state != nil && t.state.Options.InCluster {
		_, err := t.packCloudcore()
		return err
	}
	return nil
}

// imageArchive is where the image of bin/cloudcore is kept, packed once for each build.
func (t *Trial) imageArchive() string { return t.binary("cloudcore") + ".oci.tar" }

// packCloudcore packs bin/cloudcore as a release does, for this machine's architecture, and returns
// the image's name with its digest.
func (t *Trial) packCloudcore() (string, error) {
	program, err := os.Stat(t.binary("cloudcore"))
	if err != nil {
		return "", fmt.Errorf("looking for cloudcore: %w", err)
	}
	if have, err := os.Stat(t.imageArchive()); err != nil || program.ModTime().After(have.ModTime()) {
		raw, err := os.ReadFile(t.binary("cloudcore"))
		if err != nil {
			return "", fmt.Errorf("reading cloudcore: %w", err)
		}
		var archive bytes.Buffer
		// Not compressed, which would take longer than all else of `trial up`.
		i := image.Image{
			Names: []string{cloudcoreImage}, Platforms: []image.Platform{{Arch: runtime.GOARCH, Program: raw}},
			Path: "/cloudcore", User: "65532:65532", Version: "trial", ByDigest: true,
		}
		if _, err := image.Archive(&archive, i); err != nil {
			return "", err
		}
		if err := os.WriteFile(t.imageArchive()+".new", archive.Bytes(), 0o644); err != nil {
			return "", fmt.Errorf("writing the image of cloudcore: %w", err)
		}
		if err := os.Rename(t.imageArchive()+".new", t.imageArchive()); err != nil {
			return "", fmt.Errorf("writing the image of cloudcore: %w", err)
		}
	}
	digest, err := digestOf(t.imageArchive())
	return cloudcoreImage + "@" + digest, err
}

// digestOf reads an archive's digest from its index.
func digestOf(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", fmt.Errorf("opening an image: %w", err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("looking for the index of %s: %w", archive, err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct{ Manifests []struct{ Digest string } }
		if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&index); err != nil {
			return "", fmt.Errorf("reading the index of %s: %w", archive, err)
		}
		if len(index.Manifests) == 0 {
			return "", fmt.Errorf("%s has no image", archive)
		}
		return index.Manifests[0].Digest, nil
	}
}

// loadImages imports the images that containerd lacks.
func (t *Trial) loadImages(n Node) error {
	if t.state.Options.Bare && !n.Plain {
		return nil // a device's images come from the programs installed on it
	}
	name := n.Name
	have, err := t.run(name, "ctr", "--namespace=k8s.io", "images", "list", "-q")
	if err != nil {
		return err
	}
	names := strings.Fields(string(have))
	dir := filepath.Dir(t.initPath())
	files := map[string]string{pauseImage: filepath.Join(dir, "pause.tar"), sampleImage: filepath.Join(dir, "sample.tar")}
	if n.Plain && t.state.Options.InCluster {
		digest, err := digestOf(t.imageArchive())
		if err != nil {
			return err
		}
		untagged, _, _ := strings.Cut(cloudcoreImage, ":")
		files[untagged+"@"+digest] = t.imageArchive()
	}
	for image, path := range files {
		if slices.Contains(names, image) {
			continue
		}
		if _, err := t.run(name, "ctr", "--namespace=k8s.io", "images", "import", path); err != nil {
			return err
		}
	}
	return nil
}
