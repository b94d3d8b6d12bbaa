package nodemetrics

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	// blockSamples is how many samples become a block: the unit of writes to the disk, and the
	// maximum loss of an edgecore that is killed without a link.
	blockSamples = 10
	// maxBlockBytes bounds the blocks together. A day of samples takes some 80 KB.
	maxBlockBytes = 400 << 10
)

// block is samples that are packed, and on the disk as far as there was room.
type block struct {
	stream, first, through uint64
	samples                int
	packed                 []byte // a topicpb.NodeMetrics
}

// readBlock reads a block in the form that is on the disk.
func readBlock(packed []byte) (block, error) {
	var m topicpb.NodeMetrics
	if err := proto.Unmarshal(packed, &m); err != nil {
		return block{}, fmt.Errorf("reading a block of samples: %w", err)
	}
	samples, err := nodemetrics.Unpack(&m)
	if err != nil {
		return block{}, fmt.Errorf("reading a block of samples: %w", err)
	}
	n := len(samples)
	return block{m.GetStream(), m.GetFirst(), m.GetFirst() + uint64(n) - 1, n, packed}, nil
}

// buffer holds the samples that the cloud has not taken: blocks, and the newest ones uncompressed.
// It is a plain value: its owner locks it and writes blocks to the disk.
type buffer struct {
	most   int    // samples
	stream uint64 // of the samples of this process
	next   uint64 // number of the next sample
	blocks []block
	open   []nodemetrics.Sample // the last has the number next-1
	held   int                  // samples in blocks
	bytes  int                  // of blocks
	lost   uint64               // samples that were dropped and not reported
}

// load takes over a block of an earlier process.
func (b *buffer) load(one block) { b.keep(one) }

func (b *buffer) keep(one block) {
	b.blocks = append(b.blocks, one)
	b.held += one.samples
	b.bytes += len(one.packed)
	for len(b.blocks) > 1 && (b.held+len(b.open) > b.most || b.bytes > maxBlockBytes) {
		b.lost += uint64(b.drop())
	}
}

// drop forgets the oldest block, and returns how many samples it had.
func (b *buffer) drop() int {
	n := b.blocks[0].samples
	b.held -= n
	b.bytes -= len(b.blocks[0].packed)
	b.blocks = b.blocks[1:]
	return n
}

// add takes a sample. It returns the block that the samples before it became, if they did.
func (b *buffer) add(s nodemetrics.Sample) (sealed *block, err error) {
	if len(b.open) >= blockSamples || len(b.open) > 0 && !b.open[0].SameSeries(s) {
		if sealed, err = b.seal(); err != nil {
			return nil, err
		}
	}
	b.open = append(b.open, s)
	b.next++
	return sealed, nil
}

// seal makes a block of the open samples, if there are any.
func (b *buffer) seal() (*block, error) {
	if len(b.open) == 0 {
		return nil, nil
	}
	first, n := b.next-uint64(len(b.open)), len(b.open)
	packed, err := proto.Marshal(nodemetrics.Pack(b.stream, first, b.open))
	b.open = nil
	if err != nil {
		b.lost += uint64(n)
		return nil, fmt.Errorf("packing samples: %w", err)
	}
	b.keep(block{b.stream, first, b.next - 1, n, packed})
	return &b.blocks[len(b.blocks)-1], nil
}

// message returns the next message: the oldest block, else the open samples if they are due; nil if
// there is no message.
func (b *buffer) message(due bool) (*topicpb.NodeMetrics, error) {
	m := &topicpb.NodeMetrics{}
	switch {
	case len(b.blocks) > 0:
		if err := proto.Unmarshal(b.blocks[0].packed, m); err != nil {
			return nil, fmt.Errorf("reading a block of samples: %w", err)
		}
	case due && len(b.open) > 0:
		m = nodemetrics.Pack(b.stream, b.next-uint64(len(b.open)), b.open)
	default:
		return nil, nil
	}
	m.Lost = b.lost
	return m, nil
}

// taken forgets the samples of a stream up to a number. lost is the number that the answered
// message reported.
func (b *buffer) taken(stream, through, lost uint64) {
	progress := false
	for len(b.blocks) > 0 && b.blocks[0].stream == stream && b.blocks[0].through <= through {
		b.drop()
		progress = true
	}
	if first := b.next - uint64(len(b.open)); stream == b.stream && len(b.blocks) == 0 && through >= first && len(b.open) > 0 {
		b.open = b.open[min(through-first+1, uint64(len(b.open))):]
		if len(b.open) == 0 {
			b.open = nil
		}
		progress = true
	}
	if progress {
		b.lost -= min(lost, b.lost)
	}
}

// waiting is how many samples the cloud has not taken.
func (b *buffer) waiting() int { return b.held + len(b.open) }
