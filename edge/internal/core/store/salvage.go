package store

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/boltfile"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// All readable records of a damaged file are kept. bbolt's two meta pages point to two trees: the
// newest, and the one before its last transaction, whose pages are all still there. Objects and
// interests belong together, so both come from one tree: from the newest that is whole, as if the
// device had lost its power one transaction earlier, and where neither is, from the newest, each
// resource by itself. Of a resource that is not whole the records that can be read are kept, but
// the interests that it belongs to are no longer synced: a set with holes never passes for the
// whole, and the cloud sends the missing objects. Records that the cloud can't restore (pending
// writes, answers, states of modules) are kept one by one, from both trees.

// tree has the content found by a walk through one of a file's trees.
type tree struct {
	buckets map[string]*foundBucket // by pathKey
	whole   bool                    // the walk met no damage
}

type foundBucket struct {
	path    [][]byte
	records map[string][]byte // framed values that have passed their checksums
	entered bool
	bad     int // damaged records in it
}

func newTree() *tree { return &tree{buckets: map[string]*foundBucket{}, whole: true} }

func pathKey(path [][]byte) string { return string(bytes.Join(path, []byte{0})) }

func pathOf(names ...[]byte) [][]byte { return names }

func (t *tree) bucket(path [][]byte) *foundBucket {
	b := t.buckets[pathKey(path)]
	if b == nil {
		b = &foundBucket{path: slices.Clone(path), records: map[string][]byte{}}
		t.buckets[pathKey(path)] = b
	}
	return b
}

// Record implements boltfile.Visitor, as Enter and Damaged do: it keeps a record that passes its
// checksum.
func (t *tree) Record(path [][]byte, key, value []byte) error {
	if _, _, err := unframe(path, key, value); err != nil {
		return err
	}
	t.bucket(path).records[string(key)] = bytes.Clone(value)
	return nil
}

// Enter notes that a bucket was found.
func (t *tree) Enter(path [][]byte) { t.bucket(path).entered = true }

// Damaged counts damage; the walk continues.
func (t *tree) Damaged(path [][]byte, _ error) error {
	t.bucket(path).bad++
	t.whole = false
	return nil
}

// complete reports whether the whole content of a bucket was found; true for a missing bucket.
func (t *tree) complete(path [][]byte) bool {
	b := t.buckets[pathKey(path)]
	if b != nil && b.bad > 0 {
		return false
	}
	if len(path) == 0 {
		return b != nil && b.entered
	}
	if b != nil && b.entered {
		return true
	}
	// It was never made, or its name can't be read: then its parent is damaged, or there is a
	// bucket whose records all fail, for their checksums are over its name too.
	parent := path[:len(path)-1]
	return len(parent) > 0 && t.complete(parent) && !t.misnamed(parent)
}

// misnamed reports whether a bucket within parent may have another name than the one that was read.
func (t *tree) misnamed(parent [][]byte) bool {
	for _, b := range t.buckets {
		if len(b.path) == len(parent)+1 && pathKey(b.path[:len(parent)]) == pathKey(parent) && b.bad > 0 && len(b.records) == 0 {
			return true
		}
	}
	return false
}

func (t *tree) records(path [][]byte) map[string][]byte {
	if b := t.buckets[pathKey(path)]; b != nil {
		return b.records
	}
	return nil
}

// salvage has the kept content of a damaged file, and the names of the lost records.
type salvage struct {
	numbers   map[Number]uint64
	interests map[uint64]*storepb.Interest
	records   []rawRecord // of the outbox, answers, modules, objects and events
	lost      []string
	holes     bool // in objects or interests
}

// rawRecord is a record in its encoding in the file.
type rawRecord struct {
	path       [][]byte
	key, value []byte
}

// readTrees reads all readable trees, the newest first. It returns no tree for a file without meta
// pages.
func readTrees(path string) (trees []*tree) {
	// Unreadable data is missing in the trees, which record that.
	_ = withFile(path, func(f io.ReaderAt, size int64) error {
		found, _ := boltfile.Trees(f, size) // readable meta pages are used
		for _, tree := range found {
			t := newTree()
			if err := tree.Walk(t); err == nil && len(trees) < 2 {
				trees = append(trees, t)
			}
		}
		return nil
	})
	return trees
}

// unseal drops the sealed records that can't be opened: of another key, or of another place in a
// file that was put together by hand.
func (t *tree) unseal(opens func(path [][]byte, key, sealed []byte) bool) {
	for _, b := range t.buckets {
		if len(b.path) > 0 && bytes.Equal(b.path[0], bucketMeta) {
			continue
		}
		for key, value := range b.records {
			if value[0] == formSealed && !opens(b.path, []byte(key), value[frameSize:]) {
				delete(b.records, key)
				b.bad++
				t.whole = false
			}
		}
	}
}

// planOf decides which content of a file's trees is kept.
func planOf(trees []*tree) *salvage {
	switch len(trees) {
	case 0:
		return &salvage{lost: []string{"everything: neither of the file's meta pages can be used"}, holes: true}
	case 1:
		return plan(trees[0], nil)
	}
	return plan(trees[0], trees[1])
}

// plan decides which content is kept; before may be nil.
func plan(newest, before *tree) *salvage {
	s := &salvage{numbers: map[Number]uint64{}, interests: map[uint64]*storepb.Interest{}}
	base := newest
	switch {
	case before == nil:
		before = newest
	case before.whole && !newest.whole:
		base = before
		s.lost = append(s.lost, "the last transaction: objects are as they were before it")
	}
	s.keepNumbers(newest, before)
	s.keepEach(pathOf(bucketOutbox), newest, before, func(key, payload []byte) bool {
		return len(key) == 8 && proto.Unmarshal(payload, &storepb.Entry{}) == nil
	})
	s.keepEach(pathOf(bucketAnswers), newest, before, nil)
	s.keepModules(newest, before)
	s.keepObjects(base)
	if !base.complete(pathOf(bucketEvents)) {
		s.lost = append(s.lost, "events of the device that could not be read")
	}
	s.add(pathOf(bucketEvents), base.records(pathOf(bucketEvents)))
	return s
}

func (s *salvage) add(path [][]byte, records map[string][]byte) {
	for _, key := range slices.Sorted(maps.Keys(records)) {
		s.records = append(s.records, rawRecord{path, []byte(key), records[key]})
	}
}

// keepNumbers keeps the higher of both: numbers only grow.
func (s *salvage) keepNumbers(trees ...*tree) {
	path := pathOf(bucketMeta)
	for _, t := range trees {
		for _, n := range []Number{Version, Epoch, Entry, Interest, Dropped, LastTime} {
			_, payload, err := unframe(path, []byte(n), t.records(path)[string(n)])
			if err == nil && len(payload) == 8 {
				s.numbers[n] = max(s.numbers[n], binary.BigEndian.Uint64(payload))
			}
		}
	}
}

// keepEach keeps the records of a bucket of which each counts by itself. If the newest tree is
// incomplete, records that only the previous one has are kept too: some of them may have been
// deleted.
func (s *salvage) keepEach(path [][]byte, newest, before *tree, good func(key, payload []byte) bool) {
	kept := map[string][]byte{}
	if !newest.complete(path) {
		maps.Copy(kept, before.records(path))
		s.lost = append(s.lost, string(path[0])+": records that could not be read")
	}
	maps.Copy(kept, newest.records(path))
	maps.DeleteFunc(kept, func(key string, value []byte) bool {
		_, payload, err := unframe(path, []byte(key), value)
		return err != nil || (good != nil && !good([]byte(key), payload))
	})
	s.add(path, kept)
}

func (s *salvage) keepModules(newest, before *tree) {
	names := map[string]struct{}{}
	for _, t := range []*tree{newest, before} {
		for _, b := range t.buckets {
			if len(b.path) == 2 && bytes.Equal(b.path[0], bucketModules) && len(b.records) > 0 {
				names[string(b.path[1])] = struct{}{}
			}
		}
	}
	if !newest.complete(pathOf(bucketModules)) {
		s.lost = append(s.lost, "modules: some state could not be read")
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s.keepEach(pathOf(bucketModules, []byte(name)), newest, before, nil)
	}
}

// keepObjects keeps interests, and the objects that some interest is for.
func (s *salvage) keepObjects(t *tree) {
	whole := false
	for _, path := range [][][]byte{pathOf(bucketInterests), pathOf(bucketCopies)} {
		whole = whole || t.complete(path)
		for key, value := range t.records(path) {
			i := &storepb.Interest{}
			_, payload, err := unframe(path, []byte(key), value)
			if err == nil && len(key) == 8 && proto.Unmarshal(payload, i) == nil {
				s.interests[binary.BigEndian.Uint64([]byte(key))] = i
			}
		}
	}
	if !whole {
		s.lost = append(s.lost, "interests that could not be read")
		s.holes = true
	}
	damaged := map[schema.GroupVersionResource]bool{}
	for _, i := range s.interests {
		for _, r := range coveredBy(i) {
			if !t.complete(resourcePath(r)) {
				damaged[r] = true
				i.Synced = false
			}
		}
	}
	for r := range damaged {
		s.lost = append(s.lost, "objects of "+string(resourcePath(r)[1]))
		s.holes = true
	}
	slices.Sort(s.lost)
	for _, b := range t.buckets {
		if len(b.path) != 2 || !bytes.Equal(b.path[0], bucketObjects) {
			continue
		}
		if r, err := resourceOf(b.path[1]); err == nil && s.wanted(r) {
			s.add(b.path, b.records)
		}
	}
}

// coveredBy lists the resources that an interest brings.
func coveredBy(i *storepb.Interest) []schema.GroupVersionResource {
	if i.Dependencies {
		return object.Travelling()
	}
	return []schema.GroupVersionResource{{Group: i.Group, Version: i.Version, Resource: i.Resource}}
}

func (s *salvage) wanted(r schema.GroupVersionResource) bool {
	for _, i := range s.interests {
		if slices.Contains(coveredBy(i), r) {
			return true
		}
	}
	return false
}
