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
			floor := syncRate(b, dir) / 2
			s, err := store.Open(b.Context(), store.Config{Path: filepath.Join(dir, "edge.db")})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			if err := s.Update(b.Context(), func(*store.Tx) error { return nil }); err != nil {
				b.Fatal(err)
			}
			before := s.Stats().Commits
			work := make(chan uint64)
			done := make(chan error, writers)
			b.ResetTimer()
			for range writers {
				go func() {
					for id := range work {
						if err := s.Update(context.Background(), func(tx *store.Tx) error { return tx.PutEntry(id, entryNumber(id%800)) }); err != nil {
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
