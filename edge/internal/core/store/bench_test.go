package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// commitPages is how many pages a commit of an outbox in use writes before its first sync: the
// leaf with the entry, the branch above it, the root of the file. The meta page follows, and
// the second sync.
const commitPages = 3

// BenchmarkUpdate measures durable writes and compares them with the disk. All take turns, some
// milliseconds each, so that a slow moment of the disk or of the machine affects all. x-floor is
// our writes a second divided by the rate of bare writes of a commit's pages with its two syncs;
// x-sync is our writes a second divided by half of the disk's fdatasyncs of one page a second.
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
			d := newDisk(b, dir)
			before := s.Stats().Commits
			var ours, pages, syncs time.Duration
			var cpu float64
			turns := 0
			turn := 32 * writers
			b.ResetTimer()
			for from := 0; from < b.N; from += turn {
				n := min(turn, b.N-from)
				start, used := time.Now(), cpuTime(b)
				var g errgroup.Group
				var next atomic.Uint64
				for range min(writers, n) {
					g.Go(func() error {
						for i := next.Add(1); i <= uint64(n); i = next.Add(1) {
							if err := put(uint64(from) + i); err != nil {
								return err
							}
						}
						return nil
					})
				}
				if err := g.Wait(); err != nil {
					b.Fatal(err)
				}
				ours += time.Since(start)
				cpu += cpuTime(b) - used
				b.StopTimer()
				pages += d.commits(b, turnCommits, commitPages)
				syncs += d.commits(b, turnCommits, 1)
				turns++
				b.StartTimer()
			}
			each := func(d time.Duration) float64 { return d.Seconds() / float64(turns*turnCommits) }
			b.ReportMetric(float64(b.N)/ours.Seconds()*each(pages), "x-floor")
			b.ReportMetric(float64(b.N)/ours.Seconds()*each(syncs), "x-sync")
			b.ReportMetric(float64(b.N)/float64(s.Stats().Commits-before), "writes/commit")
			b.ReportMetric(1e6*each(pages), "µs-floor/commit")
			b.ReportMetric(1e6*each(syncs)/2, "µs/sync")
			b.ReportMetric(1e6*cpu/float64(s.Stats().Commits-before), "µs-cpu/commit")
		})
	}
}

// cpuTime is the CPU time that this process has used, in seconds.
func cpuTime(b *testing.B) float64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkOpen opens a store as large as an outbox may become: every page is read and checked, and
// bbolt looks for the free ones.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "edge.db")
	open := func() *store.Store {
		s, err := store.Open(b.Context(), store.Config{Path: path})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	s := open()
	for from := uint64(0); from < 10_000; from += 1000 {
		if err := s.Update(b.Context(), func(tx *store.Tx) error {
			for id := from; id < from+1000; id++ {
				if err := tx.PutEntry(id, entryNumber(id)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(s.Stats().Bytes)
	s.Close()
	for b.Loop() {
		open().Close()
	}
}

// disk is a file whose pages were written before, so that a sync writes only them.
type disk struct {
	file *os.File
	page []byte
	next int
}

const diskPages = 64

func newDisk(b *testing.B, dir string) *disk {
	b.Helper()
	f, err := os.Create(filepath.Join(dir, "rate"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	d := &disk{file: f, page: make([]byte, os.Getpagesize())}
	if _, err := f.Write(make([]byte, diskPages*len(d.page))); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return d
}

// turnCommits is for how many commits the disk is measured in its turn.
const turnCommits = 32

// commits writes pages that lie apart, syncs (fdatasync(2)), writes one page more and syncs
// again, n times.
func (d *disk) commits(b *testing.B, n, pages int) time.Duration {
	b.Helper()
	write := func(n int) {
		for range n {
			d.next += 7 // diskPages has no common divisor with it
			if _, err := d.file.WriteAt(d.page, int64(d.next%diskPages*len(d.page))); err != nil {
				b.Fatal(err)
			}
		}
		if err := unix.Fdatasync(int(d.file.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	for range n {
		write(pages)
		write(1)
	}
	return time.Since(start)
}
