package store

import "io"

// For fuzzing: the parsers of data on the disk.
var (
	Unframe = unframe
	Frame   = frame
)

// WalkPages walks as bbolt would, or reads all readable pages.
func WalkPages(file io.ReaderAt, size int64, tolerant bool) error {
	if !tolerant {
		return walkPages(file, size, strict{})
	}
	metas, _ := readMetas(file, size)
	for _, meta := range metas {
		w, err := newWalker(file, size, meta, newTree())
		if err == nil {
			err = w.bucket(meta.root, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
