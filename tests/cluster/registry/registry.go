// Package registry serves one image to the container runtimes of tests (OCI distribution,
// https://github.com/opencontainers/distribution-spec), as slowly as a test wants it.
//
// It owns the image; its caller listens. Any name and tag leads to the image. It refuses uploads. A
// Registry may be used by many goroutines; Password is set before it serves.
package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// Address is where a device finds the registry: containerd speaks HTTP with its own loopback
// interface alone.
const Address = "127.0.0.1:5098"

// Registry has an image.
type Registry struct {
	Password string // of the user "pod"; "": everybody may

	top   string            // the digest of the manifest
	blobs map[string][]byte // by digest, the manifest too

	mu     sync.Mutex           // guards the fields below
	slow   func() time.Duration // how long a blob takes; nil: not at all
	pulled int                  // blobs that were sent with a right password, or without one
	denied int
	begun  int // blobs of which some was sent
}

// New makes the image of a program of this repository (a package such as "./tests/images/sample"),
// which has that name in it; dir is for files of the build.
func New(ctx context.Context, root, dir, program, name string) (*Registry, error) {
	file := filepath.Join(dir, "program")
	if err := binary.BuildStatic(ctx, root, file, program); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	// Its own content: containerd keeps that of a removed image for a while, and would fetch
	// nothing.
	raw = append(raw, rand.Text()...)
	var archive bytes.Buffer
	r := &Registry{blobs: map[string][]byte{}}
	r.top, err = image.Archive(&archive, image.Image{Names: []string{"x:1"}, Path: "/" + name, Platforms: []image.Platform{{Arch: runtime.GOARCH, Program: raw}}})
	if err != nil {
		return nil, err
	}
	for layout := tar.NewReader(&archive); ; {
		h, err := layout.Next()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, err
		}
		if hex, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && h.Typeflag == tar.TypeReg {
			if r.blobs["sha256:"+hex], err = io.ReadAll(layout); err != nil {
				return nil, err
			}
		}
	}
}

// Slow makes each blob take so long; nil: no time.
func (r *Registry) Slow(by func() time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow = by
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if user, password, _ := q.BasicAuth(); r.Password != "" && (user != "pod" || password != r.Password) {
		r.mu.Lock()
		r.denied++
		r.mu.Unlock()
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	digest := path.Base(q.URL.Path)
	manifest := strings.Contains(q.URL.Path, "/manifests/")
	if manifest {
		digest = r.top
	}
	blob := r.blobs[digest]
	switch {
	case q.URL.Path == "/v2/":
		return
	case blob == nil:
		http.NotFound(w, q)
		return
	case manifest:
		var m struct{ MediaType string }
		if err := json.Unmarshal(blob, &m); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", m.MediaType)
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
	if q.Method == http.MethodHead {
		return
	}
	r.mu.Lock()
	r.begun++
	slow := r.slow
	r.mu.Unlock()
	if half := len(blob) / 2; slow != nil && !manifest {
		_, _ = w.Write(blob[:half])
		_ = http.NewResponseController(w).Flush()
		blob = blob[half:]
		select {
		case <-q.Context().Done():
			return
		case <-time.After(slow()):
		}
	}
	if _, err := w.Write(blob); err == nil {
		r.mu.Lock()
		r.pulled++
		r.mu.Unlock()
	}
}

// Counts are the blobs that were begun and sent, and the requests that were denied.
func (r *Registry) Counts() (begun, pulled, denied int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, r.pulled, r.denied
}
