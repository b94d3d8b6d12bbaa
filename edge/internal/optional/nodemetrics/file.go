package nodemetrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
)

// maxFileBytes is the size at which the file is written anew with the blocks that are still needed:
// at most maxBlockBytes. Both files together stay below 1 MiB.
const maxFileBytes = 512 << 10

const recordHead = 8 // length and checksum of a block, big-endian

// file has the blocks on the disk, one after the other. It is never flushed: a power cut may take
// the last ones, and idle, with a link, it is not written at all.
type file struct {
	path string
	size int64 // -1: not known; the file is written anew then
}

// read returns the blocks of the file, up to the first that is damaged.
func (f *file) read() ([]block, error) {
	raw, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		f.size = -1
		return nil, fmt.Errorf("reading samples: %w", err)
	}
	blocks, whole := parse(raw)
	if f.size = int64(whole); whole < len(raw) {
		f.size = -1
	}
	return blocks, nil
}

// parse reads blocks, and returns how many bytes they took.
func parse(raw []byte) (blocks []block, whole int) {
	for len(raw)-whole >= recordHead {
		head := raw[whole:]
		n := int64(binary.BigEndian.Uint32(head))
		if n > int64(len(head)-recordHead) {
			break
		}
		packed := head[recordHead : recordHead+n]
		if crc32.ChecksumIEEE(packed) != binary.BigEndian.Uint32(head[4:]) {
			break
		}
		one, err := readBlock(packed)
		if err != nil {
			break
		}
		blocks = append(blocks, one)
		whole += recordHead + int(n)
	}
	return blocks, whole
}

func record(to []byte, one block) []byte {
	to = binary.BigEndian.AppendUint32(to, uint32(len(one.packed)))
	to = binary.BigEndian.AppendUint32(to, crc32.ChecksumIEEE(one.packed))
	return append(to, one.packed...)
}

// append adds a block; all are the blocks that are needed, it included.
func (f *file) append(one block, all []block) error {
	raw := record(nil, one)
	if f.size < 0 || f.size+int64(len(raw)) > maxFileBytes {
		return f.replace(all)
	}
	if err := f.write(raw, os.O_APPEND); err != nil {
		f.size = -1 // a part of it may be there
		return err
	}
	f.size += int64(len(raw))
	return nil
}

// replace writes the file anew, with other content for readers from one moment to the next.
func (f *file) replace(all []block) error {
	var raw []byte
	for _, one := range all {
		raw = record(raw, one)
	}
	next := file{path: f.path + ".new"}
	err := next.write(raw, os.O_TRUNC)
	if err == nil {
		err = os.Rename(next.path, f.path)
	}
	if err != nil {
		f.size = -1
		_ = os.Remove(next.path)
		return fmt.Errorf("writing samples: %w", err)
	}
	f.size = int64(len(raw))
	return nil
}

// clear removes the file.
func (f *file) clear() error {
	if f.size == 0 {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing samples: %w", err)
	}
	f.size = 0
	return nil
}

func (f *file) write(raw []byte, how int) error {
	to, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|how, 0o600)
	if err != nil {
		return fmt.Errorf("writing samples: %w", err)
	}
	_, err = to.Write(raw)
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("writing samples: %w", err)
	}
	return nil
}
