package nodemetrics

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/nodemetrics"
)

func sampleAt(n int) nodemetrics.Sample {
	return nodemetrics.Sample{Unix: int64(1000 + 60*n), Values: map[uint32]int64{1: int64(n), 2: 5}}
}

// drain takes messages as a cloud does, and returns the times of the samples in the order of their
// arrival. Every third answer is lost.
func drain(t *testing.T, b *buffer) (times []int64, lost uint64) {
	t.Helper()
	through, calls := map[uint64]uint64{}, 0
	for {
		m, err := b.message(true)
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			return times, lost
		}
		samples, err := nodemetrics.Unpack(m)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range samples {
			if n := m.GetFirst() + uint64(i); n > through[m.GetStream()] {
				times = append(times, s.Unix)
				through[m.GetStream()] = n
			}
		}
		if calls++; calls%3 == 0 {
			continue
		}
		lost += m.GetLost()
		b.taken(m.GetStream(), m.GetFirst()+uint64(len(samples))-1, m.GetLost())
	}
}

func times(from, to int) (all []int64) {
	for n := from; n < to; n++ {
		all = append(all, sampleAt(n).Unix)
	}
	return all
}

func fill(t *testing.T, b *buffer, f *file, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		sealed, err := b.add(sampleAt(n))
		if err != nil {
			t.Fatal(err)
		}
		if sealed != nil && f != nil {
			if err := f.append(*sealed, b.blocks); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Samples come once and in order, also after answers were lost.
func TestBuffer_KeepsSamplesUntilTheyAreTaken(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10, 11, 73} {
		b := &buffer{most: 1440, stream: 7, next: 1}
		fill(t, b, nil, 0, n)
		got, lost := drain(t, b)
		if diff := cmp.Diff(times(0, n), got); diff != "" || lost != 0 || b.waiting() != 0 || b.bytes != 0 {
			t.Errorf("%d: %s; %d lost, %d wait in %d bytes", n, diff, lost, b.waiting(), b.bytes)
		}
		fill(t, b, nil, n, n+3)
		if got, _ := drain(t, b); cmp.Diff(times(n, n+3), got) != "" {
			t.Errorf("after %d: %v", n, got)
		}
	}
}

// At the bound the oldest are dropped first, and their number is sent to the cloud.
func TestBuffer_GivesUpTheOldest(t *testing.T) {
	b := &buffer{most: 40, stream: 7, next: 1}
	fill(t, b, nil, 0, 95)
	got, lost := drain(t, b)
	if len(got)+int(lost) != 95 || len(got) < 30 || len(got) > 40+blockSamples || cmp.Diff(times(95-len(got), 95), got) != "" {
		t.Errorf("%d came, %d lost: %v", len(got), lost, got)
	}
	if b.lost != 0 {
		t.Errorf("%d would be reported again", b.lost)
	}
}

// Samples with other series, as after a module was switched off, are another message.
func TestBuffer_OtherSeriesAreAnotherMessage(t *testing.T) {
	b := &buffer{most: 40, stream: 7, next: 1}
	fill(t, b, nil, 0, 2)
	if sealed, err := b.add(nodemetrics.Sample{Unix: 1, Values: map[uint32]int64{1: 1}}); err != nil || sealed == nil || sealed.samples != 2 {
		t.Errorf("%+v, %v", sealed, err)
	}
}

// The blocks on the disk come back, up to a damaged one; a cut of a day takes far less than 1 MiB,
// and with everything taken the file is gone.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodemetrics")
	b, f := &buffer{most: 1440, stream: 7, next: 1}, &file{path: path}
	fill(t, b, f, 0, 1441)
	raw, err := os.ReadFile(path)
	if err != nil || int64(len(raw)) != f.size || len(raw) > 128<<10 {
		t.Fatalf("%d bytes, %d known: %v", len(raw), f.size, err)
	}
	load := func(raw []byte) *buffer {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		again := &buffer{most: 1440, stream: 8, next: 1}
		blocks, err := (&file{path: path}).read()
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range blocks {
			again.load(one)
		}
		return again
	}
	if got, _ := drain(t, load(raw)); cmp.Diff(times(0, 1440), got) != "" {
		t.Errorf("%d came back", len(got))
	}
	for _, cut := range []int{0, 3, recordHead, len(raw) / 2, len(raw) - 1} {
		got, _ := drain(t, load(raw[:cut]))
		if len(got)%blockSamples != 0 || cmp.Diff(times(0, len(got)), got) != "" || len(got) > 1440 {
			t.Errorf("of %d bytes: %d samples", cut, len(got))
		}
	}
	broken := bytes.Clone(raw)
	broken[len(raw)/2] ^= 1
	if got, _ := drain(t, load(broken)); len(got) == 0 || len(got) >= 1440 || cmp.Diff(times(0, len(got)), got) != "" {
		t.Errorf("with a damaged block: %d samples", len(got))
	}
	if err := f.clear(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// The file is written anew at its bound, and has the blocks that are still needed.
func TestFile_IsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodemetrics")
	b, f := &buffer{most: 100, stream: 7, next: 1}, &file{path: path}
	wide := func(n int) nodemetrics.Sample { // 128 series that jump
		s := nodemetrics.Sample{Unix: int64(n), Values: map[uint32]int64{}}
		for id := range uint32(nodemetrics.MaxSeries) {
			s.Values[id] = int64(n) * int64(id) << 40 * int64(1-2*(n%2))
		}
		return s
	}
	for n := range 3000 {
		sealed, err := b.add(wide(n))
		if err != nil {
			t.Fatal(err)
		}
		if sealed == nil {
			continue
		}
		if err := f.append(*sealed, b.blocks); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() > maxFileBytes || info.Size() != f.size || b.bytes > maxBlockBytes {
			t.Fatalf("%v, %d bytes in memory: %v", info, b.bytes, err)
		}
	}
	blocks, err := f.read()
	if err != nil || len(blocks) < len(b.blocks) {
		t.Errorf("%d blocks of %d: %v", len(blocks), len(b.blocks), err)
	}
}

// A full disk costs only the samples that an end of the process would lose.
func TestFile_AfterAFailureIsWrittenAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone", "nodemetrics")
	b, f := &buffer{most: 100, stream: 7, next: 1}, &file{path: path}
	fill(t, b, nil, 0, 21)
	if err := f.append(b.blocks[0], b.blocks[:1]); err == nil {
		t.Fatal("written")
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.append(b.blocks[1], b.blocks); err != nil {
		t.Fatal(err)
	}
	if blocks, err := f.read(); err != nil || len(blocks) != 2 {
		t.Errorf("%d blocks: %v", len(blocks), err)
	}
}

func FuzzParse(f *testing.F) {
	b := &buffer{most: 100, stream: 7, next: 1}
	for n := range 21 {
		if _, err := b.add(sampleAt(n)); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(record(record(nil, b.blocks[0]), b.blocks[1]), false)
	f.Add(b.blocks[0].packed, true)
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool) {
		if sealed { // behind the checksum
			raw = record(record(nil, block{packed: raw}), b.blocks[1])
		}
		blocks, whole := parse(raw)
		if whole > len(raw) {
			t.Fatalf("%d of %d bytes", whole, len(raw))
		}
		for _, one := range blocks {
			if one.samples < 1 || one.through < one.first {
				t.Errorf("%+v", one)
			}
		}
		// A process that continues with them sends each, until all are taken.
		again := &buffer{most: 100, stream: 8, next: 1}
		for _, one := range blocks {
			again.load(one)
		}
		for range len(blocks) {
			m, err := again.message(true)
			if err != nil {
				t.Fatal(err)
			}
			if m == nil {
				break
			}
			again.taken(m.GetStream(), m.GetFirst()+uint64(len(m.GetSteps())), m.GetLost())
		}
		if n := again.waiting(); n != 0 {
			t.Errorf("%d samples are left", n)
		}
	})
}
