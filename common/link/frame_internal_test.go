package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/skerry-io/skerry/common/topic"
)

func testConfig() Config {
	c := Default()
	c.MaxMessage, c.MaxAssembly = 256<<10, 600<<10
	return c
}

func newAssembler(config Config, lanes bool) *assembler {
	return &assembler{config: &config, lanes: lanes, assembly: newAssembly(config.MaxAssembly, lanes)}
}

// next reassembles the frames of fill, whatever the lengths, the batches and the classes are.
func TestFrames_CutAndPutTogether(t *testing.T) {
	config := testConfig()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		size := []int{4 << 10, MaxBatch, 2000}[seed%3]
		queues := make([]*sendQueue, topic.Classes)
		var want [topic.Classes][][]byte
		for class := range queues {
			queues[class] = &sendQueue{}
			for range r.IntN(12) {
				n := []int{
					1, 1 + r.IntN(300), size - headSize, size - headSize + 1, size - firstHeadSize, MaxFrame, MaxFrame + 1 + r.IntN(4), 1 + r.IntN(200<<10),
				}[r.IntN(8)]
				if class == int(topic.Urgent) {
					n = min(n, maxUrgent)
				}
				data := make([]byte, n)
				for i := range data {
					data[i] = byte(r.Uint32())
				}
				want[class] = append(want[class], data)
				queues[class].put(&outgoing{data: data})
			}
		}
		var wire bytes.Buffer
		assembling := 0
		var messages int
		for {
			batch, done := fill(nil, size, queues, 0, &assembling, config.MaxAssembly)
			if len(batch) > size {
				t.Fatalf("seed %d: batch of %d bytes, the bound is %d", seed, len(batch), size)
			}
			if assembling < 0 || assembling > config.MaxAssembly {
				t.Fatalf("seed %d: %d bytes are under way", seed, assembling)
			}
			bytes := 0
			for _, w := range done {
				bytes += w.bytes
				messages += w.messages
			}
			if bytes != len(batch) {
				t.Fatalf("seed %d: %d bytes counted of %d", seed, bytes, len(batch))
			}
			if len(batch) == 0 {
				break
			}
			wire.Write(batch)
		}
		a := newAssembler(config, false)
		var got [topic.Classes]int
		for {
			class, data, held, err := a.next(t.Context(), &wire)
			a.assembly.release(held)
			if errors.Is(err, io.EOF) && wire.Len() == 0 {
				break
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if !bytes.Equal(data, want[class][got[class]]) {
				t.Fatalf("seed %d: message %d of class %s came as another", seed, got[class], class)
			}
			got[class]++
			messages--
		}
		for class := range want {
			if got[class] != len(want[class]) {
				t.Fatalf("seed %d: %d messages of class %s came, want %d", seed, got[class], topic.Class(class), len(want[class]))
			}
		}
		if messages != 0 || assembling != 0 || !a.assembly.room.TryAcquire(int64(config.MaxAssembly)) {
			t.Fatalf("seed %d: the books don't balance", seed)
		}
	}
}

// A heartbeat that comes while bulk is under way goes into the next batch, first.
func TestFill_LowestClassFirst(t *testing.T) {
	queues := make([]*sendQueue, topic.Classes)
	for class := range queues {
		queues[class] = &sendQueue{}
	}
	assembling := 0
	queues[topic.Bulk].put(&outgoing{data: make([]byte, 100<<10)})
	batch, _ := fill(nil, 4<<10, queues, 0, &assembling, 1<<20)
	if class := topic.Class(batch[0] & classMask); class != topic.Bulk {
		t.Fatalf("the first batch begins with class %s", class)
	}
	queues[topic.Urgent].put(&outgoing{data: make([]byte, 10)})
	batch, done := fill(nil, 4<<10, queues, 0, &assembling, 1<<20)
	if class := topic.Class(batch[0] & classMask); class != topic.Urgent || done[topic.Urgent].messages != 1 {
		t.Errorf("the second batch begins with class %s", class)
	}
	if len(batch) < 4000 {
		t.Errorf("the rest of the batch stays empty: %d bytes", len(batch))
	}
}

func TestFill_LatestReplacesWhatWaits(t *testing.T) {
	key := latestKey{key: topic.Heartbeat.Key()}
	latest := func(s string, weight int64) *outgoing {
		return &outgoing{data: []byte(s), weight: weight, latest: &latestKey{key.key, key.resource}}
	}
	q := &sendQueue{}
	q.put(latest("one", 1))
	q.put(&outgoing{data: []byte("other")})
	if free := q.put(latest("two", 5)); free != 1 {
		t.Errorf("free is %d, want the older's 1", free)
	}
	q.begin() // from here on it can't be replaced
	q.put(latest("three", 3))
	q.put(latest("four", 4))
	var got []string
	for len(q.waiting) > 0 {
		q.begin()
		m := q.pop()
		got = append(got, string(m.data))
	}
	if want := "[two other four]"; len(got) != 3 || got[0] != "two" || got[1] != "other" || got[2] != "four" {
		t.Errorf("sent %v, want %s", got, want)
	}
}

// A length is no reason to take memory: only bytes that come are.
func TestAssembler_TakesNoMemoryForLengths(t *testing.T) {
	config := Default()
	first := binary.BigEndian.AppendUint32(append([]byte{frameFirst | byte(topic.Bulk)}, 0, 1), uint32(config.MaxMessage))
	first = append(first, 'x')
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		if _, _, _, err := newAssembler(config, false).next(t.Context(), bytes.NewReader(first)); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("100 messages of %d bytes that never came took %d bytes", config.MaxMessage, took)
	}
}

func FuzzAssembler(f *testing.F) {
	batch, _ := appendFrame(nil, topic.Normal, []byte("hello"), 0, 100)
	f.Add(batch, false)
	long := make([]byte, 300)
	batch, sent := appendFrame(nil, topic.Bulk, long, 0, 200)
	batch, _ = appendFrame(batch, topic.Urgent, []byte("beat"), 0, 200)
	batch, _ = appendFrame(batch, topic.Bulk, long, sent, 200)
	f.Add(batch, false)
	f.Add(batch, true)
	f.Add([]byte{frameFirst, 0, 1, 0xff, 0xff, 0xff, 0xff, 0}, false)
	// Many messages that begin and never end, in each class.
	var begun []byte
	for i := range 512 {
		begun, _ = appendFrame(begun, topic.Class(i%topic.Classes), long, 0, 20)
	}
	f.Add(begun, false)
	f.Add(begun, true)
	f.Fuzz(func(t *testing.T, wire []byte, lanes bool) {
		config := testConfig()
		a := newAssembler(config, lanes)
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // whatever would wait for room fails instead
		r := bytes.NewReader(wire)
		total := 0
		for {
			class, data, held, err := a.next(ctx, r)
			a.assembly.release(held)
			if err != nil {
				break
			}
			if len(data) == 0 || len(data) > maxWire(config.MaxMessage, class == topic.Urgent) {
				t.Fatalf("message of %d bytes", len(data))
			}
			total += len(data)
		}
		if total > len(wire) {
			t.Fatalf("%d bytes of messages out of %d", total, len(wire))
		}
		a.close()
		if !a.assembly.room.TryAcquire(int64(config.MaxAssembly)) {
			t.Fatal("room stays taken")
		}
	})
}
