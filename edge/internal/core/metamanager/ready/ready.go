// Package ready is the set of entries that may be sent. It owns their order, accepts every entry,
// and is used by one goroutine at a time.
package ready

import (
	"container/heap"
)

// Set is a set of entries' numbers, of which the lowest, the oldest, is taken first. Each is in it
// once, and leaves it with its entry: it never holds more than there are entries.
type Set struct {
	ids []uint64       // a heap
	at  map[uint64]int // where each is in ids
}

// New returns an empty set.
func New() *Set { return &Set{at: map[uint64]int{}} }

// Put adds a number, unless it is in the set.
func (r *Set) Put(id uint64) {
	if _, there := r.at[id]; !there {
		heap.Push(r, id)
	}
}

// Drop removes a number, if it is in the set.
func (r *Set) Drop(id uint64) {
	if i, there := r.at[id]; there {
		heap.Remove(r, i)
	}
}

// Take removes the lowest number.
func (r *Set) Take() (uint64, bool) {
	if len(r.ids) == 0 {
		return 0, false
	}
	id, _ := heap.Pop(r).(uint64)
	return id, true
}

// Len, Less, Swap, Push and Pop are heap.Interface.
func (r *Set) Len() int { return len(r.ids) }

func (r *Set) Less(i, j int) bool { return r.ids[i] < r.ids[j] }

func (r *Set) Swap(i, j int) {
	r.ids[i], r.ids[j] = r.ids[j], r.ids[i]
	r.at[r.ids[i]], r.at[r.ids[j]] = i, j
}

func (r *Set) Push(x any) {
	id, _ := x.(uint64)
	r.at[id] = len(r.ids)
	r.ids = append(r.ids, id)
}

func (r *Set) Pop() any {
	id := r.ids[len(r.ids)-1]
	r.ids = r.ids[:len(r.ids)-1]
	delete(r.at, id)
	return id
}
