package content

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// WithRoom returns the Store with an empty disk, whatever is free on this computer's.
func (s *Store) WithRoom() *Store {
	s.disk = func(string) (free, size int64, err error) { return 1 << 40, 1 << 40, nil }
	return s
}

// A server that sends no Content-Length fills no disk: the free space is checked while
// the file is copied, and the copy is removed again.
func TestClaims_13_DownloadIsBoundedWhileItIsCopied(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		block := make([]byte, 1<<20)
		for r.Context().Err() == nil {
			n, err := w.Write(block)
			if sent.Add(int64(n)); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}))
	defer server.Close()
	s := New(t.TempDir(), nil, nil)
	const size, before = int64(1 << 30), int64(300 << 20)
	s.disk = func(dir string) (free, total int64, err error) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		used := int64(0)
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				used += info.Size()
			}
		}
		return before - used, size, err
	}
	digest := strings.Repeat("ab", sha256.Size)
	err := s.Fetch(t.Context(), v1alpha1.AppContent{Name: "disk", Type: v1alpha1.ContentDiskImage, Source: server.URL, SHA256: digest})
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Fatalf("fetched without end: %v", err)
	}
	if left, _, _ := s.disk(s.dir); left != before {
		t.Errorf("%d bytes are free, %d were: the half file is there", left, before)
	}
	if least := spare + size/100*spareShare; before-least < 0 || sent.Load() > before {
		t.Errorf("%d bytes were sent, %d must stay free of %d", sent.Load(), least, before)
	}
	// The kubelet's thresholds are 10 and 15 %.
	if kept := float64(spare+size/100*spareShare) / float64(size); kept < 0.16 {
		t.Errorf("%.2f of the disk stays free", kept)
	}
}

func TestClaims_13_WhatNoApplicationNamesIsRemoved(t *testing.T) {
	s := New(filepath.Join(t.TempDir(), "content"), nil, nil)
	if _, err := s.Prune(nil); err != nil {
		t.Errorf("nothing was ever fetched: %v", err)
	}
	name := func(b byte) string { sum := sha256.Sum256([]byte{b}); return hex.EncodeToString(sum[:]) }
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{name(1), name(2), name(3) + partSuffix, name(4) + partSuffix, "somebody-else"} {
		if err := os.WriteFile(filepath.Join(s.dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := s.Prune(map[string]bool{name(1): true, name(3): true})
	if err != nil || len(removed) != 2 {
		t.Errorf("removed %v: %v", removed, err)
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil || len(left) != 3 {
		t.Errorf("left: %v: %v", left, err)
	}
}
