package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"k8s.io/apiserver/pkg/storage/value"
)

// Every value in the file is framed: one byte for the encoding of the rest, four bytes of CRC-32C
// over the record's place and content, and the content. bbolt has no checksums of its own below its
// meta pages; flash that forgets a bit would go unnoticed.
const (
	formPlain  = 1
	formSealed = 2
	frameSize  = 5
)

var errFrame = errors.New("a record fails its checksum")

func frameSum(path [][]byte, key []byte, form byte, payload []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli) // a table that the package keeps
	sum := uint32(0)
	for _, p := range path {
		sum = crc32.Update(sum, table, p)
		sum = crc32.Update(sum, table, []byte{0})
	}
	sum = crc32.Update(sum, table, key)
	sum = crc32.Update(sum, table, []byte{0, form})
	return crc32.Update(sum, table, payload)
}

func frame(path [][]byte, key []byte, form byte, payload []byte) []byte {
	out := make([]byte, frameSize, frameSize+len(payload))
	out[0] = form
	binary.LittleEndian.PutUint32(out[1:], frameSum(path, key, form, payload))
	return append(out, payload...)
}

func unframe(path [][]byte, key, value []byte) (form byte, payload []byte, err error) {
	if len(value) < frameSize {
		return 0, nil, errFrame
	}
	form, payload = value[0], value[frameSize:]
	if (form != formPlain && form != formSealed) || binary.LittleEndian.Uint32(value[1:]) != frameSum(path, key, form, payload) {
		return 0, nil, errFrame
	}
	return form, payload, nil
}

func checkFrame(path [][]byte, key, value []byte) error {
	_, _, err := unframe(path, key, value)
	return err
}

// place binds a sealed record to its position, so that a record can't be swapped for another.
func place(path [][]byte, key []byte) value.Context {
	return value.DefaultContext(append(append(bytes.Join(path, []byte{0}), 0), key...))
}
