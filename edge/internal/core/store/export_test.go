package store

import (
	"io"

	"github.com/skerry-io/skerry/edge/internal/core/store/boltfile"
)

// For fuzzing: the parsers of data on the disk.
var (
	Unframe = unframe
	Frame   = frame
)

// WalkPages walks as bbolt would, or reads all readable pages.
func WalkPages(file io.ReaderAt, size int64, tolerant bool) error {
	if !tolerant {
		return boltfile.Walk(file, size, strict{})
	}
	trees, _ := boltfile.Trees(file, size)
	for _, tree := range trees {
		if err := tree.Walk(newTree()); err != nil {
			return err
		}
	}
	return nil
}
