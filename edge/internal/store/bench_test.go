package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/store"
)

// BenchmarkUpdate measures durable commits a second, beside what the disk can do: a commit of bbolt syncs twice.
func BenchmarkUpdate(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			dir := b.TempDir()
			s, err := store.Open(b.Context(), store.Config{Path: filepath.Join(dir, "edge.db")})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			// As an outbox in use: entries come and go, and their pages are used again.
			put := func(id uint64) error {
				return s.Update(context.Background(), func(tx *store.Tx) error { return tx.PutEntry(id%128, entryNumber(id%800)) })
			}
			for id := range uint64(300) {
				if err := put(id); err != nil {
					b.Fatal(err)
				}
			}
			floor := syncRate(b, dir) / 2
			before := s.Stats().Commits
			work := make(chan uint64)
			done := make(chan error, writers)
			b.ResetTimer()
			for range writers {
				go func() {
					for id := range work {
						if err := put(id); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for i := range b.N {
				work <- uint64(i)
			}
			close(work)
			for range writers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			took := b.Elapsed().Seconds()
			floor = (floor + syncRate(b, dir)/2) / 2
			b.ReportMetric(float64(b.N)/took/floor, "x-floor")
			b.ReportMetric(float64(b.N)/float64(s.Stats().Commits-before), "writes/commit")
		})
	}
}

// syncRate is how often a second a page of a file can be written and synced.
func syncRate(b *testing.B, dir string) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(dir, "rate"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	f.Write(make([]byte, 64*len(page)))
	f.Sync()
	start, n := time.Now(), 0
	for ; time.Since(start) < 500*time.Millisecond; n++ {
		if _, err := f.WriteAt(page, int64(n%64*len(page))); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}
