package e2e_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

// registry serves one image (OCI distribution,
// https://github.com/opencontainers/distribution-spec) on a device's own loopback interface, where
// containerd speaks HTTP.
type registry struct {
	password string // of the user "pod"; "": everybody may

	top   string            // the digest of the manifest
	blobs map[string][]byte // by digest, the manifest too

	mu     sync.Mutex           // guards the fields below
	slow   func() time.Duration // how long a blob takes; nil: not at all
	pulled int                  // blobs that were sent with a right password, or without one
	denied int
	begun  int // blobs of which some was sent
}

const registryAddress = "127.0.0.1:5098"

// newRegistry makes the image of a program of this repository.
func (s *system) newRegistry(program string) *registry {
	s.T.Helper()
	file := filepath.Join(s.T.TempDir(), "program")
	s.Check(binary.BuildStatic(s.T.Context(), s.Root, file, program))
	raw, err := os.ReadFile(file)
	s.Check(err)
	// Its own content: containerd keeps that of a removed image for a while, and would fetch
	// nothing.
	raw = append(raw, rand.Text()...)
	var archive bytes.Buffer
	r := &registry{blobs: map[string][]byte{}}
	r.top, err = image.Archive(&archive, image.Image{Names: []string{"x:1"}, Path: "/" + path.Base(program), Platforms: []image.Platform{{Arch: runtime.GOARCH, Program: raw}}})
	s.Check(err)
	layout := tar.NewReader(&archive)
	for {
		h, err := layout.Next()
		if errors.Is(err, io.EOF) {
			return r
		}
		s.Check(err)
		if hex, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && h.Typeflag == tar.TypeReg {
			b, err := io.ReadAll(layout)
			s.Check(err)
			r.blobs["sha256:"+hex] = b
		}
	}
}

// serve has the registry on a device until the test ends. A boot ends it too.
func (s *system) serve(node string, r *registry) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	var l net.Listener
	s.Check(h.Do(func() (err error) { l, err = net.Listen("tcp", registryAddress); return err }))
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	s.T.Cleanup(func() { _ = server.Close() })
}

// ServeHTTP implements http.Handler.
func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if user, password, _ := q.BasicAuth(); r.password != "" && (user != "pod" || password != r.password) {
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

// counts are the blobs that were begun and sent, and the requests that were denied.
func (r *registry) counts() (begun, pulled, denied int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, r.pulled, r.denied
}
