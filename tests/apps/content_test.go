package apps_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// origin serves a disk image, and a container image (OCI distribution,
// https://github.com/opencontainers/distribution-spec) on each node's own loopback interface, where
// containerd uses HTTP, and records each node's requests.
type origin struct {
	disk, config, layer, manifest []byte

	mu    sync.Mutex
	asked map[string][]string // paths, by node
}

const originAddress = "127.0.0.1:5099"

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// newOrigin makes an image of one layer with one small file.
func newOrigin(t *testing.T, text string) *origin {
	t.Helper()
	o := &origin{disk: bytes.Repeat([]byte(text), 10_000), asked: map[string][]string{}}
	var raw, packed bytes.Buffer
	w := tar.NewWriter(&raw)
	if err := w.WriteHeader(&tar.Header{Name: "hello", Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(raw.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	o.layer = packed.Bytes()
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	o.config = encode(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{}, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(raw.Bytes())}},
	})
	part := func(kind string, b []byte) map[string]any {
		return map[string]any{"mediaType": kind, "digest": "sha256:" + digest(b), "size": len(b)}
	}
	o.manifest = encode(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": part("application/vnd.oci.image.config.v1+json", o.config),
		"layers": []any{part("application/vnd.oci.image.layer.v1.tar+gzip", o.layer)},
	})
	return o
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func (o *origin) handler(node string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			o.mu.Lock()
			o.asked[node] = append(o.asked[node], r.URL.Path)
			o.mu.Unlock()
		}
		send := func(b []byte) {
			w.Header().Set("Docker-Content-Digest", "sha256:"+digest(b))
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			if r.Method == http.MethodGet {
				_, _ = w.Write(b)
			}
		}
		switch p := r.URL.Path; {
		case p == "/disk":
			send(o.disk)
		case p == "/v2/":
		case strings.HasPrefix(p, "/v2/content/manifests/"):
			w.Header().Set("Content-Type", manifestType)
			send(o.manifest)
		case path.Base(p) == "sha256:"+digest(o.config):
			send(o.config)
		case path.Base(p) == "sha256:"+digest(o.layer):
			send(o.layer)
		default:
			http.NotFound(w, r)
		}
	})
}

// fetched are the nodes that asked for something, each once.
func (o *origin) fetched(what string) (nodes []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for node, paths := range o.asked {
		for _, p := range paths {
			if strings.Contains(p, what) {
				nodes = append(nodes, node)
			}
		}
	}
	slices.Sort(nodes)
	return nodes
}

// TestCluster_17: an application's container image is fetched by every node, its disk image by the
// designated node alone; each node reports its local content.
func TestCluster_17_DiskImagesOnTheDesignatedNodeAlone(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	o := newOrigin(t, ns)
	serve := func(host, address string, handler http.Handler) {
		t.Helper()
		h, err := s.Trial.Host(host)
		s.Check(err)
		var l net.Listener
		s.Check(h.Do(func() (err error) { l, err = net.Listen("tcp", address); return err }))
		server := &http.Server{Handler: handler}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close(); <-ended })
	}
	nodes := map[string]string{} // by the address on the LAN
	for i, n := range options().Nodes() {
		serve(n.Name, originAddress, o.handler(n.Name))
		nodes[lab.LAN(i+1).Addr().String()] = n.Name
	}
	// edgecore asks no server of the device itself.
	disks := net.JoinHostPort(lab.Client().Addr().String(), "5099")
	serve(trial.Client, disks, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		o.handler(nodes[from]).ServeHTTP(w, r)
	}))
	s.create(ns, appYAML("filled", "edge2", fmt.Sprintf("  content:\n  - {name: image, type: ContainerImage, source: %q}\n  - {name: disk, type: DiskImage, source: %q, sha256: %s}",
		originAddress+"/content:"+ns, "http://"+disks+"/disk", digest(o.disk))))
	s.waitOn(ns, "filled", "edge2")
	app := s.waitApp(ns, "filled", "to have its content on three nodes", func(a *v1alpha1.EdgeApp) bool {
		ready := 0
		for _, n := range a.Status.Nodes {
			for _, c := range n.Content {
				if c.Ready {
					ready++
				}
			}
		}
		return ready == 4
	})
	for _, n := range app.Status.Nodes {
		for _, c := range n.Content {
			if want := c.Name == "image" || n.Name == "edge2"; c.IsLocal != want || c.Ready != want {
				t.Errorf("%s: %+v", n.Name, c)
			}
		}
	}
	if got := o.fetched("/disk"); !slices.Equal(got, []string{"edge2"}) {
		t.Errorf("the disk image was fetched by %v", got)
	}
	if got := o.fetched(digest(o.layer)); !slices.Equal(got, []string{"edge1", "edge2", "edge3"}) {
		t.Errorf("the container image was fetched by %v", got)
	}
}
