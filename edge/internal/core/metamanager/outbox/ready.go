package outbox

import "container/heap"

// readySet is the numbers of the entries that may be sent, of which the lowest, the oldest, is
// taken first. Each is in it once, and leaves it with its entry: it never holds more than there are
// entries.
type readySet struct {
	ids []uint64       // a heap
	at  map[uint64]int // where each is in ids
}

func newReadySet() *readySet { return &readySet{at: map[uint64]int{}} }

// add adds a number, unless it is in the set.
func (r *readySet) add(id uint64) {
	if _, there := r.at[id]; !there {
		heap.Push(r, id)
	}
}

// drop removes a number, if it is in the set.
func (r *readySet) drop(id uint64) {
	if i, there := r.at[id]; there {
		heap.Remove(r, i)
	}
}

// take removes the lowest number.
func (r *readySet) take() (uint64, bool) {
	if len(r.ids) == 0 {
		return 0, false
	}
	id, _ := heap.Pop(r).(uint64)
	return id, true
}

// Len, Less, Swap, Push and Pop are heap.Interface.
func (r *readySet) Len() int { return len(r.ids) }

func (r *readySet) Less(i, j int) bool { return r.ids[i] < r.ids[j] }

func (r *readySet) Swap(i, j int) {
	r.ids[i], r.ids[j] = r.ids[j], r.ids[i]
	r.at[r.ids[i]], r.at[r.ids[j]] = i, j
}

func (r *readySet) Push(x any) {
	id, _ := x.(uint64)
	r.at[id] = len(r.ids)
	r.ids = append(r.ids, id)
}

func (r *readySet) Pop() any {
	id := r.ids[len(r.ids)-1]
	r.ids = r.ids[:len(r.ids)-1]
	delete(r.at, id)
	return id
}
