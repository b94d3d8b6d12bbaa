// Package boltfile reads a file of bbolt's page by page, with plain reads, as bbolt trusts what it
// maps: a wrong page number ends in a panic in one of its goroutines or a fault that can't be
// recovered.
//
// It owns the layout of bbolt's file format 2: page header {id u64, flags u16, count u16, overflow
// u32}; two meta pages, the valid one with the higher transaction wins; a tree of branch and leaf
// pages for each bucket; a list of free pages. See go.etcd.io/bbolt/internal/common (page.go,
// meta.go, bucket.go). It refuses every file that bbolt would not read safely, and changes none.
// The meaning of records is the Visitor's. A Tree is walked by one goroutine at a time.
package boltfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

const (
	pageHeader     = 16
	elementSize    = 16
	bucketHeader   = 16
	metaSize       = 64
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	flagBranch     = 0x01
	flagLeaf       = 0x02
	flagFreelist   = 0x10
	leafIsBucket   = 0x01
	noFreelist     = ^uint64(0)
	maxTreeDepth   = 64
	maxBucketDepth = 8
)

// ErrDamaged is found by errors.Is in every DamageError.
var ErrDamaged = errors.New("the store is damaged")

// DamageError describes the damage of a file.
type DamageError struct{ Reason string }

func (e *DamageError) Error() string { return ErrDamaged.Error() + ": " + e.Reason }

// Is implements errors.Is for ErrDamaged.
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// ReadError is an I/O error of the disk, which may pass: it does not mean that the file is damaged.
type ReadError struct{ err error }

func (e *ReadError) Error() string { return e.err.Error() }

func (e *ReadError) Unwrap() error { return e.err }

// Visitor gets the records of a walk. A path is of buckets; the empty one is of the file's root.
type Visitor interface {
	// Record is called for every record; its error is damage like any other.
	Record(path [][]byte, key, value []byte) error
	// Enter is called for every bucket, before its records.
	Enter(path [][]byte)
	// Damaged is called for each error in a bucket, its records included. The walk continues with
	// the rest, or ends with the error that Damaged returns.
	Damaged(path [][]byte, err error) error
}

// Tree is the content of a file as of one of its meta pages.
type Tree struct {
	file io.ReaderAt
	size int64
	meta boltMeta
}

// Trees returns the trees of the valid meta pages, the newest first. bbolt writes them in turn, so
// that the second is the file as it was one transaction before, whose pages are all still there.
// The error is of the disk.
func Trees(file io.ReaderAt, size int64) ([]Tree, error) {
	metas, err := readMetas(file, size)
	trees := make([]Tree, len(metas))
	for i, m := range metas {
		trees[i] = Tree{file, size, m}
	}
	return trees, err
}

// Walk visits all buckets of a tree.
func (t Tree) Walk(v Visitor) error {
	_, err := t.walk(v)
	return err
}

func (t Tree) walk(v Visitor) (*walker, error) {
	w := &walker{Visitor: v, file: t.file, size: t.size, pageSize: t.meta.pageSize, high: t.meta.high, seen: map[uint64]struct{}{}}
	if w.high < 3 || w.high > uint64(w.size/w.pageSize) {
		return nil, &DamageError{Reason: fmt.Sprintf("it says that it has %d pages, it has %d", w.high, w.size/w.pageSize)}
	}
	return w, w.bucket(t.meta.root, nil)
}

// Walk visits all buckets of a file as bbolt would: by the newest valid meta page, with the list of
// free pages.
func Walk(file io.ReaderAt, size int64, v Visitor) error {
	trees, err := Trees(file, size)
	if len(trees) == 0 && err != nil {
		return &ReadError{fmt.Errorf("its meta pages can't be read: %w", err)}
	}
	if len(trees) == 0 {
		return &DamageError{Reason: "neither of its meta pages is valid"}
	}
	w, err := trees[0].walk(v)
	if err != nil {
		return err
	}
	return w.freelist(trees[0].meta.freelist)
}

// walker is one walk through a tree.
type walker struct {
	Visitor
	file     io.ReaderAt
	size     int64
	pageSize int64
	high     uint64 // pages at and above this are not in use
	seen     map[uint64]struct{}
}

type boltMeta struct {
	pageSize             int64
	root, freelist, high uint64
	txid                 uint64
}

// readMetas finds the valid meta pages, the newest first. The second one's place depends on the
// page size, which only a meta page tells: all are tried. The error is of the disk.
func readMetas(file io.ReaderAt, size int64) (metas []boltMeta, err error) {
	try := func(offset int64) {
		b := make([]byte, pageHeader+metaSize)
		if _, failed := file.ReadAt(b, offset); failed != nil {
			if !errors.Is(failed, io.EOF) {
				err = failed
			}
			return
		}
		if m, ok := parseMeta(b[pageHeader:]); ok && (offset == 0 || offset == m.pageSize) {
			metas = append(metas, m)
		}
	}
	try(0)
	for shift := 10; shift <= 24 && int64(1)<<shift < size; shift++ {
		try(int64(1) << shift)
	}
	slices.SortStableFunc(metas, func(a, b boltMeta) int { return cmp.Compare(b.txid, a.txid) })
	return metas, err
}

func parseMeta(b []byte) (boltMeta, bool) {
	e := binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(b[:56])
	if e.Uint32(b) != boltMagic || e.Uint32(b[4:]) != boltVersion || e.Uint64(b[56:]) != sum.Sum64() {
		return boltMeta{}, false
	}
	m := boltMeta{
		pageSize: int64(e.Uint32(b[8:])), root: e.Uint64(b[16:]), freelist: e.Uint64(b[32:]), high: e.Uint64(b[40:]), txid: e.Uint64(b[48:]),
	}
	return m, m.pageSize >= 1024 && m.pageSize <= 1<<24 && m.pageSize&(m.pageSize-1) == 0
}

// bucket walks the tree that begins at a page.
func (w *walker) bucket(root uint64, path [][]byte) error {
	if len(path) > maxBucketDepth {
		return w.Damaged(path, &DamageError{Reason: "buckets are nested too deep"})
	}
	w.Enter(path)
	var last []byte
	return w.tree(root, 0, path, &last, keys{})
}

// keys is the range of keys below an element of a branch: from is inclusive, to exclusive; nil: no
// bound. bbolt searches by them, and ends the process if they are wrong while it looks for free
// pages.
type keys struct{ from, to []byte }

func (k keys) hold(key []byte) bool {
	return bytes.Compare(key, k.from) >= 0 && (k.to == nil || bytes.Compare(key, k.to) < 0)
}

func (w *walker) tree(id uint64, depth int, path [][]byte, last *[]byte, within keys) error {
	if depth > maxTreeDepth {
		return w.Damaged(path, &DamageError{Reason: "a tree is too deep"})
	}
	page, err := w.page(id)
	if err != nil {
		return w.Damaged(path, err)
	}
	return w.content(id, page, depth, path, last, within)
}

func (w *walker) content(id uint64, page []byte, depth int, path [][]byte, last *[]byte, within keys) error {
	e := binary.NativeEndian
	flags, count := e.Uint16(page[8:]), int(e.Uint16(page[10:]))
	if flags != flagBranch && flags != flagLeaf {
		return w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d is of type %#x in the place of a branch or leaf page", id, flags)})
	}
	if pageHeader+count*elementSize > len(page) || (flags == flagBranch && count == 0) {
		return w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d has %d elements, more or less than it can have", id, count)})
	}
	// bbolt packs the elements' data behind the last element, in their order and without gaps: that
	// reveals a wrong number of elements.
	if end, ok := packed(page, flags, count); !ok {
		if err := w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d: what its element %d leads to is not in its place", id, end)}); err != nil {
			return err
		}
	}
	for i := range count {
		at := pageHeader + i*elementSize
		if flags == flagLeaf {
			if err := w.leaf(id, page, at, path, last, within); err != nil {
				return err
			}
			continue
		}
		below, err := branchKeys(id, page, i, count, within)
		if err != nil {
			if err := w.Damaged(path, err); err != nil {
				return err
			}
			below = keys{} // the pages below may be whole
		}
		if err := w.tree(e.Uint64(page[at+8:]), depth+1, path, last, below); err != nil {
			return err
		}
	}
	return nil
}

// packed reports whether the data of a page's elements is contiguous, and if not which element is
// the first that violates it. A page without elements, of which bbolt has written only the header,
// is zero beyond.
func packed(page []byte, flags uint16, count int) (bad int, ok bool) {
	e := binary.NativeEndian
	if count == 0 {
		return 0, len(bytes.Trim(page[pageHeader:], "\x00")) == 0
	}
	next := uint64(pageHeader + count*elementSize)
	for i := range count {
		at := pageHeader + i*elementSize
		pos, size := e.Uint32(page[at:]), uint64(e.Uint32(page[at+4:]))
		if flags == flagLeaf {
			pos, size = e.Uint32(page[at+4:]), uint64(e.Uint32(page[at+8:]))+uint64(e.Uint32(page[at+12:]))
		}
		if uint64(at)+uint64(pos) != next {
			return i, false
		}
		next += size
	}
	return 0, true
}

// branchKeys returns the range of keys below element i of a branch.
func branchKeys(id uint64, page []byte, i, count int, within keys) (keys, error) {
	key := func(i int) []byte {
		at := pageHeader + i*elementSize
		k, _ := slice(page, at, binary.NativeEndian.Uint32(page[at:]), binary.NativeEndian.Uint32(page[at+4:]))
		return k
	}
	below := keys{key(i), within.to}
	if len(below.from) == 0 {
		return keys{}, &DamageError{Reason: fmt.Sprintf("page %d: element %d leads out of it", id, i)}
	}
	if !within.hold(below.from) {
		return keys{}, &DamageError{Reason: fmt.Sprintf("page %d: element %d is in another's place", id, i)}
	}
	if i+1 == count {
		return below, nil
	}
	if below.to = key(i + 1); bytes.Compare(below.from, below.to) >= 0 {
		return keys{}, &DamageError{Reason: fmt.Sprintf("page %d: element %d is out of order", id, i)}
	}
	return below, nil
}

func (w *walker) leaf(id uint64, page []byte, at int, path [][]byte, last *[]byte, within keys) error {
	e := binary.NativeEndian
	flags, pos, ksize, vsize := e.Uint32(page[at:]), e.Uint32(page[at+4:]), e.Uint32(page[at+8:]), e.Uint32(page[at+12:])
	key, ok := slice(page, at, pos, ksize)
	value, ok2 := slice(page, at, pos+ksize, vsize)
	if !ok || !ok2 || len(key) == 0 || pos+ksize < pos {
		return w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d: a record leads out of it", id)})
	}
	if *last != nil && bytes.Compare(key, *last) <= 0 {
		if err := w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d: keys are out of order", id)}); err != nil {
			return err
		}
	}
	if !within.hold(key) {
		if err := w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d: a key is in another's place", id)}); err != nil {
			return err
		}
	}
	*last = key
	if flags&leafIsBucket == 0 {
		if err := w.Record(path, key, value); err != nil {
			return w.Damaged(path, &DamageError{Reason: fmt.Sprintf("page %d: %v", id, err)})
		}
		return nil
	}
	inner := append(append([][]byte{}, path...), bytes.Clone(key))
	if len(value) < bucketHeader {
		return w.Damaged(inner, &DamageError{Reason: fmt.Sprintf("page %d: a bucket is cut off", id)})
	}
	root := e.Uint64(value)
	if root != 0 {
		return w.bucket(root, inner)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || len(inner) > maxBucketDepth || e.Uint16(inline[8:]) != flagLeaf {
		return w.Damaged(inner, &DamageError{Reason: fmt.Sprintf("page %d: a small bucket is cut off", id)})
	}
	w.Enter(inner)
	var innerLast []byte
	return w.content(id, inline, 0, inner, &innerLast, keys{})
}

// slice is page[at+pos:][:size], if that is inside the page.
func slice(page []byte, at int, pos, size uint32) ([]byte, bool) {
	from := uint64(at) + uint64(pos)
	if from+uint64(size) > uint64(len(page)) {
		return nil, false
	}
	return page[from : from+uint64(size)], true
}

// page reads a page with its overflow and marks all of it as used.
func (w *walker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.high {
		return nil, &DamageError{Reason: fmt.Sprintf("page %d is asked for, there are %d", id, w.high)}
	}
	header := make([]byte, pageHeader)
	if _, err := w.file.ReadAt(header, int64(id)*w.pageSize); err != nil {
		return nil, unread(id, err)
	}
	overflow := uint64(binary.NativeEndian.Uint32(header[12:]))
	if self := binary.NativeEndian.Uint64(header); self != id {
		return nil, &DamageError{Reason: fmt.Sprintf("page %d says that it is page %d", id, self)}
	}
	if overflow >= w.high-id {
		return nil, &DamageError{Reason: fmt.Sprintf("page %d says that it is %d pages long", id, overflow+1)}
	}
	for p := id; p <= id+overflow; p++ {
		if _, ok := w.seen[p]; ok {
			return nil, &DamageError{Reason: fmt.Sprintf("page %d is used twice", p)}
		}
		w.seen[p] = struct{}{}
	}
	page := make([]byte, int64(overflow+1)*w.pageSize)
	if _, err := w.file.ReadAt(page, int64(id)*w.pageSize); err != nil {
		return nil, unread(id, err)
	}
	return page, nil
}

// unread returns the error of an unreadable page: if the file ends before it, the file is damaged;
// otherwise the disk is failing.
func unread(id uint64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &DamageError{Reason: fmt.Sprintf("page %d can't be read: %v", id, err)}
	}
	return &ReadError{fmt.Errorf("page %d can't be read: %w", id, err)}
}

// freelist checks that no page is both free and in use: bbolt would write over it.
func (w *walker) freelist(id uint64) error {
	if id == noFreelist {
		return nil
	}
	page, err := w.page(id)
	if err != nil {
		return err
	}
	e := binary.NativeEndian
	if e.Uint16(page[8:]) != flagFreelist {
		return &DamageError{Reason: fmt.Sprintf("page %d is no list of free pages", id)}
	}
	count, at := uint64(e.Uint16(page[10:])), pageHeader
	if count == 0xFFFF { // the number did not fit: it is the first element
		count, at = e.Uint64(page[at:]), at+8
	}
	if count > uint64(len(page)-at)/8 {
		return &DamageError{Reason: "the list of free pages is cut off"}
	}
	for i := range count {
		free := e.Uint64(page[at+int(i)*8:])
		if free < 2 || free >= w.high {
			return &DamageError{Reason: fmt.Sprintf("page %d is free, there are %d", free, w.high)}
		}
		if _, ok := w.seen[free]; ok {
			return &DamageError{Reason: fmt.Sprintf("page %d is both free and in use", free)}
		}
		w.seen[free] = struct{}{}
	}
	return nil
}
