package store_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// writerChild writes entries from several goroutines and prints each number once Update has
// returned.
func writerChild() {
	s, err := store.Open(context.Background(), store.Config{Path: os.Args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	first, _ := strconv.ParseUint(os.Args[2], 10, 64)
	var mu sync.Mutex
	next := first
	for range 4 {
		go func() {
			for {
				mu.Lock()
				id := next
				next++
				mu.Unlock()
				if err := s.Update(context.Background(), func(tx *store.Tx) error {
					if id%7 == 0 {
						if err := tx.DeleteEntry(id - 3); err != nil {
							return err
						}
					}
					return tx.PutEntry(id, entryNumber(id))
				}); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(id)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// Writes acknowledged by Update survive each of 200 kill -9 at random moments.
func TestIsland_17_KilledAtAnyMomentNothingAcknowledgedIsMissing(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 10
	}
	path := filepath.Join(t.TempDir(), "edge.db")
	r := rand.New(rand.NewPCG(1, 2))
	acknowledged := map[uint64]bool{}
	first := uint64(1)
	for round := range rounds {
		cmd := child(t, "writer", path, fmt.Sprint(first))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := func(within int) {
			time.AfterFunc(time.Duration(r.IntN(within))*time.Millisecond, func() { cmd.Process.Kill() })
		}
		begun := round%5 == 0 // now and then while it starts, mostly while it writes
		if begun {
			kill(150)
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !begun {
				begun = true
				kill(60)
			}
			if id, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
				acknowledged[id] = true
				first = max(first, id+10)
			}
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the writer ended by itself: %v", err)
		}

		s := open(t, path)
		if s.SetAside() != "" {
			t.Fatal("the store was found damaged")
		}
		have := map[uint64]*storepb.Entry{}
		if err := s.View(func(tx *store.Tx) error {
			return tx.Entries(func(id uint64, e *storepb.Entry) error { have[id] = e; return nil })
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		for id := range acknowledged {
			e := have[id]
			if e == nil {
				// Its deletion may have been on the disk although it was not acknowledged.
				if (id+3)%7 != 0 {
					t.Errorf("entry %d was acknowledged and is missing", id)
				}
				continue
			}
			if !proto.Equal(entryNumber(id), e) {
				t.Errorf("entry %d: %s", id, cmp.Diff(entryNumber(id), e, protocmp.Transform()))
			}
		}
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was ever acknowledged: the test shows nothing")
	}
}
