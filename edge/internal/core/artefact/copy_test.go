package artefact_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// neighbour is a device of the site.
type neighbour struct {
	name    string
	program []byte
	ends    int64         // its streams end after so many bytes; 0: they are whole
	busy    int           // how often it is busy
	takes   time.Duration // for a stream to begin
	away    int           // how often it is not there, after its first stream

	asked []int64 // the offsets
}

// neighbours are asked in order.
type neighbours []*neighbour

func (all neighbours) Open(ctx context.Context, t artefact.Target, offset int64, skip map[string]bool) (io.ReadCloser, string, error) {
	result := artefact.ErrNoNeighbour
	for _, n := range all {
		switch {
		case skip[n.name] || n.program == nil:
			continue
		case n.away > 0 && len(n.asked) > 0:
			n.away--
			continue
		case n.busy > 0:
			n.busy--
			result = artefact.ErrNeighboursBusy
			continue
		}
		n.asked = append(n.asked, offset)
		select {
		case <-time.After(n.takes):
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
		rest := n.program[min(offset, int64(len(n.program))):]
		if n.ends > 0 {
			rest = rest[:min(n.ends, int64(len(rest)))]
		}
		return io.NopCloser(iotest.OneByteReader(bytes.NewReader(rest))), n.name, nil
	}
	return nil, "", result
}

// asked is the offsets that each device was asked for.
func (all neighbours) asked() map[string][]int64 {
	by := map[string][]int64{}
	for _, n := range all {
		if n.asked != nil {
			by[n.name] = n.asked
		}
	}
	return by
}

func TestCopy(t *testing.T) {
	good := program(1000)
	bad := append(bytes.Clone(good[:500]), make([]byte, 500)...)
	times := func(offset int64, n int) (all []int64) {
		for range n {
			all = append(all, offset)
		}
		return all
	}
	for name, c := range map[string]struct {
		from  neighbours
		begun []byte // on the disk, of an earlier process
		want  error
		asked map[string][]int64
		most  time.Duration
	}{
		"one device has it":   {from: neighbours{{name: "a"}, {name: "b", program: good}}, asked: map[string][]int64{"b": {0}}},
		"none has it":         {from: neighbours{{name: "a"}}, want: artefact.ErrNoNeighbour, asked: map[string][]int64{}},
		"there is no device":  {want: artefact.ErrNoNeighbour, asked: map[string][]int64{}},
		"a part is there":     {from: neighbours{{name: "a", program: good}}, begun: good[:400], asked: map[string][]int64{"a": {400}}},
		"all of it is there":  {from: neighbours{{name: "a"}}, begun: good, asked: map[string][]int64{}},
		"the part is damaged": {from: neighbours{{name: "a", program: good}}, begun: make([]byte, 400), asked: map[string][]int64{"a": {400}, "b": {0}}, want: nil},
		"more is there than there should be": {
			from: neighbours{{name: "a", program: good}}, begun: append(bytes.Clone(good), 1), asked: map[string][]int64{"a": {0}},
		},
		"a stream ends, another device continues": {
			from: neighbours{{name: "a", program: good, ends: 300}, {name: "b", program: good}}, asked: map[string][]int64{"a": {0, 300, 600}, "b": {900}},
		},
		"a device brings nothing": {
			from: neighbours{{name: "a", program: []byte{}}, {name: "b", program: good}}, asked: map[string][]int64{"a": {0}, "b": {0}},
		},
		"other bytes come first": {
			from: neighbours{{name: "a", program: bad}, {name: "b", program: good}}, asked: map[string][]int64{"a": {0}, "b": {0}},
		},
		"other bytes in the middle: both devices are left out": {
			from:  neighbours{{name: "a", program: good, ends: 200}, {name: "b", program: bad}, {name: "c", program: good}},
			asked: map[string][]int64{"a": {0, 200, 400}, "b": {600}, "c": {0}},
		},
		"three other copies are enough": {
			from: neighbours{{name: "a", program: bad}, {name: "b", program: bad}, {name: "c", program: bad}, {name: "d", program: good}},
			want: artefact.ErrNoNeighbour, asked: map[string][]int64{"a": {0}, "b": {0}, "c": {0}},
		},
		"busy for a while": {from: neighbours{{name: "a", program: good, busy: 5}}, asked: map[string][]int64{"a": {0}}, most: time.Minute},
		"busy for ever": {
			from: neighbours{{name: "a", program: good, busy: 1 << 20}}, want: artefact.ErrNoNeighbour, asked: map[string][]int64{}, most: 6 * time.Minute,
		},
		"the only one is away for a moment": {
			from: neighbours{{name: "a", program: good, ends: 600, away: 2}}, asked: map[string][]int64{"a": {0, 600}}, most: time.Minute,
		},
		"so slow that the link is better": {
			from: neighbours{{name: "a", program: good, ends: 1, takes: 20 * time.Minute}}, want: artefact.ErrNoNeighbour, asked: map[string][]int64{"a": times(0, 1)}, most: 31 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				target := artefact.Target{Name: "x", Digest: artefactrepo.Digest(good), Size: int64(len(good))}
				file := filepath.Join(s.dir, target.Digest[len("sha256:"):]+".copy")
				if c.begun != nil {
					s.check(os.WriteFile(file, c.begun, 0o600))
				}
				if name == "the part is damaged" { // the device that completed it is left out with it
					c.from = append(c.from, &neighbour{name: "b", program: good})
				}
				if name == "so slow that the link is better" {
					c.asked["a"] = []int64{0, 1}
				}
				began := time.Now()
				path, err := s.store.Copy(t.Context(), c.from, target, func(int64) {})
				if !errors.Is(err, c.want) {
					t.Fatalf("want %v, got %v", c.want, err)
				}
				if diff := cmp.Diff(c.asked, c.from.asked()); diff != "" {
					t.Errorf("offsets by device (-want +got):\n%s", diff)
				}
				if took := time.Since(began); took > c.most {
					t.Errorf("it took %v, at most %v may be", took, c.most)
				}
				if c.want != nil {
					if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("left on the disk: %v", err)
					}
					return
				}
				info, err := os.Stat(path)
				if err != nil || info.Mode().Perm() != 0o700 || !bytes.Equal(s.read(path), good) {
					t.Errorf("the program is %v, %v", info, err)
				}
			})
		})
	}
}

// The bounds count over all tries of a process for one program, and begin anew for another one, or
// after some hours.
func TestCopyRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		good := program(1000)
		target := artefact.Target{Name: "x", Digest: artefactrepo.Digest(good), Size: int64(len(good))}
		bad := neighbours{{name: "a", program: program(1000)}, {name: "b", program: program(1000)}, {name: "c", program: program(1000)}}
		try := func(from neighbours, t artefact.Target) error {
			_, err := s.store.Copy(s.Context(), from, t, func(int64) {})
			return err
		}
		if err := try(bad, target); !errors.Is(err, artefact.ErrNoNeighbour) {
			t.Fatalf("three wrong copies: %v", err)
		}
		fine := neighbours{{name: "d", program: good}}
		if err := try(fine, target); !errors.Is(err, artefact.ErrNoNeighbour) || fine[0].asked != nil {
			t.Errorf("the next try: %v, asked %v", err, fine.asked())
		}
		other := program(2000)
		if err := try(neighbours{{name: "a", program: other}}, artefact.Target{Name: "y", Digest: artefactrepo.Digest(other), Size: 2000}); err != nil {
			t.Errorf("another program: %v", err)
		}
		if err := try(bad, target); !errors.Is(err, artefact.ErrNoNeighbour) {
			t.Errorf("wrong copies again: %v", err)
		}
		time.Sleep(7 * time.Hour)
		if err := try(fine, target); err != nil {
			t.Errorf("hours later: %v", err)
		}
	})
}

// A canceled copy stays for the next process; a full disk keeps none, and a digest that is none
// begins none; Clean removes the copies of other programs.
func TestCopyFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		good := program(1000)
		target := artefact.Target{Name: "x", Digest: artefactrepo.Digest(good), Size: int64(len(good))}
		file := filepath.Join(s.dir, target.Digest[len("sha256:"):]+".copy")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if _, err := s.store.Copy(ctx, neighbours{{name: "a", program: good, ends: 300, takes: 45 * time.Second}}, target, func(int64) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		if got := s.read(file); !bytes.Equal(got, good[:300]) {
			t.Errorf("%d bytes stay", len(got))
		}
		for _, digest := range []string{"", "sha256:../../x", "sha256:" + target.Digest, target.Digest + "\n"} {
			if _, err := s.store.Copy(t.Context(), neighbours{{name: "a", program: good}}, artefact.Target{Digest: digest, Size: 1}, func(int64) {}); !errors.Is(err, artefact.ErrNoNeighbour) {
				t.Errorf("%q: %v", digest, err)
			}
		}
		s.check(s.store.Clean(target))
		if len(s.read(file)) != 300 {
			t.Error("the copy of the same program was removed")
		}
		s.check(s.store.Clean(artefact.Target{Digest: "sha256:other"}))
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the copy of another program: %v", err)
		}
		s.check(os.WriteFile(file, good[:300], 0o600))
		s.free = 1 << 20
		if _, err := s.store.Copy(t.Context(), nil, target, func(int64) {}); !errors.Is(err, artefact.ErrNoRoom) {
			t.Errorf("a full disk: %v", err)
		}
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the copy on a full disk: %v", err)
		}
	})
}
