package containerd

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	packer "github.com/skerry-io/skerry/build/image"
)

// blobsOf answers for descriptors by their digests.
func blobsOf(all map[string]string) func(descriptor) ([]byte, error) {
	return func(d descriptor) ([]byte, error) {
		text, ok := all[d.Digest]
		if !ok {
			return nil, fmt.Errorf("no %s", d.Digest)
		}
		return []byte(text), nil
	}
}

func TestResolve(t *testing.T) {
	const ours = `{"architecture":"ours","rootfs":{"diff_ids":["d1","d2"]}}`
	many := `{"manifests":[` + strings.TrimSuffix(strings.Repeat(`{"digest":"NEXT"},`, 1000), ",") + `]}`
	tests := map[string]struct {
		blobs map[string]string
		want  string // the manifest, or an error
	}{
		"a manifest":           {map[string]string{"top": `{"config":{"digest":"c"},"layers":[{"digest":"l1"},{"digest":"l2"}]}`, "c": ours}, "top"},
		"an index":             {map[string]string{"top": `{"manifests":[{"digest":"m0"},{"digest":"m"}]}`, "m": `{"config":{"digest":"c"},"layers":[{},{}]}`, "c": ours}, "m"},
		"another architecture": {map[string]string{"top": `{"config":{"digest":"c"}}`, "c": `{"architecture":"other"}`}, "no image for linux/ours"},
		"another platform":     {map[string]string{"top": `{"manifests":[{"digest":"m","platform":{"architecture":"ours","os":"windows"}}]}`}, "no image for linux/ours"},
		"a blob is missing":    {map[string]string{"top": `{"config":{"digest":"c"}}`}, "no c"},
		"no JSON":              {map[string]string{"top": `x`}, "reading top"},
		"layers do not match":  {map[string]string{"top": `{"config":{"digest":"c"},"layers":[{}]}`, "c": ours}, "has 1 layers, and its configuration 2"},
		"too deep":             {map[string]string{"top": `{"manifests":[{"digest":"top"}]}`}, "no image for linux/ours"},
		"by configuration c": {map[string]string{
			"top": `{"manifests":[{"digest":"gone"},{"digest":"m0","platform":{"architecture":"ours","os":"linux"}},{"digest":"m","platform":{"architecture":"other","os":"linux"}}]}`,
			"m0":  `{"config":{"digest":"c0"}}`, "m": `{"config":{"digest":"c"},"layers":[{}]}`, "c": `{"rootfs":{"diff_ids":["d1"]}}`,
		}, "m"},
		"by configuration none": {map[string]string{"top": `{"config":{"digest":"c"}}`}, "there is no image none"},
		"an index of a million": {map[string]string{"top": strings.ReplaceAll(many, "NEXT", "top")}, errTooMany.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := &resolver{blob: blobsOf(test.blobs), arch: "ours"}
			if config, ok := strings.CutPrefix(name, "by configuration "); ok {
				r = &resolver{blob: blobsOf(test.blobs), config: config}
			}
			i, err := r.resolve([]descriptor{{Digest: "top"}}, 0)
			switch {
			case err != nil && !strings.Contains(err.Error(), test.want):
				t.Errorf("%v, want %s", err, test.want)
			case err == nil && i.manifest.Digest != test.want:
				t.Errorf("%s, want %s", i.manifest.Digest, test.want)
			}
		})
	}
}

// A chain ID is the digest of those of the layers below and of its own, with a space between them
// (OCI image specification, config.md): printf 'sha256:a sha256:b' | sha256sum.
func TestChains(t *testing.T) {
	want := []string{"sha256:a", "sha256:970a948bffa8de94d6e22d747ba8c95030e6e546909f98f54e99a13005e173a8"}
	if got := chains([]string{"sha256:a", "sha256:b"}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// FuzzArchive reads archives: a damaged one is refused, and an accepted one has all its blobs.
func FuzzArchive(f *testing.F) {
	var good bytes.Buffer
	if err := packer.Write(&good, "skerry.local/pause:1", []byte("program")); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes(), true)
	f.Add(good.Bytes()[:good.Len()/2], true)
	f.Add([]byte(`{"manifests":[{"digest":"sha256:a"}]}`), false)
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		if !whole { // the index of an archive: a digest can't be guessed
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "index.json", Size: int64(len(data))})
			_, writeErr := w.Write(data)
			if err := errors.Join(err, writeErr, w.Close()); err != nil {
				t.Fatal(err)
			}
			data = b.Bytes()
		}
		file := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		i, all, err := read(file, runtime.GOARCH)
		if err != nil {
			return
		}
		for _, p := range append(i.parts, i.manifest) {
			if all[p.Digest] == nil {
				t.Errorf("it lacks %s", p.Digest)
			}
		}
		if !json.Valid(all[i.parts[0].Digest]) {
			t.Error("the configuration is no JSON")
		}
	})
}
