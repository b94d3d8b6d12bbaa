package content_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/optional/content"
)

// A file is stored complete or not at all: a broken download is continued, a wrong one is reported
// and started again, an existing one is not fetched again.
func TestDownload(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 50_000)
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	var asked, breaks atomic.Int32
	var ranges []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		ranges = append(ranges, r.Header.Get("Range"))
		if strings.HasPrefix(r.URL.Path, "/wrong") {
			_, _ = w.Write(data[1:])
			return
		}
		if breaks.Add(-1) >= 0 {
			w.Header().Set("Content-Length", "500000")
			_, _ = w.Write(data[:123_456])
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, r, "disk", time.Time{}, bytes.NewReader(data))
	}))
	defer server.Close()
	dir := t.TempDir()
	s := content.New(dir, nil, nil).WithRoom()
	disk := v1alpha1.AppContent{Name: "disk", Type: v1alpha1.ContentDiskImage, Source: server.URL + "/disk", SHA256: digest}

	breaks.Store(1)
	if err := s.Fetch(t.Context(), disk); err == nil {
		t.Error("a transfer that broke off is no error")
	}
	if _, err := os.Stat(s.Path(digest)); err == nil {
		t.Error("half of a file is under its name")
	}
	if err := s.Fetch(t.Context(), disk); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(s.Path(digest)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v; %d bytes", err, len(got))
	}
	if len(ranges) != 2 || ranges[1] != "bytes=123456-" {
		t.Errorf("asked for %q", ranges)
	}
	before := asked.Load()
	if err := s.Fetch(t.Context(), disk); err != nil || asked.Load() != before {
		t.Errorf("%v; fetched again what is there", err)
	}

	wrong := disk
	wrong.Source, wrong.SHA256 = server.URL+"/wrong", strings.Repeat("0", 64)
	for range 2 { // started again
		if err := s.Fetch(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "SHA-256") {
			t.Errorf("a file of another digest: %v", err)
		}
	}
	wrong.SHA256 = "../../etc/passwd"
	if err := s.Fetch(t.Context(), wrong); err == nil {
		t.Error("a name that is no digest was taken")
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%v; the folder has %v", err, files)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	disk.SHA256 = strings.Repeat("1", 64)
	if err := s.Fetch(ended, disk); err == nil {
		t.Error("it goes on after its end")
	}
}

// A source leads to no address that the guard refuses, neither by itself nor by a redirect: of a
// refused server not even the digest of its answer is reported.
func TestClaims_13_SourceLeadsToNoRefusedAddress(t *testing.T) {
	asked := 0
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer inner.Close()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	outer := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.RedirectHandler(inner.URL, http.StatusFound), ReadHeaderTimeout: time.Minute}}
	outer.Start()
	defer outer.Close()
	s := content.New(t.TempDir(), nil, func(a netip.Addr) error {
		if a == netip.MustParseAddr("127.0.0.1") {
			return errors.New("refused")
		}
		return nil
	})
	for _, source := range []string{inner.URL, outer.URL} {
		err := s.Fetch(t.Context(), v1alpha1.AppContent{Type: v1alpha1.ContentDiskImage, Source: source, SHA256: strings.Repeat("0", 64)})
		if err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "SHA-256") {
			t.Errorf("%s: %v", source, err)
		}
	}
	if asked > 0 {
		t.Errorf("the refused server was asked %d times", asked)
	}
}
