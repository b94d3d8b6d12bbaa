package meta

import "container/heap"

// ready is a set of entries' numbers, of which the lowest, the oldest, is taken first. Each is in it
// once, and leaves it with its entry: it never holds more than there are entries.
type ready struct {
	ids []uint64       // a heap
	at  map[uint64]int // where each is in ids
}

func newReady() *ready { return &ready{at: map[uint64]int{}} }

func (r *ready) put(id uint64) {
	if _, there := r.at[id]; !there {
		heap.Push(r, id)
	}
}

func (r *ready) drop(id uint64) {
	if i, there := r.at[id]; there {
		heap.Remove(r, i)
	}
}

func (r *ready) take() (uint64, bool) {
	if len(r.ids) == 0 {
		return 0, false
	}
	id, _ := heap.Pop(r).(uint64)
	return id, true
}

// Len, Less, Swap, Push and Pop are heap.Interface.
func (r *ready) Len() int           { return len(r.ids) }
func (r *ready) Less(i, j int) bool { return r.ids[i] < r.ids[j] }

func (r *ready) Swap(i, j int) {
	r.ids[i], r.ids[j] = r.ids[j], r.ids[i]
	r.at[r.ids[i]], r.at[r.ids[j]] = i, j
}

func (r *ready) Push(x any) {
	id, _ := x.(uint64)
	r.at[id] = len(r.ids)
	r.ids = append(r.ids, id)
}

func (r *ready) Pop() any {
	id := r.ids[len(r.ids)-1]
	r.ids = r.ids[:len(r.ids)-1]
	delete(r.at, id)
	return id
}
